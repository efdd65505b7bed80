"""Checks that a state belongs to a transformation: its type, and its dtypes."""

import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._arguments.annotations import kinds, returned_type
from .._arguments.checks import check_no_schedule
from .._errors import InputError
from .leaves import keystr
from .stored import is_leaf


# The fields of states that have the dtype of an argument. `nu_dtype` is also the dtype
# of fields that are annotated as never negative.
SLOTS = {
    "mu_dtype": ("mu", "m", "m1", "m2", "s", "exp_avg", "previous_gradient"),
    "nu_dtype": ("nu", "grad_sum", "v_row", "v_col"),
    "accumulator_dtype": ("trace", "ema", "acc_grads", "average", "subgradients"),
    "state_dtype": ("z",),
    "param_dtype": ("init_params",),
}


def check_state(transformation: Any, state: Any, expected: type | None = None) -> None:
    """Raises an error if `state` is not of the type that `init` declares.

    It also raises if the state has other dtypes than `transformation` names, or if it
    cannot check because a schedule has not been evaluated.
    `expected` is for an `init` whose hyperparameters determine the type.
    """
    check_no_schedule(transformation)
    declared: Any = expected or returned_type(type(transformation).init)
    if not isinstance(state, declared):
        own = getattr(declared, "__qualname__", str(declared))  # a union has no name
        found = type(state).__qualname__
        if found == own:
            found = f"another class of this name, in {type(state).__module__}"
        raise InputError(
            f"`state` must be of type {own}, but is of type {found}. Pass the state that "
            "`init` or `update` of this optimizer returned."
        )
    check_dtypes(transformation, state)


def check_keys(state: Any, names: Iterable[Any], place: str = "") -> None:
    """Raises an error unless `state` is a dictionary with exactly these keys.

    `place` is the key path of `state` in the state of a transformation.
    """
    expected = [*names]
    if isinstance(state, dict) and {*state} == {*expected}:
        return
    found = [*state] if isinstance(state, dict) else type(state).__name__
    raise InputError(
        f"`state{place}` must be a dictionary with the keys {expected}, but is {found}. "
        "Pass the state of this optimizer, or call `eqopt.tree.migrate`."
    )


@functools.cache
def _slots(cls: type, name: str) -> tuple[str, ...]:
    """The fields of the state class `cls` that have the dtype of the argument `name`."""
    if not hasattr(cls, "__dataclass_fields__"):
        return ()
    is_second = lambda kind: name == "nu_dtype" and kind == "nonnegative"
    fields = kinds(cls).items()
    return tuple(x for x, kind in fields if x in SLOTS[name] or is_second(kind))


def check_dtypes(transformation: Any, state: Any) -> None:
    """Raises an error if a dtype that `transformation` names is not in `state`.

    Otherwise, another dtype in the optimizer of a resumed run would do nothing.
    """
    for name in SLOTS:
        given = getattr(transformation, name, None)
        if given is None:
            continue
        expected = jax.dtypes.canonicalize_dtype(given)
        for slot in _slots(type(state), name):
            tree = getattr(state, slot)
            for i, x in enumerate(jtu.tree_leaves(tree, is_leaf=is_leaf)):
                if not _fits(x, expected):
                    raise InputError(
                        f"`{name}` is {expected}, but the state has {x.dtype} at "
                        f"`.{slot}{keystr(tree, i)}`. A state keeps the dtypes with "
                        f"which it was made. Pass the same `{name}`, or make a new "
                        "state: `opt.init(model)`."
                    )


def check_size(
    transformation: Any, name: str, found: int, most: float = math.inf
) -> None:
    """Raises an error unless a size in the state is the argument `name`.

    `most` is the largest size that is possible there.
    """
    expected = getattr(transformation, name)
    if found != min(expected, most):
        raise InputError(
            f"`{name}` is {expected}, but the state was made with {found}, and keeps its "
            f"shapes. Pass the same `{name}`, or make a new state: `opt.init(model)`."
        )


def _fits(x: Any, expected: Any) -> bool:
    """Whether `x`, a leaf of a state, has this dtype, or the complex one like it."""
    dtype = getattr(x, "dtype", expected)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return dtype.itemsize == 2 * max(4, expected.itemsize)  # none is half as wide
    return dtype == expected or not jnp.issubdtype(dtype, jnp.floating)
