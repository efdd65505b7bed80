"""Means of per-element gradients, and their variance."""

import jax.numpy as jnp
import optax
from optax.experimental import aggregating as theirs

import eqopt
from eqopt import aggregating as ours

from ..case import COSINES, Case, both
from .noise import Batched, batched


# In float16, Adam of Optax is NaN where the gradients are zero, and in half precision the
# variance changes its dtype, and raises an error, where it is of several calls.
WIDE = (jnp.float32, jnp.bfloat16)

CASES = {
    "average_per_element_updates": Case(
        Batched(ours.AveragePerElementUpdates()),
        batched(theirs.average_per_element_updates()),
    ),
    **{
        f"accumulate_avg_updates, {k}": Case(
            ours.AccumulateAvgUpdates(k), theirs.accumulate_avg_updates(k)
        )
        for k in (1, 2, 5)
    },
    "average_incrementally_updates": Case(
        Batched(ours.AverageIncrementallyUpdates(0, 3)),
        batched(theirs.average_incrementally_updates(0, 3)),
    ),
    "average_incrementally_updates, no axis": both(
        ours.AverageIncrementallyUpdates, theirs.average_incrementally_updates, None, 3
    ),
    "process": Case(
        Batched(
            ours.Process(
                eqopt.Clip(0.7),
                ours.AverageIncrementallyUpdates(0, 3),
                eqopt.AdamW(COSINES[0], weight_decay=0.1),
            )
        ),
        batched(
            theirs.process(
                optax.clip(0.7),
                theirs.average_incrementally_updates(0, 3),
                optax.adamw(COSINES[1], weight_decay=0.1),
            )
        ),
        dtypes=WIDE,
    ),
    **{
        f"add_mean_variance_to_opt, {k}": Case(
            Batched(ours.add_mean_variance_to_opt(eqopt.Adam(0.1), 0.8, 0, k)),
            batched(theirs.add_mean_variance_to_opt(optax.adam(0.1), 0.8, 0, k)),
            dtypes=WIDE if k == 1 else (jnp.float32,),
        )
        for k in (1, 4)
    },
}
