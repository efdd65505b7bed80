"""Noise: without any, because the two libraries draw other numbers of one key."""

import optax

import eqopt

from ..case import Batched, Case, batched


CASES = {
    "add_noise": Case(eqopt.AddNoise(0.0, 0.5, 1), optax.add_noise(0.0, 0.5, 1)),
    "differentially_private_aggregate": Case(
        Batched(eqopt.DifferentiallyPrivateAggregate(0.7, 0.0, 0)),
        batched(optax.contrib.differentially_private_aggregate(0.7, 0.0, 0)),
    ),
    "differentially_private_aggregate, not clipping": Case(
        Batched(eqopt.DifferentiallyPrivateAggregate(1e3, 0.0, 0)),
        batched(optax.contrib.differentially_private_aggregate(1e3, 0.0, 0)),
    ),
}
