"""Combines a method for matrices with a fallback optimizer for other parameters."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import PyTree

from ...._combinators.chain import Chain
from ...._combinators.masked import Masked
from ...._core.transformation import AbstractTransformation
from ...._transforms.scale import ScaleByLearningRate
from ...._transforms.weight_decay import AddDecayedWeights
from ...._trees.axes import DimensionNumbers, map_matrices
from ...._trees.precision import compute_dtype
from ...._types import Params, Updates
from ...adam.adam import AdamW


def is_matrix(numbers: DimensionNumbers | None, flag: bool, params: Params) -> PyTree:
    """A mask: `flag` for matrices, and the opposite for everything else."""
    return map_matrices(
        lambda axes, x: flag, numbers, params, None, otherwise=lambda x: not flag
    )


def are_others(owner: Any) -> Callable[[Params], PyTree]:
    """A mask of all parameters that are not matrices for `owner`."""
    return functools.partial(is_matrix, owner.weight_dimension_numbers, False)


def for_each_matrix(
    numbers: DimensionNumbers | None,
    params: Params | None,
    fn: Callable[[int, int], float],
) -> Callable[[Updates], PyTree]:
    """For `reads`: the number `fn(outputs, inputs)` for each matrix.

    It is an array that broadcasts to the leaf if it differs between blocks of a matrix.
    """
    of_one = lambda axes, g: np.asarray(axes.of_each(g.shape, fn), compute_dtype(g))

    return lambda updates: map_matrices(of_one, numbers, updates, params)


def matrices_and_others(
    owner: Any,
    *parts: AbstractTransformation,
    fallback: AbstractTransformation | None = None,
) -> Chain:
    """`parts`, weight decay and learning rate for matrices, a fallback for all others.

    The fallback is the fallback of `owner` if it has one, otherwise `fallback`, or an
    AdamW if that is `None`.
    """
    are_matrices = functools.partial(is_matrix, owner.weight_dimension_numbers, True)
    others = fallback if owner.fallback is None else owner.fallback
    if others is None:
        rate, decay, mask = owner.learning_rate, owner.weight_decay, owner.mask
        others = AdamW(rate, b2=0.95, weight_decay=decay, mask=mask)
    return Chain(
        *parts,
        Masked(owner.part(AddDecayedWeights), are_matrices),
        Masked(owner.part(ScaleByLearningRate), are_matrices),
        Masked(others, are_others(owner)),
    )
