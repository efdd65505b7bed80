"""From plain data to an optimizer."""

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._arguments.annotations import kinds, rules
from .._combinators.partition import Partition
from .._core import AbstractTransformation
from .._names import unknown_argument
from ..groups._rules import MatrixRules
from ..groups._selectors import Selector, glob, label
from ._dump import (
    VERSION,
    as_input_error,
    at,
    each,
    layer,
    named_by,
    parameters,
    takes_names,
)


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
    with as_input_error("eqopt.config.load"):
        opt = _loaded(data)
        if not isinstance(opt, AbstractTransformation):
            raise ValueError(f"a {type(opt).__name__} is no transformation")
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


#
# Objects by name
#


def _object(x: Mapping[str, Any]) -> Any:
    name, version = x["name"], x.get("version", VERSION)
    given = {key: x[key] for key in x if key not in ("name", "version")}
    if version != VERSION:  # also of a part, from another `dump`
        has = f"the data have version {version!r}"
        raise ValueError(f"{has}, but this eqopt reads version {VERSION}")
    fn = named_by(name)
    if isinstance(fn, Selector) and not given:
        return fn
    if fn is Partition and "groups" in given:
        return _table(given)
    is_class = isinstance(fn, type) and dataclasses.is_dataclass(fn)
    if not (is_class or name.startswith("groups.")):
        advice = f'For the function itself, write {{"function": {name!r}}}'
        raise ValueError(f"`{name}` is no class with arguments. {advice}")
    known = parameters(fn)
    _check_keys(given, [*known, *_OF_TABLE * (fn is Partition)], name)
    for key, parameter in known.items():
        is_optional = "VAR_" in parameter.kind.name or key in given
        if parameter.default is parameter.empty and not is_optional:
            raise ValueError(f"{name} needs `{key}`")
    argument = lambda key: _argument(given[key], fn, key)
    return _call(fn, each(zip(given, given, strict=True), argument))


def _argument(x: Any, fn: Any, key: str) -> Any:
    """The value of an argument, if it is not of a kind that its field cannot hold."""
    field = getattr(fn, "__dataclass_fields__", {}).get(key)
    if field is None:
        is_layers = fn is named_by("groups.module") and key == "types"
        return [layer(name) for name in x] if is_layers else _loaded(x)
    rule, texts = rules(fn).get(key), [x] if isinstance(x, str) else x
    is_number = isinstance(x, str) and re.fullmatch(r"[-+.\d]+(e[-+]?\d+)?", x, re.I)
    if is_number and rule is not None and (rule.is_scalar or rule.bounds):
        advice = f"YAML reads numbers without a dot as text: write {float(x)!r}"
        raise ValueError(f"{x!r} is a text. {advice}, or 1.0e-3 for 1e-3")
    is_list = isinstance(texts, Sequence) and any(isinstance(t, str) for t in texts)
    if is_list and kinds(fn)[key] == "mask":
        raise ValueError(f'{x!r} is no selector. Write {{"paths": {x!r}}}')
    default = getattr(field.default, "__name__", "")
    if isinstance(x, Mapping) and x == {"function": default}:
        return field.default  # which may be private
    return _loaded(x)


def _call(fn: Callable[..., Any], values: dict[str, Any]) -> Any:
    known = parameters(fn)
    if takes_names(fn):
        first, names = next(iter(known)), values.pop("names")
        of_names = values.get(first, ())
        if not len({*names}) == len(names) == len(of_names):
            raise ValueError(f"each of `{first}` needs its own name in `names`")
        values[first] = dict(zip(names, of_names, strict=True))
    args, named = [], {}
    for key in (key for key in known if key in values):
        kind, value = known[key].kind.name, values[key]
        if kind == "VAR_POSITIONAL":
            args, named = [*named.values(), *value], {}
        else:
            named |= value if kind == "VAR_KEYWORD" else {key: value}
    return fn(*args, **named)


#
# Other forms
#


def _paths(x: Mapping[str, Any]) -> Selector:
    paths, required = x["paths"], x.get("required", True)
    patterns = [paths] if isinstance(paths, str) else [*paths]

    return _JOINS["any"]([glob(pattern, required=required) for pattern in patterns])


