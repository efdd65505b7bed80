"""Makes training runs, and measures the bytes and the time of a step."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import eqopt

from ..contestants import Pair
from ..harness import race
from .tasks import Task
from .ways import FULL, Way


# Moments are in float32 for any dtype of the model: only `Way` determines how they are
# stored.
OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "AdamW": (eqopt.AdamW, 3e-3),
    "Lion": (eqopt.Lion, 2e-3),
    "Muon": (eqopt.Muon, 1e-2),
}


class Run(NamedTuple):
    """The losses of all batches, and the final loss on held-out data."""

    losses: list[float]
    final: float


def train(task: Task, name: str, way: Way = FULL, seed: int = 0) -> Run:
    """Trains with `name`, a key of `OPTIMIZERS`, and a learning rate with warm-up."""
    make, peak = OPTIMIZERS[name]
    rate = eqopt.schedules.WarmupCosineDecay(0.0, peak, task.steps // 10, task.steps)
    opt = way.opt(make(rate))
    model = eqopt.tree.cast(task.model(seed), way.dtype)
    state = opt.init(model)
    # Separate from the gradient, which is compiled once for all ways with the same model.
    step = eqx.filter_jit(opt.step)
    gradient = eqx.filter_jit(_GRADIENTS.setdefault(task.name, _gradient(task)))
    losses = []
    for i in range(task.steps):
        value, grads = gradient(model, task.batch(seed, i))
        model, state = step(grads, state, model)
        losses.append(value)
    full = eqopt.tree.cast(opt.full_params(state, model), jnp.float32)
    final = float(eqx.filter_jit(task.loss)(full, task.held_out))
    return Run([float(value) for value in losses], final)


_GRADIENTS: dict[str, Any] = {}


def _gradient(task: Task) -> Any:
    return eqx.filter_value_and_grad(task.loss)


class Cost(NamedTuple):
    """The cost of a step of AdamW.

    **Attributes:**

    - `params`, `state`: bytes per parameter, counted on the arrays. Parts of a parameter
        in the state count as state.
    - `temporary`: additional bytes per parameter that the compiled program takes.
    - `time`: the median time of a step, as a multiple of the time in float32 in the same
        run.
    - `lowest`, `highest`: the range of `time` over several processes.
    """

    params: float
    state: float
    temporary: float
    time: float
    lowest: float | None = None
    highest: float | None = None


LEAVES, SIZE = 10, 2**20


def cost(way: Way, rounds: int, size: int = SIZE) -> Cost:
    """The cost for ten leaves of `size` elements each."""
    mine, full = _stepping(way, size), _stepping(FULL, size)
    times = race(Pair(mine.sample, full.sample), rounds)
    total = LEAVES * size
    return Cost(
        mine.params / total,
        mine.state / total,
        mine.temporary / total,
        times.eqopt.median / times.other.median,
    )


class _Stepping(NamedTuple):
    sample: Callable[[], list[float]]
    params: int
    state: int
    temporary: int


def _stepping(way: Way, size: int) -> _Stepping:
    opt = way.opt(OPTIMIZERS["AdamW"][0](1e-3))
    keys = jax.random.split(jax.random.key(0), LEAVES)
    draw = lambda key: jax.random.normal(key, (size // 1024, 1024), way.dtype)
    params, grads = [draw(key) for key in keys], [1e-2 * draw(key) for key in keys]
    state = opt.init(params)
    arrays, static = eqx.partition(state, eqx.is_array)

    # In the order of the results: otherwise, XLA copies all of them first.
    def run(grads, params, arrays):
        params, state = opt.step(grads, eqx.combine(arrays, static), params)
        return params, eqx.filter(state, eqx.is_array)

    step = jax.jit(run, donate_argnums=(1, 2)).lower(grads, params, arrays).compile()
    of_params, of_state = (eqopt.tree.nbytes(x).total for x in (params, state))
    now = params, arrays

    def sample():
        nonlocal now
        params, arrays = now
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            params, arrays = step(grads, params, arrays)
            jax.block_until_ready((params, arrays))
            seconds.append(time.perf_counter() - start)
        now = params, arrays
        return seconds

    memory = step.memory_analysis()
    assert memory is not None
    return _Stepping(sample, of_params, of_state, memory.temp_size_in_bytes)
