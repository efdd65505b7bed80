"""The protocol: the runs of an optimizer on a workload, and their results.

1. Nine learning rates run once each, from seed 0. Their logarithms are evenly spaced over
   four decades around a usual rate of the optimizer. All other hyperparameters have their
   defaults.
2. The two rates with the lowest final validation losses run from the seeds 1, 2 and 3.
   The rate with the better mean is reported, with these three runs. So the runs that
   select the two rates are not reported.

Learning rates rise over the first 5 % of the budget and then fall to zero along a cosine,
except for the methods in `SCHEDULES`.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from tests.methods.method import Method

import eqopt

from ..optimizers import evaluate
from .workload import Workload


FACTORS = [10 ** (i / 2) for i in range(-4, 5)]
SEEDS = 1, 2, 3
EVALUATIONS = 20
AT_ONCE = 3  # runs in one call of the compiled program

# Why some methods have no cosine. After a warm-up, their rate is constant.
WARM_UP = "its average stands in for the decay"
ITSELF = "it finds its step sizes itself"
SCHEDULES = {
    "ScheduleFreeSGD": WARM_UP,
    "ScheduleFreeAdamW": WARM_UP,
    "ScheduleFreePlus": WARM_UP,
    "COCOB": ITSELF,
    "DoG": ITSELF,
    "DoWG": ITSELF,
    "LBFGS": "its line search finds the step sizes",
    "PolyakSGD": "the rate is an upper bound",
    "Rprop": "the rate is only the first of its step sizes",
}


def schedule(name: str, rate: Any, steps: int) -> Any:
    """The learning rate of a run: a number or a schedule."""
    why = SCHEDULES.get(name)
    warm_up = steps // 20
    if why is None:
        return eqopt.schedules.WarmupCosineDecay(0.0, rate, warm_up, steps)
    return eqopt.schedules.Linear(0.0, rate, warm_up) if why == WARM_UP else rate


@dataclasses.dataclass(frozen=True)
class Cell:
    """The results of an optimizer on a workload.

    **Attributes:**

    - `name`: the name of the optimizer.
    - `rates`: the nine learning rates.
    - `finals`: the final validation loss for each rate, from seed 0; may be NaN.
    - `best`: the learning rate that is reported.
    - `curves`: its validation losses by seed, at twenty times spread evenly over the
        budget.
    - `other`, `other_finals`: the second of the two best rates, and its final losses.
    - `step_ms`: milliseconds of a core for a training step, including gradients and
        evaluations; the mean over all runs.
    - `state_bytes`: bytes of state per parameter.
    - `compile_s`: the seconds to trace and compile the program for all runs.
    """

    name: str
    rates: list[float]
    finals: list[float]
    best: float
    curves: list[list[float]]
    other: float
    other_finals: list[float]
    step_ms: float
    state_bytes: float
    compile_s: float


def member(
    method: Method, workload: Workload
) -> Callable[[Any, PRNGKeyArray], Float[Array, " evaluations"]]:
    """One run, as a function of a learning rate and a key; returns validation losses."""

    def run(rate, key):
        model_key, batch_key = jr.split(key)
        opt = method.ours(schedule(method.name, rate, workload.steps))
        model = workload.model(model_key)
        arrays, static = eqx.partition((model, opt.init(model)), eqx.is_array)

        def step(arrays, i):
            model, state = eqx.combine(arrays, static)
            batch = workload.batch_of(jr.fold_in(batch_key, i))
            grads, extra = evaluate(method, workload, model, batch)
            return eqx.filter(
                opt.step(grads, state, model, **extra), eqx.is_array
            ), None

        def stretch(arrays, steps):
            arrays, _ = jax.lax.scan(step, arrays, steps)
            model, state = eqx.combine(arrays, static)
            return arrays, workload.validation_loss(opt.eval_params(state, model))

        steps = jnp.arange(workload.steps).reshape(EVALUATIONS, -1)
        return jax.lax.scan(stretch, arrays, steps)[1]

    return run


def population(method: Method, workload: Workload) -> Any:
    """Several runs in one compiled program, a function of learning rates and keys.

    The runs follow each other. Together, in a `vmap`, they are not faster on a CPU, and a
    conditional runs both of its branches: an optimizer that refreshes a preconditioner
    every tenth step then does so in each step.
    """
    run = member(method, workload)
    return lambda rates, keys: jax.lax.map(lambda x: run(*x), (rates, keys))


def measure(method: Method, workload: Workload) -> Cell:
    """All runs of the protocol."""
    rates, keys = jnp.ones(AT_ONCE), jr.split(jr.key(0), AT_ONCE)
    start = time.perf_counter()
    program = jax.jit(population(method, workload)).lower(rates, keys).compile()
    compile_s, seconds, count = time.perf_counter() - start, 0.0, 0

    def run(pairs: list[tuple[float, int]]) -> np.ndarray:
        nonlocal seconds, count
        curves = []
        for i in range(0, len(pairs), AT_ONCE):  # nine pairs, and then six
            some = pairs[i : i + AT_ONCE]
            rates = jnp.asarray([rate for rate, _ in some], jnp.float32)
            keys = jnp.stack([jr.key(seed) for _, seed in some])
            start = time.process_time()
            curves += list(np.asarray(program(rates, keys)))
            seconds, count = seconds + time.process_time() - start, count + AT_ONCE
        return np.stack(curves)

    grid = [method.default_rate * factor for factor in FACTORS]
    finals = [float(curve[-1]) for curve in run([(rate, 0) for rate in grid])]
    best_two = sorted(range(len(grid)), key=lambda i: _order(finals[i]))[:2]
    chosen = [(grid[i], seed) for i in best_two for seed in SEEDS]
    by_rate = run(chosen).reshape(2, len(SEEDS), EVALUATIONS)
    means = [_order(float(np.mean(curves[:, -1]))) for curves in by_rate]
    first, second = (0, 1) if means[0] <= means[1] else (1, 0)
    return Cell(
        method.name,
        grid,
        finals,
        grid[best_two[first]],
        by_rate[first].tolist(),
        grid[best_two[second]],
        by_rate[second][:, -1].tolist(),
        1e3 * seconds / (count * workload.steps),
        state_bytes(method, workload),
        compile_s,
    )


def loss_at_start(workload: Workload) -> float:
    """The validation loss of untrained models, the mean over the seeds."""
    loss = jax.jit(lambda key: workload.validation_loss(workload.model(key)))
    # The key of the model is the first half of the key of a run.
    return float(np.mean([loss(jr.split(jr.key(seed))[0]) for seed in SEEDS]))


def state_bytes(method: Method, workload: Workload) -> float:
    model = workload.model(jr.key(0))
    state = eqx.filter_eval_shape(method.ours(1e-3).init, model)
    params = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    return eqopt.tree.nbytes(state).total / sum(x.size for x in params)


def _order(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss
