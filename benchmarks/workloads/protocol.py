"""The protocol: which runs an optimizer has on a workload, and what is kept of them.

1. Nine learning rates, evenly spaced in their logarithms over four decades around one
   that is usual for the optimizer, each once, from seed 0. What else there is to set has
   its default.
2. The two that end with the lowest validation loss, each from the seeds 1, 2 and 3. Of
   these the better one, by its mean, is what is reported: so no run is reported by which
   something was chosen.

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

# Why some have no cosine. Those with a warm-up have a constant rate after it.
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
    """An optimizer on a workload.

    **Attributes:**

    - `name`: the optimizer's.
    - `rates`: the nine learning rates.
    - `finals`: the validation loss at the end with each, from seed 0; may be NaN.
    - `best`: the learning rate that is reported.
    - `curves`: its validation losses, by seed, at twenty times evenly over the budget.
    - `other`, `other_finals`: the other one of the best two, and how it ended.
    - `step_ms`: milliseconds of a core for a step of training, gradients and the
        evaluations included: the mean over all runs.
    - `state_bytes`: bytes of state for each parameter.
    - `compile_s`: seconds to trace and to compile the program for all runs.
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
    """One run: of the learning rate and a key, to the validation losses."""

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


def population(method: Method, workload: Workload, at_once: int = 1) -> Any:
    """Several runs in one compiled program: of learning rates and keys.

    They go one after the other, or `at_once` of them by `eqx.filter_vmap`. On a CPU that
    takes as long, and a conditional takes both of its branches: what refreshes a
    preconditioner in every tenth step does so in each.
    """
    run = member(method, workload)
    if at_once == 1:
        return lambda rates, keys: jax.lax.map(lambda x: run(*x), (rates, keys))
    # Not by itself: `jax.jit` wants a function that it can hash.
    return lambda rates, keys: eqx.filter_vmap(run)(rates, keys)


def measure(method: Method, workload: Workload, at_once: int = 1) -> Cell:
    """All runs of the protocol."""
    size = max(at_once, AT_ONCE)
    rates, keys = jnp.ones(size), jr.split(jr.key(0), size)
    start = time.perf_counter()
    program = (
        jax.jit(population(method, workload, at_once)).lower(rates, keys).compile()
    )
    compile_s, seconds, count = time.perf_counter() - start, 0.0, 0

    def run(pairs: list[tuple[float, int]]) -> np.ndarray:
        nonlocal seconds, count
        curves = []
        for i in range(0, len(pairs), size):
            # The last ones again where the program is wider than what is left.
            some = pairs[i : i + size]
            padded = some + [some[-1]] * (size - len(some))
            rates = jnp.asarray([rate for rate, _ in padded], jnp.float32)
            keys = jnp.stack([jr.key(seed) for _, seed in padded])
            start = time.process_time()
            found = np.asarray(program(rates, keys))
            seconds, count = seconds + time.process_time() - start, count + size
            curves += list(found[: len(some)])
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
    """The validation loss of a model that is not trained, the mean over the seeds."""
    loss = jax.jit(lambda key: workload.validation_loss(workload.model(key)))
    # The key of the model is the first half of the key of a run.
    return float(np.mean([loss(jr.split(jr.key(seed))[0]) for seed in SEEDS]))


def state_bytes(method: Method, workload: Workload) -> float:
    model = eqx.filter_eval_shape(workload.model, jr.key(0))
    state = eqx.filter_eval_shape(lambda m: method.ours(1e-3).init(m), model)
    size = lambda x: math.prod(x.shape)
    count = sum(map(size, jax.tree.leaves(eqx.filter(model, _is_inexact))))
    shapes = jax.tree.leaves(eqx.filter(state, lambda x: hasattr(x, "dtype")))
    return sum(size(x) * x.dtype.itemsize for x in shapes) / count


def _is_inexact(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _order(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss
