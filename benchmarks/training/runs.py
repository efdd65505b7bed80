"""Makes training runs in either library."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib
from tests.methods import OF_ANY_ARRAY
from tests.methods.method import Method

import eqopt

from ..optimizers import evaluate
from .problems import Problem


class Run(NamedTuple):
    """The final losses in both libraries, as shares of the initial loss."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """eqopt's loss over the other; 1 if float32 cannot resolve either of them."""
        return max(self.ours, RESOLVED) / max(self.theirs, RESOLVED)


RESOLVED = 1e-6  # of the initial loss


def train(method: Method, problem: Problem, rate: float) -> Run:
    """The same training in both libraries."""
    return Run(
        _share(problem, _ours(method, problem, rate)),
        _share(problem, _theirs(method, problem, rate)),
    )


def tune(method: Method, problem: Problem, rates: Any) -> float:
    """The lowest rate with which eqopt's optimizer gets well below the required share.

    This is not the best rate, which is often at the limit of stability, where rounding
    errors decide.
    """
    shares = {rate: _share(problem, _ours(method, problem, rate)) for rate in rates}
    enough = [rate for rate, share in shares.items() if share < problem.share / 2]
    return min(enough) if enough else min(rates, key=lambda rate: _order(shares[rate]))


def _order(share: float) -> float:
    return math.inf if math.isnan(share) else share


def _share(problem: Problem, params: Any) -> float:
    loss = jax.jit(problem.mean_loss)
    return float(loss(params, problem.data) / loss(problem.params, problem.data))


# The rate is an argument of the compiled program, so that a sweep compiles only once.
_compiled: dict = {}


def _ours(method: Method, problem: Problem, rate: float) -> Any:
    @jax.jit
    def run(rate):
        opt = of_arrays(method.ours(rate))

        def step(carry, batch):
            params, state = carry
            grads, extra = evaluate(method, problem, params, batch)
            return opt.step(grads, state, params, **extra), None

        start = problem.params, opt.init(problem.params)
        (params, state), _ = jax.lax.scan(step, start, problem.batches())
        return opt.eval_params(state, params)

    run = _compiled.setdefault((method, problem.title), run)
    return run(jnp.asarray(rate))


def of_arrays(opt: Any) -> Any:
    """`opt` for a list of arrays, in which only those with two axes are matrices."""
    if isinstance(opt, OF_ANY_ARRAY) or not hasattr(opt, "weight_dimension_numbers"):
        return opt
    return eqopt.tree.set(opt, weight_dimension_numbers=eqopt.groups.layer_matrices)


def _theirs(method: Method, problem: Problem, rate: float) -> Any:
    opt = optax.with_extra_args_support(method.theirs(rate))

    def step(carry, batch):
        params, state = carry
        grads, extra = evaluate(method, problem, params, batch)
        extra |= {"obj_fn": extra.pop("value_fn")}
        updates, state = opt.update(grads, state, params, **extra)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit
    def run():
        start = problem.params, opt.init(problem.params)
        (params, state), _ = jax.lax.scan(step, start, problem.batches())
        if isinstance(state, contrib.ScheduleFreeState):
            return contrib.schedule_free_eval_params(state, params)
        return params

    return run()
