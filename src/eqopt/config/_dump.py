"""From an optimizer to plain data: the names of objects, and the places of errors."""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._combinators.partition import Partition
from .._core import AbstractTransformation
from .._errors import InputError
from .._jax_internals import is_traced
from .._names import GONE, meant, public_names
from .._wrappers.project import Bound
from ..groups._recipes import recipe


class Misplaced(ValueError):
    """An error with its path, and its text."""


@contextlib.contextmanager
def at(step: str) -> Generator[None, None, None]:
    """Puts a step of a path before the path of an error inside."""
    try:
        yield
    except (TypeError, ValueError) as error:
        is_placed = isinstance(error, Misplaced)
        place, problem = error.args if is_placed else ("", str(error))
        raise Misplaced(step + place, problem) from None


@contextlib.contextmanager
def as_input_error(owner: str) -> Generator[None, None, None]:
    """Turns an error inside into an `InputError` that begins with its path."""
    try:
        with at(""):
            yield
    except Misplaced as error:
        place, problem = error.args
        end = "" if problem.endswith((".", "?")) else "."
        start = f"at `{place}`: " * bool(place)
        raise InputError(owner, f"{start}{problem}{end}") from None


def each(
    items: Iterable[tuple[Any, Any]], convert: Callable[[Any], Any]
) -> dict[Any, Any]:
    """Converts values by their keys, or by their positions in a list."""
    found: dict[Any, Any] = {}
    for key, x in items:
        with at(f"[{key}]" if isinstance(key, int) else f".{key}"):
            found[key] = convert(x)
    return found


# The rooms that optimizers are made from. Transformations are in `eqopt` itself.
_ROOMS = {
    *("", "aggregating", "compression", "groups", "projections"),
    *("schedules", "storage", "tree"),
}
_REGISTERED: dict[str, Any] = {}

Named = TypeVar("Named", bound=Callable[..., Any])


def register(named: Named, name: str | None = None) -> Named:
    """Gives your own class or function a name in plain data.

    A name in plain data is looked up in the public names of eqopt, in the layers of
    Equinox, and in what you register. Nothing is imported by a name. So register in
    the program that calls [`eqopt.config.dump`][] and [`eqopt.config.load`][].

    !!! example

        ```python
        @eqopt.config.register
        def is_matrix(params):
            return jax.tree.map(lambda p: p.ndim >= 2, params)

        opt = eqopt.AdamW(1e-3, mask=is_matrix)
        data = eqopt.config.dump(opt)
        assert data["mask"] == {"function": "is_matrix"}
        assert eqopt.config.load(data) == opt
        ```

    **Arguments:**

    - `named`: a transformation, schedule, storage or other dataclass whose constructor
        takes its fields by name; a function, such as a mask, a schedule or a projection;
        or a class of layers, for [`eqopt.groups.module`][].
    - `name`: the name in plain data. Defaults to `named.__name__`.

    **Returns:**

    `named`, so it may be a decorator.

    **Raises:**

    A `ValueError` if the name is taken: by eqopt, or by something else that you
    registered. You may define the same function or class again, as in a notebook.
    """
    name = named.__name__ if name is None else name
    if name in _names() or _origin(_REGISTERED.get(name, named)) != _origin(named):
        of = "eqopt" if name in _names() else "other code that registered it"
        problem = f"the name {name!r} belongs to {of}. Pass another `name`."
        raise InputError("eqopt.config.register", problem)
    _REGISTERED[name] = named
    return named


def _origin(named: Any) -> tuple[str, str]:
    return named.__module__, named.__qualname__


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(x for x in public_names() if x.rpartition(".")[0] in _ROOMS)


