"""Combinators."""

import jax
import jax.numpy as jnp

import eqopt

from ..row import INNER, PATHS_WITHIN, is_matrix, matrix_or_other, nested, row


def by_rank(params):
    return jax.tree.map(lambda p: 1.0 + p.ndim, params)


ROWS = [
    row(lambda: eqopt.Chain(), name="Chain()"),
    row(nested, name="Chain(nested)", learning_rate=0.1),
    row(
        lambda: eqopt.NamedChain(clip=eqopt.Clip(0.1), adam=eqopt.Adam(0.01)),
        name="NamedChain",
    ),
    *[
        row(
            lambda inner=inner: eqopt.Masked(inner(), is_matrix), name=f"Masked({name})"
        )
        for name, inner in {
            "SGD": lambda: eqopt.SGD(0.1),
            "ScaleByAdam": lambda: eqopt.ScaleByAdam(),
            "ClipByGlobalNorm": lambda: eqopt.ClipByGlobalNorm(0.1),
            "nested": nested,
            "masked decay": lambda: eqopt.AddDecayedWeights(0.1, is_matrix),
        }.items()
    ],
    row(lambda: eqopt.Freeze(is_matrix), name="Freeze"),
    *[
        row(
            lambda inner=inner: eqopt.Partition(
                {"matrix": inner(), "other": eqopt.SGD(0.1)}, matrix_or_other
            ),
            name=f"Partition({name})",
        )
        for name, inner in INNER.items()
    ],
    *[
        row(
            lambda inner=inner: eqopt.SelectiveTransform(
                inner(), freeze_mask=is_matrix
            ),
            name=f"SelectiveTransform({name})",
        )
        for name, inner in INNER.items()
    ],
    row(
        lambda: eqopt.StoreState(
            eqopt.Adam(0.01), eqopt.storage.Cast(jnp.float32), is_matrix
        ),
        name="StoreState(Adam)",
        exempt=PATHS_WITHIN,
    ),
    row(lambda: eqopt.ScaleByTree(0.5), name="ScaleByTree"),
    row(lambda: eqopt.ScaleByTree(by_rank), name="ScaleByTree(function)"),
]
