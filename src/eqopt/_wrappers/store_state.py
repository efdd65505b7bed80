"""Stores the state of any transformation in fewer bytes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Inexact

from .._arguments.fields import static_choice
from .._core import AbstractTransformation, AbstractWrapper, Call
from .._errors import InputError
from .._trees.leaves import is_leaf, parameters
from .._trees.masks import resolve_mask
from .._trees.stored import AbstractStored, is_elsewhere, is_stored, standard_promotion
from .._types import Mask, Params, State
from ..numerics._numerics import at_least_float32, common_dtype
from ..storage._base import (
    AbstractParamStorage,
    AbstractStateStorage,
    Slot,
    check_made_by,
    check_storage,
    made_by,
)
from ..tree._slots import found_in
from .flatten import FlattenState
from .zero1 import ZeRO1State


# Below this size, scales and padding would take more memory than is saved.
_LARGE = 4096


class StoreStateState(eqx.Module):
    """`inner_state`: the inner state, in which some arrays are stored in another form."""

    inner_state: State


class StoreState(AbstractWrapper):
    """Stores the state of any other transformation in fewer bytes.

    It stores all parts of the state of `inner` that correspond to a parameter, in the
    sense of [`eqopt.tree.map_params`][]: moments, averages, accumulated gradients. Other
    arrays stay as they are, such as the factors of [`eqopt.SOAP`][] and the projected
    moments of [`eqopt.GaLore`][]. In each step, the kernel of a leaf loads them, computes
    in float32, and stores the results. There is never a full-precision copy of the whole
    state. A transformation that handles trees itself, such as LBFGS, gets copies. The
    hidden bits of [`eqopt.StoreParams`][] and the parameters to which [`eqopt.SAM`][]
    returns are not part of this state and stay unchanged. Put averages of the parameters
    and slow weights outside, `ParamEMA(StoreState(opt, storage))`: with few bits, they
    stand still.

    The state is stored in the same way on any number of devices, and sharded like the
    parameters. [`eqopt.ZeRO1`][] and [`eqopt.Flatten`][] go outside:
    `ZeRO1(StoreState(inner, storage), ...)`. Inside `jax.shard_map`, a parameter is the
    local shard. If that has fewer than 4096 elements, its state is not stored, even if
    the whole parameter has more. Pass `where` to store it as outside.

    !!! example

        ```python
        storage = eqopt.storage.BlockwiseQuantized()
        opt = eqopt.StoreState(eqopt.AdamW(1e-3), storage)
        # Keep the state of embeddings in float32:
        is_large = eqopt.groups.leaf(lambda x: x.size >= 4096)
        where = is_large & ~eqopt.groups.module(eqx.nn.Embedding)
        opt = eqopt.StoreState(eqopt.AdamW(1e-3), storage, where)
        ```

    **Arguments:**

    - `inner`: the transformation: an optimizer, a chain, another wrapper.
    - `storage`: how an array is stored; see `eqopt.storage`.
    - `where`: the parameters whose state is stored, as a mask in [`eqopt.Masked`][] or
        a selector of `eqopt.groups`. Defaults to parameters with at least 4096
        elements.

    **Raises:**

    A `TypeError` if `storage` is not a storage for states. In `init`, a `ValueError` if
    `inner` holds an `Offload`, a `ZeRO1` or a `Flatten` with arrays that should be
    stored. In `update`, a `TypeError` if another storage made the state.
    """

    _keeps_gradients = True

    inner: AbstractTransformation
    # A storage for parameters gets its own error message.
    storage: AbstractStateStorage | AbstractParamStorage
    where: Mask | None = static_choice(default=None)

    def __check_init__(self) -> None:
        check_storage("StoreState", self.storage, AbstractStateStorage)

    def init(self, params: Params) -> StoreStateState:
        state = self.inner.init(params)
        leaves, treedef = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
        if self.where is None:
            flags = [x is not None and x.size >= _LARGE for x in leaves]
        else:
            flags = resolve_mask(self.where, params, params)
        with_paths, treedef = jtu.tree_flatten_with_path(state, is_leaf=is_stored)
        kept = []
        leaves = zip(found_in(params, state), _owners(state), with_paths, strict=True)
        for i, ((_, place, kind), owner, (path, x)) in enumerate(leaves):
            if kind != "exact" and _can_be_kept(x):
                is_chosen = place is not None and flags[place]
                is_large = x.size >= _LARGE if self.where is None else any(flags)
                # A vector belongs to no parameter.
                is_vector = owner == "Flatten" and is_large and x.ndim > 0
                if (not is_chosen and is_vector) or (is_chosen and owner in _OUTSIDE):
                    raise InputError(
                        "StoreState",
                        f"`{jtu.keystr(path)}` in the state of `inner` cannot be stored, "
                        f"because it is inside `{owner}`. Put `{owner}` outside: "
                        f"`eqopt.{owner}(eqopt.StoreState(opt, storage), ...)`.",
                    )
                if is_chosen and place is not None:
                    # Parts of a model have states with the same numbers.
                    slot = Slot(i * len(flags) + place, kind == "nonnegative")
                    with standard_promotion():
                        x = self._kept(x, slot)
            kept.append(x)
        return StoreStateState(treedef.unflatten(kept))

    def _kept(self, x: Inexact[Array, "..."], slot: Slot) -> AbstractStored:
        storage: Any = self.storage
        # An array is kept as it is.
        kinds = AbstractStored, jax.Array
        keep = lambda x, slot: made_by(storage, "keep", storage.keep(x, slot), kinds)
        if not jnp.iscomplexobj(x):
            return keep(x, slot)
        # Two different keys, for storages with stochastic rounding.
        imag = slot._replace(place=2**31 + slot.place)
        return Complex(keep(x.real, slot), keep(x.imag, imag))

    def handle(self, call: Call, state: StoreStateState) -> tuple[Any, StoreStateState]:
        is_other = lambda x: isinstance(x, StoreStateState) or is_stored(x)
        leaves = jtu.tree_leaves_with_path(state.inner_state, is_leaf=is_other)
        here = [(path, x) for path, x in leaves if is_stored(x) and not is_elsewhere(x)]
        made = [(path, _real_part(x)) for path, x in here]
        storage: Any = self.storage
        fix = ", or convert the state: `eqopt.tree.migrate(opt, state, model)`"
        check_made_by("StoreState", storage, made, storage._may_have_kept, fix)
        result, inner_state = call.run(self.inner, state.inner_state)
        return result, StoreStateState(inner_state)


_OUTSIDE = "Offload", "ZeRO1"


def _owners(state: State) -> list[str | None]:
    """For each leaf, the wrapper inside which it is not like a parameter, if any."""
    is_owner = lambda x: isinstance(x, ZeRO1State | FlattenState)
    owners = []
    for x in jtu.tree_leaves(state, is_leaf=lambda x: is_owner(x) or is_stored(x)):
        name = type(x).__name__.removesuffix("State") if is_owner(x) else None
        for leaf in jtu.tree_leaves(x, is_leaf=is_stored):
            owners.append("Offload" if is_elsewhere(leaf) else name)
    return owners


def _can_be_kept(x: Any) -> bool:
    if not eqx.is_array_like(x) or (is_stored(x) and not is_elsewhere(x)):
        return False
    return x.size > 0 and jnp.issubdtype(x.dtype, jnp.inexact)


def _real_part(x: AbstractStored) -> AbstractStored:
    return x.real if isinstance(x, Complex) else x


class Complex(AbstractStored):
    """A complex array as two real ones."""

    real: AbstractStored
    imag: AbstractStored

    @property
    def _is_differentiable(self) -> bool:
        return self.real._is_differentiable

    @property
    def like(self) -> jax.ShapeDtypeStruct:
        dtype = common_dtype(self.real.dtype, jnp.complex64)
        return jax.ShapeDtypeStruct(self.real.shape, dtype)

    def load(self):
        real, imag = self.real.load(), self.imag.load()
        return lax.complex(at_least_float32(real), at_least_float32(imag))

    def store(self, new):
        return Complex(self.real.store(new.real), self.imag.store(new.imag))
