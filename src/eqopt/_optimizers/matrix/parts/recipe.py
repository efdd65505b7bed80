"""Combines a method for matrices with a fallback optimizer for other parameters."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from ...._combinators.chain import Chain
from ...._combinators.masked import Masked
from ...._core import AbstractOptimizer, AbstractTransformation
from ...._matrices import DimensionNumbers, map_matrices
from ...._transforms.scale import ScaleByLearningRate
from ...._transforms.weight_decay import AddDecayedWeights, WeightDecay as WeightDecay
from ...._types import Params, PyTree
from ...adam.adam import ScaleByAdam


def _is_matrix(numbers: DimensionNumbers | None, flag: bool, params: Params) -> PyTree:
    """A mask: `flag` for matrices, and the opposite for everything else."""
    return map_matrices(
        lambda axes, x: flag, numbers, params, params, otherwise=lambda x: not flag
    )


def are_matrices(owner: Any) -> Callable[[Params], PyTree]:
    """A mask of all parameters that are matrices for `owner`."""
    return functools.partial(_is_matrix, owner.weight_dimension_numbers, True)


def are_others(owner: Any) -> Callable[[Params], PyTree]:
    """A mask of all parameters that are not matrices for `owner`."""
    return functools.partial(_is_matrix, owner.weight_dimension_numbers, False)


def matrices_and_others(owner, *parts, others=None) -> Chain:
    """`parts` for matrices and `others` for all others; weight decay and learning rate.

    `others` is Adam by default. If `owner` has a fallback, that is all that trains the
    other parameters.
    """
    decay, descend = owner.part(AddDecayedWeights), owner.part(ScaleByLearningRate)
    if owner.fallback is None:
        others = ScaleByAdam(b2=0.95) if others is None else others
        return Chain(*parts, Masked(others, are_others(owner)), decay, descend)
    of_matrices = (Masked(part, are_matrices(owner)) for part in (decay, descend))
    return Chain(*parts, *of_matrices, Masked(owner.fallback, are_others(owner)))


class AbstractMatrixRecipe(AbstractOptimizer):
    """An optimizer that is its `_part` for matrices, and another one for the rest."""

    _part: ClassVar[type[AbstractTransformation]]

    @property
    def chain(self) -> Chain:
        return matrices_and_others(self, self.part(self._part))
