"""Checks that a state has the dtypes that `mu_dtype` and similar arguments name."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ._annotations import kinds
from ._leaves import keystr
from ._owners import name_of
from ._storage import is_leaf
from ._typecheck import no_type_check


# The fields of states that have the dtype of an argument. `nu_dtype` is also the dtype
# of fields that are annotated as never negative.
_SLOTS = {
    "mu_dtype": ("mu", "m", "m1", "m2", "s", "exp_avg", "previous_gradient"),
    "nu_dtype": ("nu", "grad_sum", "v_row", "v_col"),
    "accumulator_dtype": ("trace", "ema", "acc_grads", "average", "subgradients"),
    "state_dtype": ("z",),
    "param_dtype": ("init_params",),
}
DTYPES = (*_SLOTS,)


@functools.cache
def _slots(cls: type, name: str) -> tuple[str, ...]:
    """The fields of the state class `cls` that have the dtype of the argument `name`."""
    if not hasattr(cls, "__dataclass_fields__"):
        return ()
    is_second = lambda kind: name == "nu_dtype" and kind == "nonnegative"
    fields = kinds(cls).items()
    return tuple(x for x, kind in fields if x in _SLOTS[name] or is_second(kind))


@no_type_check  # called in each step
def check_dtypes(transformation: Any, state: Any) -> None:
    """Raises a `TypeError` if a dtype that `transformation` names is not in `state`.

    Otherwise, another dtype in the optimizer of a resumed run would do nothing.
    """
    for name in DTYPES:
        given = getattr(transformation, name, None)
        if given is None:
            continue
        expected = jax.dtypes.canonicalize_dtype(given)
        for slot in _slots(type(state), name):
            tree = getattr(state, slot)
            for i, x in enumerate(jtu.tree_leaves(tree, is_leaf=is_leaf)):
                if not _fits(x, expected):
                    raise TypeError(
                        f"{name_of(transformation)}: `{name}` is {expected}, but the "
                        f"state has {x.dtype} at `.{slot}{keystr(tree, i)}`. A state "
                        "keeps the dtypes with which it was made. Pass the same "
                        f"`{name}`, or convert the state: `jax.tree.map(lambda x, y: "
                        "x.astype(y.dtype), state, eqx.filter_eval_shape(opt.init, "
                        "model))`."
                    )


def _fits(x: Any, expected: Any) -> bool:
    """Whether `x`, a leaf of a state, has this dtype, or the complex one like it."""
    dtype = getattr(x, "dtype", expected)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return dtype.itemsize == 2 * max(4, expected.itemsize)  # none is half as wide
    return dtype == expected or not jnp.issubdtype(dtype, jnp.floating)
