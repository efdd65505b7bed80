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
    - `leaves`: the number of leaves to trace; a tenth of them, `few`, is compiled.
    - `rounds`: how often each contestant has its turn.
    """

    size: int
    leaves: int
    rounds: int

    @property
    def few(self) -> int:
        return max(1, self.leaves // 10)


class Measured(NamedTuple):
    """What came out.

    **Attributes:**

    - `seconds`: the time of one call.
    - `temporary`: the bytes that the compiled program allocates besides its arguments
        and results. No measurement: the compiler says so.
    - `params`: the bytes of the parameters, to compare these with.
    """

    seconds: Pair[Timing]
    temporary: Pair[int] | None = None
    params: int | None = None


Measure = Callable[[Settings], Measured]

LEAF = 1000  # the parameters of a step come in ten leaves of so many columns
CALLS = 8  # in a round, at least


def large_leaves(settings: Settings, seed: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 10)
    shape = settings.size // 10 // LEAF, LEAF
    return [jax.random.normal(key, shape) for key in keys]


def square_leaves(
    settings: Settings, seed: int, number: int = 48, side: int = 256
) -> list[jax.Array]:
    """Matrices, those of a small transformer by default."""
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
    """What `jax.jit` does before the first step of a model with many small leaves."""

    def measure(settings: Settings) -> Measured:
        # A thousand leaves take XLA ten seconds on a CPU, whoever traced them.
        if leaves is None:
            params = _small_leaves(settings.few if compiles else settings.leaves)
        else:
            params = leaves(settings, 0)

        def contestant(optimizer: Optimizer) -> Callable[[], list[float]]:
            state = optimizer.init(params)

            def sample() -> list[float]:
                # As in a fresh process: nobody traces the same thing twice in earnest.
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
    """`update` outside of `jax.jit`, as in a notebook."""

    def measure(settings: Settings) -> Measured:
        params = _small_leaves(settings.few)

        def contestant(optimizer: Optimizer) -> Callable[[], list[float]]:
            state = optimizer.init(params)

            def sample() -> list[float]:
                seconds = []
                for _ in range(1 + CALLS):  # the first one compiles the kernels
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
    """One compiled step that updates parameters and state in place.

    **Arguments:**

    - `period`: after how many steps the work repeats.
    - `leaves`: makes the parameters, and the gradients, from a seed.
    - `examples`: how many gradients there are, where each example has its own.
    - `compares`: whether both do the same.
    """

    def measure(settings: Settings) -> Measured:
        params, grads = (leaves(settings, seed) for seed in (0, 1))
        if examples is not None:
            grads = [jnp.stack([g] * examples) for g in grads]
        steppers = optimizers.map(lambda o: _Stepper.compile(o, params, grads))
        if compares:
            _check_same_work(params, steppers.map(lambda s: s.run(period)[0]))
        # The first call of a round touches pages that no later one does.
        calls = 1 + max(CALLS, 2 * period)
        samples = steppers.map(lambda s: lambda: s.run(calls)[1][1:])
        return Measured(
            race(samples, settings.rounds, period),
            steppers.map(lambda s: s.program.memory_analysis().temp_size_in_bytes),
            sum(leaf.nbytes for leaf in params),
        )

    return measure


def importing(statements: Pair[str]) -> Measure:
    """Import statements in fresh interpreters; all files have been read just before."""
    timed = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"

    def measure(settings: Settings) -> Measured:
        def contestant(statement: str) -> Callable[[], list[float]]:
            command = [sys.executable, "-c", timed.format(statement)]
            return lambda: [float(subprocess.check_output(command, env=_checked()))]

        return Measured(race(statements.map(contestant), settings.rounds))

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
    """What `jax.jit` does before the first step of a small model, in a fresh process.

    **Arguments:**

    - `optimizers`: expressions, of eqopt and of Optax.
    """

    def measure(settings: Settings) -> Measured:
        def contestant(library: str, optimizer: str) -> Callable[[], list[float]]:
            code = _COLD.format(
                library=library, optimizer=optimizer, has_step=library == "eqopt"
            )
            command = [sys.executable, "-c", code]
            return lambda: [float(subprocess.check_output(command, env=_checked()))]

        samples = Pair(
            contestant("eqopt", optimizers.eqopt), contestant("optax", optimizers.other)
        )
        return Measured(race(samples, settings.rounds))

    return measure


def _checked() -> dict[str, str]:
    """The environment, with type checks on."""
    return {k: v for k, v in os.environ.items() if k != "JAXTYPING_DISABLE"}


def _small_leaves(count: int) -> list[jax.Array]:
    return [jnp.ones((4 * (i % 10) + 4, 8)) for i in range(count)]


def _half_norm(params: list[jax.Array]) -> jax.Array:
    return sum((jnp.sum(p * p) for p in params), jnp.zeros(())) / 2


# For those who look at the loss; `obj_fn` is Optax's name for it.
_EXTRA = {"value": 1.0, "value_fn": _half_norm, "obj_fn": _half_norm}


class _Stepper(NamedTuple):
    """A compiled step, and what it starts from."""

    optimizer: Optimizer
    params: list[jax.Array]
    grads: list[jax.Array]
    program: Any

    @classmethod
    def compile(cls, optimizer: Optimizer, params: Any, grads: Any) -> "_Stepper":
        step = jax.jit(
            lambda p, s, g: optimizer.step(g, s, p, **_EXTRA), donate_argnums=(0, 1)
        )
        state = jax.eval_shape(optimizer.init, params)
        return cls(optimizer, params, grads, step.lower(params, state, grads).compile())

    def run(self, calls: int) -> tuple[list[jax.Array], list[float]]:
        """The parameters after some calls on fresh buffers, and each call's seconds."""
        params = jax.tree.map(jnp.copy, self.params)
        # Copied, because some of Optax's states are the parameters, which are donated.
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
    """Raises unless both moved all parameters by the same, but for rounding."""
    for start, ours, theirs in zip(before, after.eqopt, after.other, strict=True):
        moved = jnp.max(jnp.abs(theirs - start))
        rounding = 4 * jnp.finfo(start.dtype).eps * jnp.max(jnp.abs(start))
        if not jnp.max(jnp.abs(ours - theirs)) <= 0.01 * moved + rounding:
            raise RuntimeError("The two libraries disagree: not the same work.")
