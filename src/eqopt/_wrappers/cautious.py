"""Zeroes updates that disagree with the gradient."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._combinators.chain import Chain
from .._combinators.masked import Masked
from .._core import (
    AbstractOptimizer,
    AbstractStateless,
    AbstractTransformation,
    AbstractWrapper,
    Call,
    Leafwise,
    equation,
)
from .._errors import naming_recipe
from .._transforms.scale import ScaleByLearningRate, has_learning_rate
from .._transforms.weight_decay import AddDecayedWeights, alignment
from .._trees.leaves import is_leaf
from .._trees.masks import mask_out
from .._types import Leaf, Mask, Model, Params, PyTree, State, Updates


Rescale: TypeAlias = Literal["share", "plus_one", "none"]

# The parts of an optimizer that follow the direction.
_BEHIND = (AddDecayedWeights, ScaleByLearningRate)

# The factor of the remaining updates, which are `count` out of `n`.
_RESCALE: dict[str, Callable[[Array, int], Array | float]] = {
    "share": lambda count, n: 1 / jnp.maximum(count / n, 1e-3),
    "plus_one": lambda count, n: n / (count + 1),
    "none": lambda count, n: 1.0,
}


@equation
def caution(g: Leaf, grad: Leaf, *, rescale: str, is_downhill: bool) -> Leaf:
    product = alignment(g, grad)
    agrees = product < 0 if is_downhill else product > 0
    count = jnp.sum(agrees).astype(product.dtype)
    return jnp.where(agrees, _RESCALE[rescale](count, max(g.size, 1)) * g, 0)


class _Caution(AbstractStateless):
    """The cautious part of a chain, at its position, with the gradients of this step."""

    grads: Updates
    rescale: str
    is_downhill: bool

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(caution, reads={"grad": self.grads})


class Cautious(AbstractWrapper):
    r"""Zeroes the updates that point against the gradient of the current step.

    For each leaf, with the direction $d$ of `inner` and the gradient $g$,

    $$m_i = [d_i g_i > 0], \qquad
      u_i = \frac{m_i\, d_i}{\max(\bar m,\, 10^{-3})},$$

    where $\bar m$ is the mean of $m$. The momentum itself is not masked, so an entry
    waits until gradient and momentum agree again.

    `inner` is any optimizer. If it ends in weight decay and a learning rate, like
    [`eqopt.AdamW`][], [`eqopt.Lion`][] and methods for matrices, the decay is not
    masked, as in C-AdamW. The fallback of a method for matrices becomes cautious in the
    same way. A decay that is part of the method is masked with its step, as in
    [`eqopt.StableAdamW`][]. To avoid this, add the decay after this wrapper, in a
    chain. `inner` can also be a transformation without a learning rate, such as
    [`eqopt.ScaleByAdam`][] in a chain: then $u$ also points uphill. The gradient is the
    input of this wrapper.

    Put wrappers that average the parameters or extrapolate outside:
    `Lookahead(Cautious(AdamW(1e-3)), ...)`.

    !!! example

        ```python
        opt = eqopt.Chain(
            eqopt.ClipByGlobalNorm(1.0),
            eqopt.Cautious(eqopt.AdamW(1e-3, weight_decay=0.1)),
        )
        ```

    **Arguments:**

    - `inner`: the transformation. If it contains a learning rate, meaning an
        [`eqopt.ScaleByLearningRate`][], an optimizer of eqopt, or a part of one that
        points downhill by itself, its updates must point downhill; otherwise, uphill.
    - `rescale`: how to compensate for the masked entries. `"share"` divides by the
        remaining share, as above; `"plus_one"` multiplies by $n / (1 + \sum_i m_i)$,
        with the $n$ entries of the leaf, as the authors do for Lion; `"none"` does
        nothing. Defaults to `"share"`.

    **Raises:**

    A `ValueError` if `rescale` is something else.

    ??? cite "Reference"

        ```bibtex
        @article{liang2024cautious,
            author = {Liang, Kaizhao and Chen, Lizhang and Liu, Bo and Liu, Qiang},
            title = {Cautious Optimizers: Improving Training with One Line of Code},
            journal = {arXiv:2411.16085},
            year = {2024},
        }
        ```
    """

    inner: AbstractTransformation
    rescale: Rescale = eqx.field(static=True, default="share")

    def init(self, params: Params) -> State:
        with naming_recipe(self), naming_recipe(self.inner):
            return self._chain(None, params).init(params)

    def eval_params(self, state: State, params: Model) -> Model:
        with naming_recipe(self), naming_recipe(self.inner):
            return self._chain(None, params).eval_params(state, params)

    def handle(self, call: Call, state: State) -> tuple[Any, State]:
        with naming_recipe(self), naming_recipe(self.inner):
            return call.run(self._chain(call.updates, call.params), state)

    def _chain(self, grads: Updates, params: Params | None) -> Chain:
        return _cautious(self.inner, self.rescale, grads, params)


def _cautious(inner: AbstractTransformation, rescale, grads, params) -> Chain:
    """The parts of `inner`, with a cautious part after the direction."""
    parts = _parts(inner)
    at = len(parts)
    while at and (_is_behind(parts[at - 1]) or _is_apart(parts[at - 1])):
        at -= 1
    is_downhill = has_learning_rate(inner) and not any(map(_turns, parts[at:]))
    caution = _Caution(grads, rescale, is_downhill)
    if apart := [part.mask for part in parts if _is_apart(part)]:
        caution = Masked(caution, functools.partial(_outside, apart))

    def with_own_caution(part: AbstractTransformation) -> AbstractTransformation:
        if not _is_apart(part):
            return part
        of_part = lambda x: None if x is None else mask_out(x, part.mask, params)
        own = _cautious(part.inner, rescale, of_part(grads), of_part(params))
        return Masked(own, part.mask)

    parts = list(map(with_own_caution, parts))
    return Chain(*parts[:at], caution, *parts[at:])


def _is_behind(part: AbstractTransformation) -> bool:
    """Whether a part follows the direction."""
    return isinstance(_unmasked(part), _BEHIND)


def _turns(part: AbstractTransformation) -> bool:
    """Whether a part behind the direction turns it from uphill to downhill."""
    part = _unmasked(part)
    return isinstance(part, ScaleByLearningRate) and part.flip_sign


def _unmasked(part: AbstractTransformation) -> AbstractTransformation:
    return part.inner if isinstance(part, Masked) else part


def _is_apart(part: AbstractTransformation) -> TypeGuard[Masked]:
    """Whether a part is an optimizer for some of the leaves, cautious by itself."""
    is_optimizer = isinstance(part, Masked) and has_learning_rate(part.inner)
    return is_optimizer and not _is_behind(part)


def _outside(masks: Sequence[Mask], params: Params) -> PyTree:
    """A mask of the leaves that are in none of the others."""
    for mask in masks:
        params = mask_out(params, mask, params, keep=False)
    return jax.tree.map(lambda p: p is not None, params, is_leaf=is_leaf)


def _parts(transformation: AbstractTransformation) -> Sequence[AbstractTransformation]:
    """The parts of a chain, of an optimizer's chain, and of a chain at its end."""
    if isinstance(transformation, AbstractOptimizer):
        return _parts(transformation.chain)
    if isinstance(transformation, Chain) and len(transformation):
        *first, last = transformation.transformations
        return [*first, *_parts(last)]
    return [transformation]
