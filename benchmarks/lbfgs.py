"""A step of L-BFGS, with its line search."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import eqopt

from .contestants import Pair
from .harness import race
from .measures import CALLS, LEAF, Measure, Measured, Settings
from .minimise.problems import digits


# A model and its loss.
Problem = tuple[Any, Callable[[Any], Array]]
# A function of parameters and state.
Step = Callable[[Any, Any], tuple[Any, Any]]


class Method(NamedTuple):
    """The L-BFGS of one library, for a given loss."""

    init: Callable[[Any], Any]
    step: Step


def bowl(settings: Settings) -> Problem:
    """A fifth of the parameters in ten leaves, with a loss that costs almost no time."""
    keys = jax.random.split(jax.random.key(0), 10)
    shape = settings.size // 50 // LEAF or 1, LEAF
    scales = jnp.geomspace(0.1, 1.0, LEAF)

    def loss(params):
        terms = [jnp.sum(scales * jnp.square(x)) for x in params]
        return jnp.sum(jnp.stack(terms)) / 2

    return [jax.random.normal(key, shape) / 100 for key in keys], loss


def network(settings: Settings) -> Problem:
    """The network of 2,410 parameters on all of scikit-learn's digits."""
    del settings
    _, loss, start, _ = digits()
    as_array = lambda x: jnp.asarray(x, jnp.float32) if isinstance(x, np.ndarray) else x
    arrays, rest = eqx.partition(jax.tree.map(as_array, start), eqx.is_array)
    return arrays, lambda arrays: loss(eqx.combine(arrays, rest))


def ours(loss: Callable[[Any], Array]) -> Method:
    opt = eqopt.LBFGS()
    value_and_grad = eqopt.value_and_grad_from_state(loss)

    def step(params, state):
        value, grads = value_and_grad(params, state=state)
        return opt.step(grads, state, params, value=value, grad=grads, value_fn=loss)

    return Method(opt.init, step)


def optax_s(loss: Callable[[Any], Array]) -> Method:
    opt = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(params, state):
        value, grad = value_and_grad(params, state=state)
        updates, state = opt.update(
            grad, state, params, value=value, grad=grad, value_fn=loss
        )
        return optax.apply_updates(params, updates), state

    return Method(opt.init, step)


def minimising(problem: Callable[[Settings], Problem]) -> Measure:
    """Measures one compiled step with donated state, when the gradient is known."""

    def measure(settings: Settings) -> Measured:
        start, loss = problem(settings)

        def compiled(method: Method) -> Any:
            state = jax.eval_shape(method.init, start)
            step = jax.jit(method.step, donate_argnums=(0, 1))
            return step.lower(start, state).compile()

        methods = Pair(ours(loss), optax_s(loss))
        programs = methods.map(compiled)
        runs = Pair(
            *(
                lambda calls, m=m, p=p: _run(m, p, start, calls)
                for m, p in zip(methods, programs, strict=True)
            )
        )
        values = runs.map(lambda run: float(loss(run(CALLS)[0])))
        if not abs(values.eqopt - values.other) <= 1e-2 * abs(values.other):
            raise RuntimeError("The two libraries disagree: not the same work.")
        # The first call also computes the gradient.
        samples = runs.map(lambda run: lambda: run(1 + CALLS)[1][1:])
        return Measured(
            race(samples, settings.rounds),
            programs.map(lambda p: p.memory_analysis().temp_size_in_bytes),
            sum(x.nbytes for x in jax.tree.leaves(start)),
        )

    return measure


def _run(
    method: Method, program: Any, start: Any, calls: int
) -> tuple[Any, list[float]]:
    """The parameters after some steps from the start, and the seconds of each step."""
    params = jax.tree.map(jnp.copy, start)
    # Copied, because two arrays in the state of Optax may share a buffer.
    state = jax.block_until_ready(jax.tree.map(jnp.copy, method.init(params)))
    seconds = []
    for _ in range(calls):
        begin = perf_counter()
        params, state = jax.block_until_ready(program(params, state))
        seconds.append(perf_counter() - begin)
    return params, seconds
