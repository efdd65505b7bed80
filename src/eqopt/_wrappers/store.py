"""Arrays in another form: a state in fewer bytes, and parameters in half precision."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Inexact

from .._arguments.fields import static_choice
from .._core import AbstractTransformation, AbstractWrapper, Call, check_wide, leafwise
from .._errors import InputError
from .._trees.leaves import (
    ANOTHER_MODEL,
    align,
    is_leaf,
    is_parameter,
    keystr,
    parameters,
    restrict,
)
from .._trees.masks import resolve_mask
from .._trees.states import check_state
from .._trees.stored import (
    AbstractHidden,
    AbstractStored,
    is_elsewhere,
    is_stored,
    joined,
    load,
    of_jax,
    standard_promotion,
    taken_apart,
)
from .._types import Exact, Mask, Model, Params, PyTree, State
from ..numerics._numerics import at_least_float32, common_dtype
from ..storage._base import (
    AbstractParamStorage,
    AbstractStateStorage,
    Slot,
    check_made_by,
)
from ..tree._slots import found_in
from .flatten import FlattenState
from .project import towards
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

    inner: AbstractTransformation
    storage: AbstractStateStorage
    where: Mask | None = static_choice(default=None)

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
            is_chosen = place is not None and flags[place]
            may_be_kept = kind != "exact" and _can_be_kept(x)
            if may_be_kept or (is_chosen and is_elsewhere(x)):
                is_large = x.size >= _LARGE if self.where is None else any(flags)
                # A vector belongs to no parameter.
                is_vector = owner == "Flatten" and is_large and x.ndim > 0
                if (not is_chosen and is_vector) or (is_chosen and owner in _OUTSIDE):
                    raise InputError(
                        f"`{jtu.keystr(path)}` in the state of `inner` cannot be stored, "
                        f"because it is inside `{owner}`. Put `{owner}` outside: "
                        f"`eqopt.{owner}(eqopt.StoreState(opt, storage), ...)`."
                    )
                if is_chosen and place is not None:
                    # Parts of a model have states with the same numbers.
                    slot = Slot(i * len(flags) + place, kind == "nonnegative")
                    with standard_promotion():
                        x = self._kept(x, slot)
            kept.append(x)
        return StoreStateState(treedef.unflatten(kept))

    def _kept(self, x: Inexact[Array, "..."], slot: Slot) -> AbstractStored:
        keep = self.storage.keep
        if not jnp.iscomplexobj(x):
            return keep(x, slot)
        # Two different keys, for storages with stochastic rounding.
        imag = slot._replace(place=2**31 + slot.place)
        return Complex(keep(x.real, slot), keep(x.imag, imag))

    def handle(self, call: Call, state: StoreStateState) -> tuple[Any, State]:
        is_other = lambda x: isinstance(x, StoreStateState) or is_stored(x)
        leaves = jtu.tree_leaves_with_path(state.inner_state, is_leaf=is_other)
        made = [
            (path, x.real if isinstance(x, Complex) else x)
            for path, x in leaves
            if is_stored(x) and not is_elsewhere(x)
        ]
        fix = ", or convert the state: `eqopt.tree.migrate(opt, state, model)`"
        may_have_kept = self.storage._may_have_kept
        check_made_by(self.storage, made, may_have_kept, fix)
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


class StoreParamsState(eqx.Module):
    """The hidden parts of the parameters.

    **Attributes:**

    - `hidden`: a tree like the parameters, with `None` at parameters that are not kept
        in two parts.
    - `inner_state`: the inner state.
    """

    _has_hidden = True

    hidden: Exact
    inner_state: State


class StoreParams(AbstractWrapper):
    """Keeps the parameters in two parts: one in the model, the rest in the state.

    The model is in half precision, and the forward pass uses it. In each step, the
    kernel of a leaf joins both parts, adds the update in float32, and splits the sum.
    So updates that are too small for the parameter's own dtype are not lost. There is
    never a full-precision copy of the whole model. `inner` sees parameters in full
    precision.

    !!! example

        ```python
        model = eqopt.tree.cast(model, jnp.bfloat16)
        opt = eqopt.StoreParams(eqopt.AdamW(1e-3), eqopt.storage.SplitMasterWeights())
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        full = opt.full_params(state, model)  # float32, to save or to evaluate
        ```

    Call `step`. `update` must return updates that lead from the visible part of the
    parameters to the new one. Half precision is too coarse for such updates, so
    `update` accepts only float32 gradients. Nothing may follow this in a chain, and
    wrappers that change the parameters too, such as [`eqopt.Lookahead`][],
    [`eqopt.GPA`][] and [`eqopt.Project`][], go inside: their `init` raises a
    `ValueError` if this is inside them.

    **Arguments:**

    - `inner`: the optimizer.
    - `storage`: how a parameter is stored; see `eqopt.storage`.

    **Raises:**

    A `TypeError` if `storage` is not a storage for parameters. In `init`, a `TypeError`
    that names the key path if a parameter cannot be stored in this way, and a
    `ValueError` if no parameter is. In `update`, a `TypeError` if the updates have half
    precision or another storage made the state, and a `ValueError` if `params` is `None`.
    """

    _needs_params = True

    inner: AbstractTransformation
    storage: AbstractParamStorage

    def init(self, params: Params) -> StoreParamsState:
        hidden = self._hidden(params)
        return StoreParamsState(hidden, self.inner.init(load(joined(params, hidden))))

    def _hidden(self, params: Params) -> PyTree:
        leaves, treedef = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
        hide = self.storage.hide
        hidden = []
        for i, p in enumerate(leaves):
            try:
                with standard_promotion():
                    hidden.append(None if p is None else hide(of_jax(p), Slot(i)))
            except TypeError as error:
                path = keystr(params, i)
                raise InputError(f"at `{path}`: {error}") from None
        found = dict.fromkeys(str(p.dtype) for p in leaves if p is not None)
        if found and not any(h is not None for h in hidden):
            raise InputError(
                f"{type(self.storage).__name__} leaves parameters of dtype "
                f"{' and '.join(found)} unchanged. Cast the model: "
                "`eqopt.tree.cast(model, jnp.bfloat16)`."
            )
        return treedef.unflatten(hidden)

    def eval_params(self, state: State, params: Model) -> Model:
        """The evaluation parameters of `inner`, in the model's dtypes.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            are computed in full precision and rounded at the end.
        """
        check_state(self, state)
        full = load(_joined(params, state.hidden))
        treedef = jtu.tree_structure(full, is_leaf=is_leaf)
        new = self.inner.eval_params(state.inner_state, full)
        columns = map(treedef.flatten_up_to, (params, full, new))
        return treedef.unflatten(
            p if x is y else y.astype(p.dtype) if is_parameter(p) else y
            for p, x, y in zip(*columns, strict=True)
        )

    def handle(self, call: Call, state: StoreParamsState) -> tuple[Any, State]:
        if not call.is_step:
            check_wide(call.updates)
        is_hidden = lambda x: isinstance(x, AbstractHidden)
        made = jtu.tree_leaves_with_path(state.hidden, is_leaf=is_hidden)
        may_have_hidden = self.storage._may_have_hidden
        check_made_by(self.storage, made, may_have_hidden, "")
        own = call._replace(params=_joined(call.params, state.hidden), is_step=True)
        new, inner_state = own.run(self.inner, state.inner_state)
        new, hidden = taken_apart(new)
        if not call.is_step:
            reads = {"projected": restrict(new, call.updates), "p": call.params}
            new = leafwise(towards, call.updates, reads=reads)
        return new, StoreParamsState(hidden, inner_state)


def _joined(params: Params, hidden: PyTree) -> PyTree:
    """Both parts of the parameters; an error if they belong to different models."""
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
    parts = align(treedef, hidden, "state.hidden", params, "params")
    for i, (p, h) in enumerate(zip(leaves, parts, strict=True)):
        if h is not None and not (is_parameter(p) and h.fits(of_jax(p))):
            raise InputError(
                f"at `{keystr(params, i)}`, {eqx.tree_pformat(h)} in the state does not "
                f"belong to {eqx.tree_pformat(p)}. {ANOTHER_MODEL}"
            )
    return joined(params, hidden)
