"""Combines a method for matrices with a fallback optimizer for other parameters."""

import functools
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ...._combinators.chain import Chain
from ...._combinators.masked import Masked
from ...._dimension_numbers import DimensionNumbers, resolve_dimension_numbers, size
from ...._equations import compute_dtype
from ...._leaves import is_leaf
from ...._transformation import AbstractTransformation
from ...._transforms.scale import ScaleByLearningRate
from ...._transforms.weight_decay import AddDecayedWeights
from ...._types import Params, Updates
from ...adam.adam import AdamW


def is_matrix(numbers: DimensionNumbers | None, flag: bool, params: Params) -> PyTree:
    """A mask: `flag` for matrices, and the opposite for everything else."""
    axes = resolve_dimension_numbers(numbers, params, None)
    treedef = jtu.tree_structure(params, is_leaf=is_leaf)
    return treedef.unflatten((a is not None) is flag for a in axes)


def for_each_matrix(
    numbers: DimensionNumbers | None,
    params: Params | None,
    fn: Callable[[int, int], float],
) -> Callable[[Updates], PyTree]:
    """For `reads`: the number `fn(outputs, inputs)` for each matrix."""

    def of(updates):
        leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_leaf)
        axes = resolve_dimension_numbers(numbers, updates, params)
        side = lambda g, axes: size(g.shape, axes)
        return treedef.unflatten(
            None
            if a is None
            else np.asarray(
                fn(side(g, a.output), side(g, a.reduction)), compute_dtype(g)
            )
            for g, a in zip(leaves, axes, strict=True)
        )

    return of


def matrices_and_others(
    owner: Any,
    *parts: AbstractTransformation,
    fallback: AbstractTransformation | None = None,
) -> Chain:
    """`parts`, weight decay and learning rate for matrices, a fallback for all others.

    The fallback is the fallback of `owner` if it has one, otherwise `fallback`, or an
    AdamW if that is `None`.
    """
    are_matrices, are_others = (
        functools.partial(is_matrix, owner.weight_dimension_numbers, flag)
        for flag in (True, False)
    )
    others = fallback if owner.fallback is None else owner.fallback
    if others is None:
        rate, decay = owner.learning_rate, owner.weight_decay
        others = AdamW(rate, b2=0.95, weight_decay=decay)
    return Chain(
        *parts,
        Masked(owner.part(AddDecayedWeights), are_matrices),
        Masked(owner.part(ScaleByLearningRate), are_matrices),
        Masked(others, are_others),
    )