def named_by(name: str) -> Any:
    """What a name stands for."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _names():
        root = importlib.import_module("eqopt")
        return functools.reduce(getattr, name.split("."), root)
    raise ValueError(f"there is no {name!r}. {_advice(str(name))}")


def _advice(name: str) -> str:
    room, _, last = name.rpartition(".")
    found = [x for x in meant(room, last)[0] if x in _names()]
    found = found or difflib.get_close_matches(name, [*_REGISTERED, *_names()], n=3)
    if found:
        return f"Did you mean {' or '.join(f'`{x}`' for x in found)}?"
    register = "Name your own class or function with `eqopt.config.register`."
    return GONE.get(last, register)


def name_of(x: Any) -> str | None:
    """The name in plain data of a class or a function, or `None` if it has none."""
    for name, named in _REGISTERED.items():
        if named is x:
            return name
    own = getattr(x, "__name__", "")
    for name in _names():
        if name.rpartition(".")[2] == own and named_by(name) is x:
            return name
    return None


def layer(name: str) -> type:
    """The class of a name for `eqopt.groups.module`."""
    known = layers()
    if name not in known:
        near = difflib.get_close_matches(name, known) or ["eqx.nn.LayerNorm"]
        advice = f"Did you mean `{near[0]}`? Or register your own layers"
        raise ValueError(f"there is no layer {name!r}. {advice}")
    return known[name]


def layers() -> dict[str, type]:
    """The classes for `eqopt.groups.module` by their names."""
    named = {f"eqx.nn.{name}": getattr(eqx.nn, name) for name in dir(eqx.nn)}
    return {name: x for name, x in (named | _REGISTERED).items() if isinstance(x, type)}


def parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments of a class or a function, which are the keys in plain data.

    Some take a dictionary, and keep its keys in a field `names`. Lists keep their order
    in all files, so plain data have a list for each of the two.
    """
    found = dict(inspect.signature(fn).parameters)
    if takes_names(fn):
        found["names"] = inspect.Parameter("names", inspect.Parameter.KEYWORD_ONLY)
    return found


def takes_names(fn: Callable[..., Any]) -> bool:
    """Whether the first argument of `fn` is a dictionary with names of its values."""
    fields = getattr(fn, "__dataclass_fields__", {})
    has_field = "names" in fields and "names" not in inspect.signature(fn).parameters
    return has_field or fn is named_by("groups.label")


VERSION = 1


def dump(opt: AbstractTransformation) -> dict[str, Any]:
    """Writes an optimizer as plain data, for JSON, YAML and other files.

    The result has only dictionaries with strings as keys, lists, numbers, strings, bools
    and `None`. [`eqopt.config.load`][] makes an equal optimizer from it, also in another
    process. All arguments are written, also those with a default, so a later default
    does not change an old run.

    !!! example

        ```python
        opt = eqopt.AdamW(eqopt.schedules.Linear(1e-3, 0.0, 1000), b2=0.95)
        text = json.dumps(eqopt.config.dump(opt))
        assert eqopt.config.load(json.loads(text)) == opt
        ```

    **Arguments:**

    - `opt`: the optimizer, or another transformation.

    **Returns:**

    A dictionary with the `version` of this form, the `name` of the class, and all of
    its arguments. What they hold is written as follows:

    - transformations, schedules and other objects: as such a dictionary, without
        `version`; tuples as lists;
    - `inf`, `-inf` and `nan`, which JSON does not have: `{"float": "inf"}`. `-0.0`
        stays a number.
    - NumPy's numbers and 0-d arrays: as Python's numbers;
    - 0-d arrays of JAX: `{"array": 0.1, "dtype": "float32"}`, without the dtype if it
        is weak, so the loaded optimizer also has an array, traced under `jit`;
    - dtypes: `{"dtype": "bfloat16"}`;
    - functions of eqopt, and others by their names in [`eqopt.config.register`][]:
        `{"function": "projections.simplex"}`, for [`eqopt.Project`][] also with the
        arguments that a `functools.partial` binds by name;
    - selectors: `{"paths": "**/bias"}` for [`eqopt.groups.glob`][], `any`, `all` and
        `not` for `|`, `&` and `~`, and `{"name": "groups.path", ...}` for the others,
        where layers are `"eqx.nn.LayerNorm"`;
    - an [`eqopt.Partition`][] with [`eqopt.groups.label`][]: a table of `groups`.

    **Raises:**

    A `ValueError` that names the path of what plain data cannot hold: a function or
    class without a name, such as a `lambda`; trees of bools or labels; arrays with
    axes, typed keys, complex numbers and traced values; lists in place of tuples;
    meshes; transformations of Optax. Arrays belong into checkpoints.
    """
    with as_input_error("eqopt.config.dump"):
        return {"version": VERSION, **_dumped(opt)}


