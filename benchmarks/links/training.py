"""Trains the byte-level language model with eight replicas, simulated by `jax.vmap`."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqopt

from ..workloads.language import SHAPE, transformer
from .methods import AXIS, REPLICAS, TRAINED


STEPS, EVERY = 1000, 10  # steps in all, and between evaluations
WARM_UP = 40
BATCH = 2  # sequences of one replica and step
RANK = 2
RATES = 2e-3, 5e-3, 1.2e-2
SEEDS = 0, 1, 2


class Run(NamedTuple):
    """A run, with the losses on held-out text after every `EVERY` steps."""

    method: str
    rate: float
    seed: int
    losses: list[float]


def steps_to(losses: list[float], target: float) -> int | None:
    """The steps after which the loss is first at the target; `None` if it never is."""
    reached = (i for i, loss in enumerate(losses) if loss <= target)
    return next(((i + 1) * EVERY for i in reached), None)


def runs(method: str, target: float) -> Iterator[Run]:
    """All rates with the first seed, and the best one with the other seeds."""
    train, found = trainer(method), []
    for rate in RATES:
        found.append(Run(method, rate, SEEDS[0], train(rate, SEEDS[0])))
        yield found[-1]
    needed = lambda run: (steps_to(run.losses, target) or STEPS + 1, run.losses[-1])
    rate = min(found, key=needed).rate
    for seed in SEEDS[1:]:
        yield Run(method, rate, seed, train(rate, seed))


def trainer(name: str, steps: int = STEPS) -> Callable[[float, int], list[float]]:
    """A function of a learning rate and a seed that trains. It is compiled once."""
    method, workload = TRAINED[name], transformer()
    static = eqx.filter(workload.model(jr.key(0)), eqx.is_inexact_array, inverse=True)
    pieces, held_out = jnp.asarray(workload.examples), jnp.asarray(workload.held_out)

    def loss(params, tokens):
        return workload.mean_loss(eqx.combine(params, static), tokens)

    def optimizer(rate):
        # After the warm-up, the rate is constant: no budget is known in advance.
        return method.wrap(
            eqopt.AdamW(eqopt.schedules.Linear(0.0, rate, WARM_UP)), RANK
        )

    axes = method.params, method.state

    def start(rate, key):
        params = eqx.filter(workload.model(key), eqx.is_inexact_array)
        each = lambda _: (params, optimizer(rate).init(params))
        return jax.vmap(each, out_axes=axes)(jnp.arange(REPLICAS))

    @jax.jit
    def stretch(params, state, rate, key, first):
        opt = optimizer(rate)

        def of_one(tokens, params, state):
            grads = jax.grad(loss)(params, tokens)
            return method.step(opt, grads, state, params)

        of_all = jax.vmap(of_one, (0, *axes), axes, axis_name=AXIS)

        def step(now, i):
            shape = REPLICAS, BATCH
            rows = jr.randint(jr.fold_in(key, i), shape, 0, len(pieces))
            return of_all(pieces[rows], *now), None

        steps = first + jnp.arange(EVERY)
        (params, state), _ = jax.lax.scan(step, (params, state), steps)
        # Replicas have their own parameters, but the outer ones are equal for all.
        of_one = params if axes[0] is None else jax.tree.map(lambda x: x[0], params)
        return params, state, loss(opt.eval_params(state, of_one), held_out)

    start = jax.jit(start)

    def train(rate: float, seed: int) -> list[float]:
        model_key, batch_key = jr.split(jr.key(seed))
        at = jnp.asarray(rate, jnp.float32)
        params, state = start(at, model_key)
        losses: list[Any] = []
        for first in range(0, steps, EVERY):
            params, state, value = stretch(params, state, at, batch_key, first)
            losses.append(value)
        return [round(float(value), 4) for value in losses]

    return train


WHAT = (
    f"{SHAPE.layers} layers, width {SHAPE.width}, sequences of {SHAPE.length} bytes; "
    f"{REPLICAS} replicas with {BATCH} sequences each in a step"
)
