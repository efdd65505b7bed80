"""Noise: without any, because the two libraries draw other numbers of one key."""

import warnings

import jax
import jax.numpy as jnp
import optax

import eqopt

from ..case import COSINE, LINEAR, Case


class Batched(eqopt.AbstractTransformation):
    """Makes per-example gradients of `updates`, some of which are clipped."""

    inner: eqopt.AbstractTransformation

    def init(self, params):
        return self.inner.init(params)

    def update(self, updates, state, params=None, **extra):
        return self.inner.update(batch_of(updates), state, params, **extra)


def batch_of(updates):
    return jax.tree.map(lambda g: jnp.stack([g, -3 * g, 0.01 * g, 0 * g]), updates)


def batched(theirs):
    return optax.GradientTransformation(
        theirs.init, lambda g, s, p=None: theirs.update(batch_of(g), s, p)
    )


def dpsgd(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its `seed`, for which it has no other name
        return optax.contrib.dpsgd(*args, **kwargs)


CASES = {
    "add_noise": Case(eqopt.AddNoise(0.0, 0.5, 1), optax.add_noise(0.0, 0.5, 1)),
    "noisy_sgd": Case(
        eqopt.NoisySGD(LINEAR[0], 0.0), optax.noisy_sgd(LINEAR[1], 0.0, key=0)
    ),
    "differentially_private_aggregate": Case(
        Batched(eqopt.DifferentiallyPrivateAggregate(0.7, 0.0, 0)),
        batched(optax.contrib.differentially_private_aggregate(0.7, 0.0, 0)),
    ),
    "differentially_private_aggregate, not clipping": Case(
        Batched(eqopt.DifferentiallyPrivateAggregate(1e3, 0.0, 0)),
        batched(optax.contrib.differentially_private_aggregate(1e3, 0.0, 0)),
    ),
    "dpsgd": Case(
        Batched(eqopt.DPSGD(0.1, 0.7, 0.0, 0)),
        batched(dpsgd(0.1, 0.7, 0.0, 0)),
    ),
    "dpsgd, nesterov": Case(
        Batched(eqopt.DPSGD(COSINE[0], 0.2, 0.0, 0, 0.8, True)),
        batched(dpsgd(COSINE[1], 0.2, 0.0, 0, 0.8, True)),
    ),
    "dpsgd, momentum": Case(
        Batched(eqopt.DPSGD(0.1, 5.0, 0.0, 0, momentum=0.5)),
        batched(dpsgd(0.1, 5.0, 0.0, 0, momentum=0.5)),
    ),
}
