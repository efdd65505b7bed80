"""Optimizers that run in the loop of Optimistix."""

from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float, Int

from ..._arguments.checks import check_fields
from ..._core import AbstractTransformation, apply_updates
from ..._linesearch.value_and_grad import searches_in
from ..._types import Interval, PyTree, RealScalarLike, State, Updates
from ...tree import conj


class MinimiserState(eqx.Module):
    """The state of the loop.

    **Attributes:**

    - `step`: the number of steps taken so far, a 0-d integer array.
    - `f`: the value at the second-to-last point, a 0-d real array.
    - `opt_state`: the state of the optimizer.
    - `terminate`: whether the last step was small enough to stop, a 0-d bool array.
    """

    step: Int[Array, ""]
    f: Float[Array, ""]
    opt_state: State
    terminate: Bool[Array, ""]


class Minimiser(optx.AbstractMinimiser[PyTree, PyTree, MinimiserState]):
    r"""Runs an eqopt optimizer in `optimistix.minimise`, until its steps are small.

    !!! example

        ```python
        import optimistix
        from eqopt.interop.optimistix import Minimiser

        solver = Minimiser(eqopt.Adam(1e-1), rtol=1e-6, atol=1e-6)
        solution = optimistix.minimise(fn, solver, y0, max_steps=10_000)
        ```

    It stops when both the point and the value have changed by less than `atol` plus
    `rtol` times their size in one step, like `optimistix.OptaxMinimiser`. A step that
    does not move, such as most steps of [`eqopt.MultiSteps`][], does not stop it,
    unless the gradient is zero or a line search has failed. Changes by rounding, of at
    most $2\epsilon$ relative to the size, are within any tolerance, also within
    `rtol=0` and `atol=0`; $\epsilon$ is 1.2e-7 in float32.

    The optimizer gets the extra arguments `value`, `grad`, `value_fn` and `grad_fn`.
    The solution is the result of `eval_params`, for example the average of
    [`eqopt.ScheduleFree`][].

    Optimistix converts everything in `y0` to arrays. So split a model with
    `params, rest = eqx.partition(model, eqx.is_inexact_array)`, pass `params`, and
    combine both in `fn`.

    **Arguments:**

    - `opt`: any [`eqopt.AbstractTransformation`][] that descends.
    - `rtol`, `atol`: the relative and the absolute tolerance, numbers or 0-d arrays of at
        least 0.
    - `norm`: the norm of the change relative to the tolerance: a function of a tree
        that returns a 0-d array. Defaults to `optimistix.max_norm`.
    - `verbose`: whether to print each step; or a function to call in each step, with
        the keyword arguments `num_steps`, `loss_this_step` and `y`, each a pair of a
        name and a value. Defaults to `False`.

    **Raises:**

    A `TypeError` if `opt` is not an eqopt transformation; a `ValueError` if a tolerance
    is negative.
    """

    opt: AbstractTransformation
    # Optimistix declares `float`, but also accepts arrays.
    rtol: Annotated[RealScalarLike, Interval(0)]  # type: ignore
    atol: Annotated[RealScalarLike, Interval(0)]  # type: ignore
    norm: Callable[[PyTree], Any]
    verbose: bool | Callable[..., Any] = eqx.field(static=True)

    # Type checkers see `rtol` and `atol` of the base class before `opt`.
    def __init__(
        self,
        opt: AbstractTransformation,
        rtol: RealScalarLike,
        atol: RealScalarLike,
        norm: Callable[[PyTree], Any] = optx.max_norm,
        verbose: bool | Callable[..., Any] = False,
    ):
        self.opt, self.norm, self.verbose = opt, norm, verbose
        self.rtol, self.atol = rtol, atol  # type: ignore
        check_fields(self)

    # The types of these arguments are as in Optimistix.

    def init(self, fn, y, args, options, f_struct, aux_struct, tags) -> MinimiserState:
        return MinimiserState(
            step=jnp.zeros((), jnp.int32),
            f=jnp.array(jnp.finfo(f_struct.dtype).max, f_struct.dtype),
            opt_state=self.opt.init(y),
            terminate=jnp.array(False),
        )

    def step(self, fn, y, args, options, state, tags):
        value_fn = lambda y: fn(y, args)[0]
        (f, aux), grads = eqx.filter_value_and_grad(fn, has_aux=True)(y, args)
        grads = conj(grads)  # the direction of ascent for complex parameters
        self._report(
            num_steps=("step", state.step), loss_this_step=("loss", f), y=("y", y)
        )
        updates, opt_state = self.opt.update(
            grads,
            state.opt_state,
            y,
            value=f,
            grad=grads,
            value_fn=value_fn,
            grad_fn=lambda y: conj(eqx.filter_grad(value_fn)(y)),
        )
        # Whether this step counts for convergence: it does if it moved, if the gradient
        # is zero, or if a line search failed.
        counts = _any_nonzero(updates) | ~_any_nonzero(grads)
        for search in searches_in(opt_state):
            counts |= search.learning_rate == 0
        is_small = self._is_small(y, updates) & self._is_small(f, f - state.f)
        new_state = MinimiserState(
            step=state.step + 1,
            f=jnp.where(counts, f, state.f),
            opt_state=opt_state,
            terminate=is_small & counts,
        )
        return apply_updates(y, updates), new_state, aux

    def terminate(self, fn, y, args, options, state, tags):
        return state.terminate, optx.RESULTS.successful

    def postprocess(self, fn, y, aux, args, options, state, tags, result):
        return self.opt.eval_params(state.opt_state, y), aux, {}

    def _is_small(self, x: PyTree, change: PyTree) -> Bool[Array, ""]:
        """Whether `change` is within the tolerance: the Cauchy criterion."""

        def ratio(x: Array, change: Array) -> Array:
            size = jnp.abs(x)
            rtol, atol = (jnp.asarray(t, size.dtype) for t in (self.rtol, self.atol))
            # No step can do better than rounding.
            rtol = jnp.maximum(rtol, 2 * jnp.finfo(size.dtype).eps)
            change = jnp.abs(change)
            return jnp.where(change == 0, 0, change / (atol + rtol * size))

        return self.norm(jax.tree.map(ratio, x, change)) < 1

    def _report(self, **values: tuple[str, Any]) -> None:
        if callable(self.verbose):
            self.verbose(**values)
        elif self.verbose:
            line = ", ".join(f"{name}: {{}}" for name, _ in values.values())
            jax.debug.print(line, *(value for _, value in values.values()))


def _any_nonzero(tree: Updates) -> Bool[Array, ""]:
    """Whether any number in it differs from zero; NaN does."""
    flags = [jnp.any(x != 0) for x in jax.tree.leaves(tree)]
    return jnp.any(jnp.stack(flags)) if flags else jnp.array(False)
