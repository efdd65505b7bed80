"""Optimizers as plain data, and back: names of objects, and places of errors."""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import operator
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._arguments.annotations import kinds, rules
from .._combinators.partition import Partition
from .._core import AbstractTransformation
from .._errors import InputError
from .._jax_internals import is_traced
from .._names import GONE, meant, public_names, unknown_argument
from .._wrappers.project import Bound
from ..groups._recipes import recipe
from ..groups._rules import MatrixRules
from ..groups._selectors import Selector, glob, label


#
# Errors with their places
#


class _Misplaced(ValueError):
    """An error with its path, and its text."""


def _expect(holds: Any, problem: str) -> None:
    """Raises an error for the data at this place unless something holds."""
    if not holds:
        raise ValueError(problem)


@contextlib.contextmanager
def at(step: str) -> Generator[None, None, None]:
    """Puts a step of a path before the path of an error inside."""
    try:
        yield
    except (TypeError, ValueError, AttributeError) as error:
        is_placed = isinstance(error, _Misplaced)
        place, problem = error.args if is_placed else ("", str(error))
        raise _Misplaced(step + place, problem) from None


@contextlib.contextmanager
def as_input_error() -> Generator[None, None, None]:
    """Turns an error inside into an `InputError` that begins with its path."""
    try:
        with at(""):
            yield
    except _Misplaced as error:
        place, problem = error.args
        end = "" if problem.endswith((".", "?")) else "."
        start = f"at `{place}`: " * bool(place)
        raise InputError(f"{start}{problem}{end}") from None


def each(
    items: Iterable[tuple[Any, Any]], convert: Callable[[Any], Any]
) -> dict[Any, Any]:
    """Converts values by their keys, or by their positions in a list."""
    found: dict[Any, Any] = {}
    for key, x in items:
        with at(f"[{key}]" if isinstance(key, int) else f".{key}"):
            found[key] = convert(x)
    return found


#
# Names
#


# The rooms that optimizers are made from. Transformations are in `eqopt` itself.
_ROOMS = {
    *("", "aggregating", "compression", "groups", "projections"),
    *("schedules", "storage", "tree"),
}
# The classes of layers, for `eqopt.groups.module`.
_LAYERS = {f"eqx.nn.{x}": c for x, c in vars(eqx.nn).items() if isinstance(c, type)}
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
        raise InputError(f"the name {name!r} belongs to {of}. Pass another `name`.")
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
    known = [*_REGISTERED, *_LAYERS, *_names()]
    found = found or difflib.get_close_matches(name, known, n=3)
    if found:
        return f"Did you mean {' or '.join(f'`{x}`' for x in found)}?"
    register = "Name your own class or function with `eqopt.config.register`."
    return GONE.get(last, register)


def name_of(x: Any) -> str | None:
    """The name in plain data of a class or a function, or `None` if it has none."""
    for name, named in [*_REGISTERED.items(), *_LAYERS.items()]:
        if named is x:
            return name
    own = getattr(x, "__name__", "")
    for name in _names():
        if name.rpartition(".")[2] == own and named_by(name) is x:
            return name
    return None


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


#
# From an optimizer to plain data
#


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
    with as_input_error():
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
        return _write_number(x)
    if type(x) is tuple:
        return [*each(enumerate(x), _dumped).values()]
    made = recipe(x)
    if made is not None:
        return _write_made(*made)
    if isinstance(x, Bound) or hasattr(x, "__qualname__"):
        return _write_function(x, default)
    if isinstance(x, Partition):
        made = recipe(x.labels)
        if made is not None and made[1]["names"] == x.names:
            return _write_table(x, made[1]["rules"])
    return _write_object(x)


def _write_number(x: Any) -> Any:
    kinds = np.floating, np.integer, np.bool_
    is_real = any(jnp.issubdtype(x.dtype, kind) for kind in kinds)
    is_plain = is_real and x.ndim == 0 and not is_traced(x)
    kind = "a traced value" if is_traced(x) else f"an array {x.dtype}{[*x.shape]}"
    advice = "Only real 0-d arrays are plain data; instead of a key, use a seed"
    _expect(is_plain, f"{kind}. {advice}")
    value = _dumped(x.item())
    if not isinstance(x, jax.Array):
        return value
    is_weak = getattr(x, "weak_type", False)
    return {"array": value} if is_weak else {"array": value, "dtype": x.dtype.name}


