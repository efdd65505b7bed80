"""Shared by the optimizers of this room: a fallback for other parameters."""

import functools
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from ...._combinators.chain import Chain
from ...._combinators.masked import Masked
from ...._dimension_numbers import DimensionNumbers, resolve_dimension_numbers
from ...._leaves import is_leaf
from ...._transformation import AbstractTransformation
from ...._transforms.scale import ScaleByLearningRate
from ...._transforms.weight_decay import AddDecayedWeights
from ...._types import Params
from ...adam.adam import AdamW


def is_matrix(numbers: DimensionNumbers | None, flag: bool, params: Params) -> PyTree:
    """A mask: `flag` for matrices, and the opposite for everything else."""
    axes = resolve_dimension_numbers(numbers, params, None)
    treedef = jtu.tree_structure(params, is_leaf=is_leaf)
    return treedef.unflatten((a is not None) is flag for a in axes)


def matrices_and_others(
    owner: Any,
    *parts: AbstractTransformation,
    fallback: AbstractTransformation | None = None,
) -> Chain:
    """`parts`, decay and learning rate for matrices; else the owner's fallback.

    If the owner has none, that is `fallback`, or an AdamW.
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
