"""Complex parameters as pairs of real ones."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from .._arguments.construction import Module
from .._arguments.extra import with_functions
from .._core import AbstractTransformation, AbstractWrapper, Call, check_real
from .._trees.keys import keys_of_part
from .._trees.stored import full_params
from .._types import Model, Params, PyTree, State


class RealAndImaginary(Module):
    """The real and imaginary parts that replace a complex array."""

    real: Float[Array, "*leaf"]
    imaginary: Float[Array, "*leaf"]


class SplitRealAndImaginaryState(eqx.Module):
    """`inner_state`: the inner state, for pairs of real arrays."""

    inner_state: State

    def _full_params(self, params: Params) -> Params:
        return _join(full_params(self.inner_state, _split(params)))


class SplitRealAndImaginary(AbstractWrapper):
    """Makes a transformation treat each complex array as two real ones.

    Without this wrapper, Adam, for example, has one second moment of the modulus. With
    it, Adam has a second moment for each of the two parts. Real arrays pass unchanged.

    !!! warning

        For a real loss of complex parameters, `jax.grad` returns the *conjugate* of the
        direction of steepest ascent. Conjugate gradients before you pass them on, as
        updates and as `grad`: `grads = eqopt.tree.conj(grads)`.

    **Arguments:**

    - `inner`: the transformation.
    """

    inner: AbstractTransformation

    def init(self, params: Params) -> SplitRealAndImaginaryState:
        state = self.inner.init(_split(params))
        return SplitRealAndImaginaryState(keys_of_part(state, params))

    def handle(
        self, call: Call, state: SplitRealAndImaginaryState
    ) -> tuple[Any, State]:
        if call.params is not None:
            check_real(call.updates, call.params, "params")
        of_pairs = Call(
            _split(call.updates),
            _split(call.params),
            _of_pairs(call.extra),
            call.is_step,
        )
        result, inner_state = of_pairs.run(self.inner, state.inner_state)
        return _join(result), SplitRealAndImaginaryState(inner_state)

    def eval_params(self, state: State, params: Model) -> Model:
        return _join(super().eval_params(state, _split(params)))


def _split(tree: PyTree) -> PyTree:
    def split(x):
        if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.complexfloating)):
            return x
        if isinstance(x, jax.ShapeDtypeStruct):
            return eqx.filter_eval_shape(split, x)
        return RealAndImaginary(jnp.real(x), jnp.imag(x))

    return jtu.tree_map(split, tree)


def _join(tree: PyTree) -> PyTree:
    is_pair = lambda x: isinstance(x, RealAndImaginary)
    join = lambda x: jax.lax.complex(x.real, x.imaginary) if is_pair(x) else x
    return jtu.tree_map(join, tree, is_leaf=is_pair)


def _of_pairs(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = with_functions(extra, _join, _split)
    for name in ("grad", "previous_grad"):
        if extra.get(name) is not None:
            extra = {**extra, name: _split(extra[name])}
    return extra