def _write_made(maker: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a function of `eqopt.groups` made: its name and arguments."""
    if "of" in arguments:
        first, *rest = map(_dumped, arguments["of"])
        # `a | b | c` is one list.
        return {maker: first if maker == "not" else [*first.get(maker, [first]), *rest]}
    if maker == "glob" and arguments["required"]:
        return {"paths": arguments["pattern"]}
    if maker == "module":
        arguments = {**arguments, "types": tuple(map(_name, arguments["types"]))}
    return {"name": f"groups.{maker}", **each(arguments.items(), _dumped)}


def _write_function(x: Any, default: Any) -> dict[str, Any]:
    fn, bound = x, ()
    if isinstance(x, Bound):
        fn, bound = x.fn, zip(x.names, x.values, strict=True)
        _expect(not x.args, "a `functools.partial`. Bind its arguments by name")
    # A default may be private: its name counts in this field.
    name = fn.__name__ if fn is default and name_of(fn) is None else _name(fn)
    return {"function": name, **each(bound, _dumped)}


def _write_table(x: Partition, rules: tuple[Any, ...]) -> dict[str, Any]:
    """A row for each group, in the order in which the rules are tried."""
    rows = []
    for name, rule in zip(x.names, rules, strict=True):
        with at(f"[{name!r}]"):
            paths, label = _dumped(rule), _dumped(name)
            row = {"label": label, "paths": paths.get("paths", paths)}
            rows.append({**row, "optimizer": _dumped(x[name])})
    return {"name": "Partition", "groups": rows}


def _write_object(x: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(x):
        _name(x)
    name, fields = _name(type(x)), {f.name: f for f in dataclasses.fields(x)}
    for field in fields:
        is_argument = field in parameters(type(x)) and field not in ("name", "version")
        has = f"the constructor of `{name}` has no argument"
        _expect(is_argument, f"{has} for its field `{field}`")
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


#
# From plain data to an optimizer
#


def load(data: Mapping[str, Any]) -> AbstractTransformation:
    """Makes an optimizer from plain data, as from a file of JSON or YAML.

    !!! example

        ```python
        opt = eqopt.config.load(
            {
                "name": "Chain",
                "transformations": [
                    {"name": "ClipByGlobalNorm", "max_norm": 1.0},
                    {
                        "name": "AdamW",
                        "learning_rate": {
                            "name": "schedules.WarmupCosineDecay",
                            "init_value": 0.0,
                            "peak_value": 3e-4,
                            "warmup_steps": 100,
                            "decay_steps": 1000,
                        },
                        "weight_decay": 0.1,
                        "mask": {"not": {"paths": ["**/bias", "**/*norm*/**"]}},
                    },
                ],
            }
        )
        ```

        A group for each row of a table, where the first pattern that matches decides:

        ```python
        opt = eqopt.config.load(
            {
                "name": "Partition",
                "optimizers": {
                    "adamw": {"name": "AdamW", "learning_rate": 3e-4, "b2": 0.95},
                    "muon": {"name": "Muon", "learning_rate": 0.02},
                },
                "groups": [
                    {
                        "paths": ["**/bias", "embedding/**"],
                        "optimizer": "adamw",
                        "learning_rate_factor": 0.1,
                        "weight_decay_factor": 0,
                        "b2": 0.99,
                    },
                    {"label": "hidden", "paths": "**", "optimizer": "muon"},
                ],
            }
        )
        ```

    Nothing is imported by a path or executed: a `name` is a public name of eqopt,
    without `eqopt.`, or one of [`eqopt.config.register`][]. Arguments that are missing
    have their defaults. Lists become tuples.

    **Arguments:**

    - `data`: a dictionary, or another mapping with strings as keys. It has the `name` of
        a class, its arguments, and optionally the `version`. Arguments are numbers,
        strings, such as the name of a dtype, and the forms that
        [`eqopt.config.dump`][] lists. `{"paths": ...}` is a selector: a pattern of
        [`eqopt.groups.glob`][], or a list of them, any of which may match.

        A `Partition` may have a table of `groups`. A row has:

        - `paths`: a pattern, a list of patterns, or another selector;
        - `optimizer`: an optimizer, or its name among `optimizers`;
        - `label`: the label of the group, which is part of the state. Defaults to the
            pattern, or to the text of the selector.
        - `learning_rate_factor`, `weight_decay_factor`: a number by which this argument
            of the optimizer is multiplied. Defaults to 1. In an optimizer whose decay
            is multiplied by the learning rate, the first factor multiplies it, too.
        - any other argument of the optimizer, such as `b1`, for this group.

    **Returns:**

    The optimizer. If `data` are from [`eqopt.config.dump`][], it is equal to the
    original.

    **Raises:**

    A `ValueError` that names the path in `data` and the nearest name, for an unknown
    name or argument, a missing argument, or a value that the class rejects. `init` of
    the optimizer raises one if a pattern matches no parameter, if earlier rows match
    all of its parameters, or if no row matches a parameter.
    """
    with as_input_error():
        opt = _loaded(data)
        is_one = isinstance(opt, AbstractTransformation)
        _expect(is_one, f"a {type(opt).__name__} is no transformation")
        return opt


def _loaded(x: Any) -> Any:
    x = x.item() if isinstance(x, np.generic) else x
    if isinstance(x, Mapping):
        for key, (read, *others) in _FORMS.items():
            if key in x and (key != "dtype" or len(x) == 1):  # also an argument
                if key not in ("name", "function"):
                    _check_keys(x, [key, *others], f"`{key}`")
                return read(x)
        example = '{"name": "AdamW", "learning_rate": 0.001}'
        problem = f"no `name` among the keys {[*x]}. Write the name of a class"
        raise ValueError(f"{problem}, such as {example}")
    if isinstance(x, Sequence) and not isinstance(x, str | bytes):
        return tuple(each(enumerate(x), _loaded).values())
    if x is None or isinstance(x, bool | int | float | str):
        return x
    kind = f"of type {type(x).__name__}"
    raise ValueError(f"plain data have no values {kind}. Pass it to `dump` first")


def _read_object(x: Mapping[str, Any]) -> Any:
    name, version = x["name"], x.get("version", VERSION)
    given = {key: x[key] for key in x if key not in ("name", "version")}
    # Also a part may have one, from another `dump`.
    has = f"the data have version {version!r}"
    _expect(version == VERSION, f"{has}, but this eqopt reads version {VERSION}")
    fn = named_by(name)
    if isinstance(fn, Selector) and not given:
        return fn
    if fn is Partition and "groups" in given:
        return _read_table(given)
    is_class = isinstance(fn, type) and dataclasses.is_dataclass(fn)
    advice = f'For the function itself, write {{"function": {name!r}}}'
    problem = f"`{name}` is no class with arguments. {advice}"
    _expect(is_class or name.startswith("groups."), problem)
    known = parameters(fn)
    _check_keys(given, [*known, *_OF_TABLE * (fn is Partition)], name)
    argument = lambda key: _argument(given[key], fn, key)
    return _call(fn, each(zip(given, given, strict=True), argument))


def _argument(x: Any, fn: Any, key: str) -> Any:
    """The value of an argument, if it is not of a kind that its field cannot hold."""
    field = getattr(fn, "__dataclass_fields__", {}).get(key)
    if field is None:
        is_layers = fn is named_by("groups.module") and key == "types"
        named = lambda name: _LAYERS.get(name) or named_by(name)
        return [*map(named, x)] if is_layers else _loaded(x)
    rule, texts = rules(fn).get(key), [x] if isinstance(x, str) else x
    is_number = isinstance(x, str) and re.fullmatch(r"[-+.\d]+(e[-+]?\d+)?", x, re.I)
    if is_number and rule is not None and (rule.is_scalar or rule.bounds):
        advice = f"YAML reads numbers without a dot as text: write {float(x)!r}"
        raise ValueError(f"{x!r} is a text. {advice}, or 1.0e-3 for 1e-3")
    is_list = isinstance(texts, Sequence) and any(isinstance(t, str) for t in texts)
    is_mask = is_list and kinds(fn)[key] == "mask"
    _expect(not is_mask, f'{x!r} is no selector. Write {{"paths": {x!r}}}')
    default = getattr(field.default, "__name__", "")
    if isinstance(x, Mapping) and x == {"function": default}:
        return field.default  # which may be private
    return _loaded(x)


def _call(fn: Callable[..., Any], values: dict[str, Any]) -> Any:
    known = parameters(fn)
    if takes_names(fn):
        first, names = next(iter(known)), values.pop("names", ())
        of_names = values.get(first, ())
        are_own = len({*names}) == len(names) == len(of_names)
        _expect(are_own, f"each of `{first}` needs its own name in `names`")
        values[first] = dict(zip(names, of_names, strict=True))
    args, named = [], {}
    for key in (key for key in known if key in values):
        kind, value = known[key].kind.name, values[key]
        if kind == "VAR_POSITIONAL":
            args, named = [*named.values(), *value], {}
        else:
            named |= value if kind == "VAR_KEYWORD" else {key: value}
    return fn(*args, **named)


def _read_paths(x: Mapping[str, Any]) -> Selector:
    paths, required = x["paths"], x.get("required", True)
    patterns = [paths] if isinstance(paths, str) else [*paths]
    return _JOINS["any"]([glob(pattern, required=required) for pattern in patterns])


def _read_joined(x: Mapping[str, Any]) -> Any:
    (key,) = x
    with at(f".{key}"):
        parts = _loaded([x[key]] if key == "not" else x[key])
        is_one = lambda part: isinstance(part, Selector | MatrixRules)
        example = '{"paths": "**/bias"}'
        are_selectors = parts and all(map(is_one, parts))
        _expect(are_selectors, f"it is for selectors, such as {example}")
        return _JOINS[key](parts)


_JOINS: dict[str, Callable[[Any], Any]] = {
    "any": functools.partial(functools.reduce, operator.or_),
    "all": functools.partial(functools.reduce, operator.and_),
    "not": lambda parts: ~parts[0],
}


def _read_function(x: Mapping[str, Any]) -> Any:
    name, fn = x["function"], named_by(x["function"])
    is_function = callable(fn) and not isinstance(fn, type)
    _expect(is_function, f'`{name}` is no function. Write {{"name": {name!r}}}')
    named = each(((key, x[key]) for key in x if key != "function"), _loaded)
    _check_keys(named, parameters(fn), name)
    return functools.partial(fn, **named) if named else fn


def _read_dtype(x: Mapping[str, Any]) -> Any:
    name, found = x["dtype"], getattr(jnp, str(x["dtype"]), None)
    is_dtype = isinstance(getattr(found, "dtype", None), np.dtype)
    _expect(is_dtype, f"{name!r} is no dtype, such as 'bfloat16'")
    return found


def _read_array(x: Mapping[str, Any]) -> Any:
    return jnp.asarray(_loaded(x["array"]), _read_dtype(x) if "dtype" in x else None)


# What a dictionary is, by the first of these keys that it has. Its other keys follow.
_FORMS: dict[str, tuple[Any, ...]] = {
    "name": (_read_object,),
    "paths": (_read_paths, "required"),
    **dict.fromkeys(_JOINS, (_read_joined,)),
    "function": (_read_function,),
    "array": (_read_array, "dtype"),
    "float": (lambda x: float(x["float"]),),
    "dtype": (_read_dtype,),
}


#
# The table of a `Partition`
#

_OF_TABLE = ["groups", "optimizers"]
_FACTORS = {f"{key}_factor": key for key in ("learning_rate", "weight_decay")}
_OF_ROW = ["label", "paths", "optimizer", *_FACTORS]


def _read_table(x: Mapping[str, Any]) -> Partition:
    _check_keys(x, _OF_TABLE, "a Partition with `groups`")
    optimizers, selectors = {}, {}
    read = lambda row: _read_row(row, x.get("optimizers") or {})
    rows = each(((f"groups[{i}]", row) for i, row in enumerate(x["groups"])), read)
    for name, selector, optimizer in rows.values():
        problem = f"several groups have the `label` {name!r}"
        _expect(name not in optimizers, problem)
        selectors[name], optimizers[name] = selector, optimizer
    return Partition(optimizers, label(selectors))


def _read_row(row: Mapping[str, Any], shared: Mapping[str, Any]):
    for key in ("paths", "optimizer"):
        _expect(key in row, f"a group needs `{key}`, but is {row!r}")
    paths, chosen = row["paths"], row["optimizer"]
    with at(".paths"):
        selector = _loaded(paths if isinstance(paths, Mapping) else {"paths": paths})
    name = paths if isinstance(paths, str) else selector.description
    with at(".optimizer"):
        if isinstance(chosen, str):
            has = f"`optimizers` has {[*shared]}, but not {chosen!r}"
            _expect(chosen in shared, f'{has}. Or write {{"name": ...}} here')
            chosen = shared[chosen]
        of_class = parameters(named_by(chosen["name"])) if "name" in chosen else ()
    _check_keys(row, [*_OF_ROW, *of_class], "the group")
    changed = {key: row[key] for key in row if key not in _OF_ROW}
    with at(".optimizer"):
        optimizer = _loaded({**chosen, **changed})
    for key in _FACTORS:
        if key in row:
            with at(f".{key}"):
                scaled = row[key] * getattr(optimizer, _FACTORS[key])
                optimizer = dataclasses.replace(optimizer, **{_FACTORS[key]: scaled})
    return row.get("label", name), selector, optimizer


def _check_keys(x: Mapping[str, Any], known: Collection[str], owner: str) -> None:
    for key in x:
        if key not in known:
            advice = unknown_argument(key, [*known])
            raise ValueError(f"{owner} has no argument `{key}`. {advice}")
