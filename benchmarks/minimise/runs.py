"""Minimizes the same function with eqopt, Optax and SciPy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

import eqopt

from .problems import Problem


MOST_STEPS = 500
STARTS = 41


class Run(NamedTuple):
    """The result of a run.

    **Attributes:**

    - `steps`: the number of steps, at most `MOST_STEPS`.
    - `evaluations`: how often the function and its gradient were evaluated.
    - `value`, `gradient`: the value at the end, and the largest component of the
        gradient.
    - `is_solved`: whether the gradient is small enough.
    """

    steps: int
    evaluations: int
    value: float
    gradient: float
    is_solved: bool


class Runs(NamedTuple):
    """A run of each library. There is no run of SciPy in float32."""

    eqopt: Run
    optax: Run
    scipy: Run | None

    @property
    def are_solved(self) -> bool:
        return all(run.is_solved for run in self if run is not None)


def minimise(problem: Problem, dtype: Any) -> Runs:
    """Runs all libraries on one problem, in float32 or float64."""
    return Runs(
        by_eqopt(problem, dtype),
        _run(_by_optax, problem, dtype),
        _by_scipy(problem) if dtype == jnp.float64 else None,
    )


def by_eqopt(problem: Problem, dtype: Any) -> Run:
    """Runs eqopt alone."""
    return _run(_by_eqopt, problem, dtype)


def is_small(value: Any, gradient: Any) -> Any:
    """Whether to stop: no component may exceed sqrt(eps) (1 + |f|)."""
    return gradient <= jnp.finfo(value.dtype).eps ** 0.5 * (1 + abs(value))


# The parameters, the steps, the evaluations, and whether the problem is solved.
_Out = tuple[Any, Array, Array, Array]
_Loop = Callable[[Callable[[Any], Array], Any], _Out]


def _run(loop: _Loop, problem: Problem, dtype: Any) -> Run:
    is_weight = lambda x: isinstance(x, np.ndarray)
    start = jax.tree.map(
        lambda x: jnp.asarray(x, dtype) if is_weight(x) else x, problem.start
    )
    params, steps, evaluations, is_solved = loop(problem.fn, start)
    value, grads = eqx.filter_value_and_grad(problem.fn)(params)
    return Run(
        int(steps),
        int(evaluations),
        float(value),
        float(_largest(grads)),
        bool(is_solved),
    )


@eqx.filter_jit
def _by_eqopt(fn: Callable[[Any], Array], params: Any) -> _Out:
    opt = eqopt.LBFGS()
    value_and_grad = eqopt.value_and_grad_from_state(fn)

    def step(params, state):
        value, grads = value_and_grad(params, state=state)
        return opt.step(grads, state, params, value=value, grad=grads, value_fn=fn)

    return _repeated(fn, step, params, opt.init(params))


@eqx.filter_jit
def _by_optax(fn: Callable[[Any], Array], params: Any) -> _Out:
    opt = optax.lbfgs()
    arrays, rest = eqx.partition(params, eqx.is_inexact_array)
    of_arrays = lambda arrays: fn(eqx.combine(arrays, rest))
    value_and_grad = optax.value_and_grad_from_state(of_arrays)

    def step(arrays, state):
        value, grad = value_and_grad(arrays, state=state)
        updates, state = opt.update(
            grad, state, arrays, value=value, grad=grad, value_fn=of_arrays
        )
        return optax.apply_updates(arrays, updates), state

    out = _repeated(of_arrays, step, arrays, opt.init(arrays))
    return eqx.combine(out[0], rest), *out[1:]


def _repeated(fn: Any, step: Any, params: Any, state: Any) -> _Out:
    """Takes steps until the gradient is small. The first evaluation also counts."""
    value, grads = eqx.filter_value_and_grad(fn)(params)
    dynamic, static = eqx.partition(params, eqx.is_array)

    def body(carry):
        dynamic, state, steps, evaluations, _ = carry
        params, state = step(eqx.combine(dynamic, static), state)
        search = state[-1]
        return (
            eqx.filter(params, eqx.is_array),
            state,
            steps + 1,
            evaluations + search.info.num_linesearch_steps.astype(jnp.int32),
            is_small(search.value, _largest(search.grad)),
        )

    first = dynamic, state, jnp.int32(0), jnp.int32(1), is_small(value, _largest(grads))
    go_on = lambda carry: ~carry[-1] & (carry[2] < MOST_STEPS)
    dynamic, _, *counts, is_solved = jax.lax.while_loop(go_on, body, first)
    steps, evaluations = counts
    return eqx.combine(dynamic, static), steps, evaluations, is_solved


def is_decided_by_rounding(runs: Runs) -> bool:
    """Whether both have solved it, with different numbers of evaluations."""
    are_solved = runs.eqopt.is_solved and runs.optax.is_solved
    return are_solved and runs.eqopt.evaluations != runs.optax.evaluations


def medians(problem: Problem) -> tuple[float, float]:
    """Median evaluations of eqopt and Optax from many starts that differ by 1e-10.

    On some problems, a rounding error decides whether a step is taken, which changes all
    later steps.
    """
    rng = np.random.default_rng(0)
    arrays, rest = eqx.partition(problem.start, lambda x: isinstance(x, np.ndarray))

    def moved(x):
        noise = rng.standard_normal((STARTS, *x.shape))
        return jnp.asarray(x + 1e-10 * np.maximum(np.abs(x), 1) * noise)

    starts = jax.tree.map(moved, arrays)

    def count(loop: _Loop) -> float:
        run = lambda start: loop(problem.fn, eqx.combine(start, rest))[2]
        return float(np.median(eqx.filter_vmap(run)(starts)))

    return count(_by_eqopt), count(_by_optax)


def _by_scipy(problem: Problem) -> Run:
    arrays, rest = eqx.partition(problem.start, lambda x: isinstance(x, np.ndarray))
    flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, arrays))
    last: dict[str, Any] = {}

    @jax.jit
    def value_and_grad(x):
        return jax.value_and_grad(lambda x: problem.fn(eqx.combine(unravel(x), rest)))(
            x
        )

    def fn(x):
        value, grad = map(np.asarray, value_and_grad(x))
        last[x.tobytes()] = value, np.max(np.abs(grad))
        return float(value), grad

    def stop(intermediate_result):
        if is_small(*last[intermediate_result.x.tobytes()]):
            raise StopIteration

    found = scipy.optimize.minimize(
        fn,
        np.asarray(flat),
        jac=True,
        method="L-BFGS-B",
        callback=stop,
        options={
            "maxcor": 10,
            "maxiter": MOST_STEPS,
            "maxfun": 20 * MOST_STEPS,
            "ftol": 0,
            "gtol": 0,
        },
    )
    value, gradient = last[found.x.tobytes()]
    return Run(
        int(found.nit),
        int(found.nfev),
        float(value),
        float(gradient),
        bool(is_small(value, gradient)),
    )


def _largest(grads: Any) -> Array:
    leaves = jax.tree.leaves(eqx.filter(grads, eqx.is_inexact_array))
    return jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in leaves]))
