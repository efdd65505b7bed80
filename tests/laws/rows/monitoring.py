"""Measurements."""

import jax
import jax.numpy as jnp

import eqopt

from ..row import around, row


def is_long(updates):
    return eqopt.tree.norm(updates) > 1


def first_leaf(updates):
    """More than one array, in the dtype of the updates."""
    leaf = jax.tree.leaves(updates)[0]
    return {"total": jnp.sum(jnp.abs(leaf)), "rows": jnp.sum(leaf, 0)}


ROWS = [
    row(lambda: eqopt.Snapshot("norm", eqopt.tree.norm), name="Snapshot"),
    row(
        lambda: eqopt.Snapshot("first", first_leaf),
        name="Snapshot(tree)",
        exempt={
            "test_no_default_stands_still": "a measurement has the dtype that "
            "its function returns",
            "test_missing_in_some_steps": "it measures the first leaf that is there",
        },
    ),
    row(
        lambda decay=0.9: eqopt.Monitor(
            {"norm": eqopt.tree.norm, "long": eqopt.MeasureWithEMA(is_long, decay)}
        ),
        name="Monitor",
        decay=0.8,
    ),
    *around(eqopt.RecordGradNorm),
]
