"""How most optimizers are made: their parts, and weight decay inside a part.

Methods import the last parts of most chains from here, too.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Int

from .._arguments.extra import required_params
from .._combinators.chain import Chain
from .._core import AbstractOptimizer, AbstractTransformation, leafwise
from .._errors import naming_recipe
from .._transforms.scale import ScaleByLearningRate as ScaleByLearningRate
from .._transforms.weight_decay import (
    AddDecayedWeights,
    WeightDecay as WeightDecay,
    complete,
    decay_at,
    decay_weights,
    is_off,
)
from .._trees.leaves import is_leaf
from .._trees.masks import resolve_mask
from .._types import Mask, Params, PyTree, Updates


class AbstractRecipe(AbstractOptimizer):
    """An optimizer that is its `_parts`, one after the other.

    A class among them takes its hyperparameters from the fields of the optimizer.
    """

    _parts: ClassVar[tuple[Any, ...]]

    @property
    def chain(self) -> Chain:
        made = (self.part(x) if isinstance(x, type) else x for x in self._parts)
        return Chain(*made)


#
# Weight decay that a transformation applies by itself, in its own equation
#


class Decays(eqx.Module):
    """Tells an equation whether a leaf decays, `is_on`."""

    is_on: bool = eqx.field(static=True)


def which_decay(mask: Mask | bool | None, params: Params) -> PyTree[Decays]:
    """Whether each leaf decays: a tree like the parameters."""
    treedef = jtu.tree_structure(params, is_leaf=is_leaf)
    return treedef.unflatten(map(Decays, resolve_mask(mask, params, params)))


def decay_of(owner: Any) -> AddDecayedWeights:
    """The complete description of the decay of `owner`, which applies it by itself.

    Raises an error if its `weight_decay` cannot be one.
    """
    rate = getattr(owner, "learning_rate", None)
    with naming_recipe(owner):
        return complete(
            AddDecayedWeights(owner.weight_decay, owner.mask, learning_rate=rate)
        )


def shared_decay(owner: Any, count: Int[Array, ""]) -> dict[str, Any]:
    """The arguments of `decayed` for an equation of `owner`, after `count` steps."""
    return decay_at(decay_of(owner), count)


def read_decay(owner: Any, state: Any, params: Params | None) -> dict[str, PyTree]:
    """The parameters, and which of them decay, for an equation of `owner`."""
    decay = decay_of(owner)
    if is_off(decay):
        # The equation does not use `p`, so the parameters may be missing.
        return {"p": state.mu, "decays": which_decay(False, state.mu)}
    params = required_params(params)
    return {"p": params, "decays": which_decay(decay.mask, params)}


def add_decay(owner, updates, params, step, count) -> Updates:
    """Adds the decay of a step of size `step` to updates that point downhill."""
    decay = decay_of(owner)
    if is_off(decay):
        return updates
    shared = shared_decay(owner, count)
    shared["weight_decay"] = -step * jnp.asarray(shared["weight_decay"], step.dtype)
    reads = {"p": params}
    return leafwise(decay_weights, updates, reads=reads, mask=decay.mask, **shared)


def with_own_decay(owner: AbstractOptimizer, cls: type[AbstractTransformation]):
    """`owner.part(cls)` for a part that applies the decay of `owner` by itself."""
    return owner.part(cls, weight_decay=decay_of(owner), mask=None)