def _joined(x: Mapping[str, Any]) -> Any:
    (key,) = x
    with at(f".{key}"):
        parts = _loaded([x[key]] if key == "not" else x[key])
        if not parts or not all(isinstance(p, Selector | MatrixRules) for p in parts):
            raise ValueError('it is for selectors, such as {"paths": "**/bias"}')
        return _JOINS[key](parts)


_JOINS: dict[str, Callable[[Any], Any]] = {
    "any": functools.partial(functools.reduce, operator.or_),
    "all": functools.partial(functools.reduce, operator.and_),
    "not": lambda parts: ~parts[0],
}


def _function(x: Mapping[str, Any]) -> Any:
    name, fn = x["function"], named_by(x["function"])
    if isinstance(fn, type) or not callable(fn):
        raise ValueError(f'`{name}` is no function. Write {{"name": {name!r}}}')
    named = each(((key, x[key]) for key in x if key != "function"), _loaded)
    _check_keys(named, parameters(fn), name)
    return functools.partial(fn, **named) if named else fn


def _dtype(x: Mapping[str, Any]) -> Any:
    found = getattr(jnp, str(x["dtype"]), None)
    if not isinstance(getattr(found, "dtype", None), np.dtype):
        raise ValueError(f"{x['dtype']!r} is no dtype, such as 'bfloat16'")
    return found


def _array(x: Mapping[str, Any]) -> Any:
    return jnp.asarray(_loaded(x["array"]), _dtype(x) if "dtype" in x else None)


# What a dictionary is, by the first of these keys that it has. Its other keys follow.
_FORMS: dict[str, tuple[Any, ...]] = {
    "name": (_object,),
    "paths": (_paths, "required"),
    **dict.fromkeys(_JOINS, (_joined,)),
    "function": (_function,),
    "array": (_array, "dtype"),
    "float": (lambda x: float(x["float"]),),
    "dtype": (_dtype,),
}


#
# The table of a `Partition`
#

_OF_TABLE = ["groups", "optimizers"]
_FACTORS = {f"{key}_factor": key for key in ("learning_rate", "weight_decay")}
_OF_ROW = ["label", "paths", "optimizer", *_FACTORS]


def _table(x: Mapping[str, Any]) -> Partition:
    _check_keys(x, _OF_TABLE, "a Partition with `groups`")

    optimizers, selectors = {}, {}
    read = lambda row: _row(row, x.get("optimizers", {}))
    rows = each(((f"groups[{i}]", row) for i, row in enumerate(x["groups"])), read)
    for name, selector, optimizer in rows.values():
        if name in optimizers:
            raise ValueError(f"several groups have the `label` {name!r}")
        selectors[name], optimizers[name] = selector, optimizer
    return Partition(optimizers, label(selectors))


def _row(row: Mapping[str, Any], shared: Mapping[str, Any]):
    for key in ("paths", "optimizer"):
        if key not in row:
            raise ValueError(f"a group needs `{key}`, but is {row!r}")
    paths, chosen = row["paths"], row["optimizer"]
    with at(".paths"):
        selector = _loaded(paths if isinstance(paths, Mapping) else {"paths": paths})
    name = paths if isinstance(paths, str) else selector.description
    with at(".optimizer"):
        if isinstance(chosen, str):
            if chosen not in shared:
                has = f"`optimizers` has {[*shared]}, but not {chosen!r}"
                raise ValueError(f'{has}. Or write {{"name": ...}} here')
            chosen = shared[chosen]
        of_class = parameters(named_by(chosen["name"])) if "name" in chosen else ()
    _check_keys(row, [*_OF_ROW, *of_class], "the group")
    changed = {key: row[key] for key in row if key not in _OF_ROW}
    with at(".optimizer"):
        optimizer = _loaded({**chosen, **changed})
    for key in _FACTORS:
        if key in row:
            with at(f".{key}"):
                optimizer = _scaled(optimizer, _FACTORS[key], row[key])
    return row.get("label", name), selector, optimizer


def _scaled(opt: Any, key: str, factor: Any) -> Any:
    if not hasattr(opt, key):
        raise ValueError(f"{type(opt).__name__} has no `{key}` to multiply")
    return dataclasses.replace(opt, **{key: factor * getattr(opt, key)})


def _check_keys(x: Mapping[str, Any], known: Collection[str], owner: str) -> None:
    for key in x:
        if key not in known:
            advice = unknown_argument(key, [*known])
            raise ValueError(f"{owner} has no argument `{key}`. {advice}")
