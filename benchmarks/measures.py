"""The kinds of work that are measured."""

import os
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from .contestants import Optimizer, Pair
from .harness import Timing, race


class Settings(NamedTuple):
    """How much work.

    **Attributes:**

    - `size`: the number of parameters in a step.
    - `leaves`: the number of leaves to trace. A tenth of them, `few`, is compiled.
    - `rounds`: the number of turns of each contestant.
    """

    size: int
    leaves: int
    rounds: int

    @property
    def few(self) -> int:
        return max(1, self.leaves // 10)


class Measured(NamedTuple):
    """The results of a measurement.

    **Attributes:**

    - `seconds`: the time of one call.
    - `temporary`: the bytes that the compiled program allocates in addition to its
        arguments and results. The compiler reports them; they are not measured.
    - `params`: the bytes of the parameters, for comparison.
    """

    seconds: Pair[Timing]
    temporary: Pair[int] | None = None
    params: int | None = None


Measure = Callable[[Settings], Measured]

LEAF = 1000  # the parameters of a step are in ten leaves with this many columns
CALLS = 8  # the smallest number of calls in a round


def large_leaves(settings: Settings, seed: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 10)
    shape = settings.size // 10 // LEAF, LEAF
    return [jax.random.normal(key, shape) for key in keys]


def square_leaves(
    settings: Settings, seed: int, number: int = 48, side: int = 256
) -> list[jax.Array]:
    """Square matrices, by default like the matrices of a small transformer."""
    keys = jax.random.split(jax.random.key(seed), number)
    return [jax.random.normal(key, (side, side)) for key in keys]


def few_small_leaves(settings: Settings, seed: int) -> list[jax.Array]:
    del seed
    return _small_leaves(settings.few)


def tracing(
    optimizers: Pair[Optimizer],
    method: Literal["step", "update"],
    compiles: bool = False,
    leaves: Callable[[Settings, int], list[jax.Array]] | None = None,
) -> Measure:
    """Measures what `jax.jit` does before the first step with many small leaves."""

    def measure(settings: Settings) -> Measured:
        # XLA on a CPU takes ten seconds for a thousand leaves, from either library.
        if leaves is None:
            params = _small_leaves(settings.few if compiles else settings.leaves)
        else:
            params = leaves(settings, 0)

        def contestant(optimizer: Optimizer) -> Callable[[], list[float]]:
            state = optimizer.init(params)

            def sample() -> list[float]:
                # As in a fresh process: programs do not trace the same code twice.
                jax.clear_caches()
                start = perf_counter()
                program = jax.jit(lambda *args: getattr(optimizer, method)(*args))
                lowered = program.trace(params, state, params).lower()
                if compiles:
                    lowered.compile()
                return [perf_counter() - start]

            return sample

        return Measured(race(optimizers.map(contestant), settings.rounds))

    return measure


def eager(optimizers: Pair[Optimizer]) -> Measure:
    """Measures `update` outside `jax.jit`, as in a notebook."""

    def measure(settings: Settings) -> Measured:
        params = _small_leaves(settings.few)

        def contestant(optimizer: Optimizer) -> Callable[[], list[float]]:
            state = optimizer.init(params)

            def sample() -> list[float]:
                seconds = []
                for _ in range(1 + CALLS):  # the first call compiles the kernels
                    start = perf_counter()
                    jax.block_until_ready(optimizer.update(params, state, params))
                    seconds.append(perf_counter() - start)
                return seconds[1:]

            return sample

        return Measured(race(optimizers.map(contestant), settings.rounds))

    return measure


def stepping(
    optimizers: Pair[Optimizer],
    period: int = 1,
    leaves: Callable[[Settings, int], list[jax.Array]] = large_leaves,
    examples: int | None = None,
    compares: bool = True,
) -> Measure:
    """Measures one compiled step that updates parameters and state in place.

    **Arguments:**

    - `period`: the number of steps after which the work repeats.
    - `leaves`: a function that creates parameters or gradients from a seed.
    - `examples`: the number of gradients, if each example has its own gradient.
    - `compares`: whether both must do the same work.
    """

    def measure(settings: Settings) -> Measured:
        params, grads = (leaves(settings, seed) for seed in (0, 1))
        if examples is not None:
            grads = [jnp.stack([g] * examples) for g in grads]
        steppers = optimizers.map(lambda o: Stepper.compile(o, params, grads))
        if compares:
            _check_same_work(params, steppers.map(lambda s: s.run(period)[0]))
        # The first call of a round touches new pages of memory, later calls do not.
        calls = 1 + max(CALLS, 2 * period)
        samples = steppers.map(lambda s: lambda: s.run(calls)[1][1:])
        return Measured(
            race(samples, settings.rounds, period),
            steppers.map(lambda s: s.program.memory_analysis().temp_size_in_bytes),
            sum(leaf.nbytes for leaf in params),
        )

    return measure


def importing(statements: Pair[str]) -> Measure:
    """Measures imports in fresh interpreters, after the files have been read once."""
    timed = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"

    def measure(settings: Settings) -> Measured:
        commands = statements.map(timed.format)
        return Measured(race(commands.map(_in_fresh_process), settings.rounds))

    return measure


_COLD = """
import jax, jax.numpy as jnp
import {library}
from time import perf_counter

optimizer = {optimizer}
params = [jnp.ones((4 * (i % 10) + 4, 8)) for i in range(20)]
state = optimizer.init(params)

def step(params, state, grads):
    if {has_step}:
        return optimizer.step(grads, state, params)
    updates, new = optimizer.update(grads, state, params)
    return {library}.apply_updates(params, updates), new

start = perf_counter()
jax.jit(step).trace(params, state, params).lower()
print(perf_counter() - start)
"""


def tracing_cold(optimizers: Pair[str]) -> Measure:
    """Measures what `jax.jit` does before the first step, in a fresh process.

    The model is small.

    **Arguments:**

    - `optimizers`: the expressions that create them, for eqopt and for Optax.
    """

    def measure(settings: Settings) -> Measured:
        codes = Pair(
            _COLD.format(library="eqopt", optimizer=optimizers.eqopt, has_step=True),
            _COLD.format(library="optax", optimizer=optimizers.other, has_step=False),
        )
        return Measured(race(codes.map(_in_fresh_process), settings.rounds))

    return measure


def _in_fresh_process(code: str) -> Callable[[], list[float]]:
    """Runs `code`, which prints seconds, with type checks and with compiled modules.

    The first run, which compiles the modules, is not returned.
    """
    switches = "JAXTYPING_DISABLE", "PYTHONDONTWRITEBYTECODE"
    environment = {k: v for k, v in os.environ.items() if k not in switches}
    command = [sys.executable, "-c", code]
    sample = lambda: [float(subprocess.check_output(command, env=environment))]
    sample()
    return sample


def _small_leaves(count: int) -> list[jax.Array]:
    return [jnp.ones((4 * (i % 10) + 4, 8)) for i in range(count)]


def _half_norm(params: list[jax.Array]) -> jax.Array:
    return sum((jnp.sum(p * p) for p in params), jnp.zeros(())) / 2


# For optimizers that use the loss. `obj_fn` is Optax's name for the function.
_EXTRA = {"value": 1.0, "value_fn": _half_norm, "obj_fn": _half_norm}


class Stepper(NamedTuple):
    """A compiled step and its initial values."""

    optimizer: Optimizer
    params: list[jax.Array]
    grads: list[jax.Array]
    program: Any

    @classmethod
    def compile(cls, optimizer: Optimizer, params: Any, grads: Any) -> "Stepper":
        step = jax.jit(
            lambda p, s, g: optimizer.step(g, s, p, **_EXTRA), donate_argnums=(0, 1)
        )
        state = jax.eval_shape(optimizer.init, params)
        return cls(optimizer, params, grads, step.lower(params, state, grads).compile())

    def run(self, calls: int) -> tuple[list[jax.Array], list[float]]:
        """The parameters after some calls on fresh buffers, and the seconds of each."""
        params = jax.tree.map(jnp.copy, self.params)
        # Copied, because some states of Optax contain the parameters, which are donated.
        state = jax.tree.map(jnp.copy, self.optimizer.init(params))
        jax.block_until_ready(state)
        seconds = []
        for _ in range(calls):
            start = perf_counter()
            params, state = jax.block_until_ready(
                self.program(params, state, self.grads)
            )
            seconds.append(perf_counter() - start)
        return params, seconds


def _check_same_work(before: list[jax.Array], after: Pair[list[jax.Array]]) -> None:
    """Raises an error unless both moved all parameters equally, up to rounding."""
    for start, ours, theirs in zip(before, after.eqopt, after.other, strict=True):
        moved = jnp.max(jnp.abs(theirs - start))
        rounding = 4 * jnp.finfo(start.dtype).eps * jnp.max(jnp.abs(start))
        if not jnp.max(jnp.abs(ours - theirs)) <= 0.01 * moved + rounding:
            raise RuntimeError("The two libraries disagree: not the same work.")