def _dumped(x: Any, default: Any = None) -> Any:
    """`x` as plain data. `default`: the default of the field that holds it."""
    if x is None or type(x) in (bool, int, str):
        return x
    if type(x) is float:
        return x if math.isfinite(x) else {"float": str(x)}
    if isinstance(x, np.dtype) or (isinstance(x, type) and hasattr(x, "dtype")):
        return {"dtype": jnp.dtype(x).name}
    if isinstance(x, jax.Array | np.ndarray | np.generic):
        return _number(x)
    if type(x) is tuple:
        return [*each(enumerate(x), _dumped).values()]
    made = recipe(x)
    if made is not None:
        return _made(*made)
    if isinstance(x, Bound) or hasattr(x, "__qualname__"):
        return _function(x, default)
    if isinstance(x, Partition):
        made = recipe(x.labels)
        if made is not None and made[1]["names"] == x.names:
            return _table(x, made[1]["rules"])
    return _object(x)


def _number(x: Any) -> Any:
    kinds = np.floating, np.integer, np.bool_
    is_real = any(jnp.issubdtype(x.dtype, kind) for kind in kinds)
    if is_traced(x) or x.ndim > 0 or not is_real:
        kind = "a traced value" if is_traced(x) else f"an array {x.dtype}{[*x.shape]}"
        advice = "Only real 0-d arrays are plain data; instead of a key, use a seed"
        raise ValueError(f"{kind}. {advice}")
    value = _dumped(x.item())
    if not isinstance(x, jax.Array):
        return value
    is_weak = getattr(x, "weak_type", False)
    return {"array": value} if is_weak else {"array": value, "dtype": x.dtype.name}


def _made(maker: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a function of `eqopt.groups` made: its name and arguments."""
    if "of" in arguments:
        first, *rest = map(_dumped, arguments["of"])
        # `a | b | c` is one list.
        return {maker: first if maker == "not" else [*first.get(maker, [first]), *rest]}
    if maker == "glob" and arguments["required"]:
        return {"paths": arguments["pattern"]}
    if maker == "module":
        names = {cls: name for name, cls in layers().items()}
        types = tuple(names.get(cls) or _name(cls) for cls in arguments["types"])
        arguments = {**arguments, "types": types}
    return {"name": f"groups.{maker}", **each(arguments.items(), _dumped)}


def _function(x: Any, default: Any) -> dict[str, Any]:
    fn, bound = x, ()
    if isinstance(x, Bound):
        fn, bound = x.fn, zip(x.names, x.values, strict=True)
        if x.args:
            raise ValueError("a `functools.partial`. Bind its arguments by name")
    # A default may be private: its name counts in this field.
    name = fn.__name__ if fn is default and name_of(fn) is None else _name(fn)
    return {"function": name, **each(bound, _dumped)}


def _table(x: Partition, rules: tuple[Any, ...]) -> dict[str, Any]:
    """A row for each group, in the order in which the rules are tried."""
    rows = []
    for name, rule in zip(x.names, rules, strict=True):
        with at(f"[{name!r}]"):
            paths, label = _dumped(rule), _dumped(name)
            row = {"label": label, "paths": paths.get("paths", paths)}
            rows.append({**row, "optimizer": _dumped(x[name])})
    return {"name": "Partition", "groups": rows}


def _object(x: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(x):
        _name(x)
    name, fields = _name(type(x)), {f.name: f for f in dataclasses.fields(x)}
    for field in fields:
        if field in ("name", "version") or field not in parameters(type(x)):
            has = f"the constructor of `{name}` has no argument"
            raise ValueError(f"{has} for its field `{field}`")
    dumped = lambda field: _dumped(getattr(x, field.name), field.default)
    return {"name": name, **each(fields.items(), dumped)}


def _name(x: Any) -> str:
    """The name of a function or a class."""
    name = name_of(x)
    if name is None:
        kind = "the function" if inspect.isroutine(x) else "the class"
        shown = getattr(x, "__name__", type(x).__name__)
        raise ValueError(
            f"{kind} `{shown}` has no name in plain data. Use a class of eqopt, a "
            'selector such as `eqopt.groups.glob("**/weight")`, or '
            "`eqopt.config.register`"
        )
    return name
