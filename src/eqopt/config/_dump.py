"""From an optimizer to plain data."""

import dataclasses
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._combinators.partition import Partition
from .._core import AbstractTransformation
from .._jax_internals import is_traced
from .._wrappers.project import Bound
from ..groups._recipes import recipe
from ._places import as_input_error, at, each
from ._table import layers, name_of, parameters


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
