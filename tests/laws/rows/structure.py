"""Combinators."""

import eqopt

from ..row import is_matrix, nested, row


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
]
