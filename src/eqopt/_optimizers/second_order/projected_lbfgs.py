"""L-BFGS between bounds: projected steps, with the inverse Hessian of free numbers."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from ..._arguments.extra import required_params
from ..._arguments.fields import static_choice
from ..._core import AbstractComposite, Call, add_updates, check_real, leafwise, widened
from ..._linesearch.arc import search_arc
from ..._linesearch.backtracking import (
    ScaleByBacktrackingLinesearch,
    ScaleByBacktrackingLinesearchState,
    state_after,
)
from ..._linesearch.line import make_line, move, stopped
from ..._trees.leaves import parameters, restrict
from ..._trees.precision import compute_dtype, widen
from ..._types import Count, Params, PyTree, Scalar, Size, State, Updates
from ..._wrappers.project import towards
from ...projections import box
from ...tree._like import scalar
from .lbfgs import ScaleByLBFGS, ScaleByLBFGSState, times_inverse


# Numbers that are closer to a bound than this, and pushed towards it, count as there.
_NEAR = 1e-6


class ProjectedLBFGSState(eqx.Module):
    r"""The last few steps, and the result of the last search.

    **Attributes:**

    - `memory`: an [`eqopt.ScaleByLBFGSState`][].
    - `search`: an [`eqopt.ScaleByBacktrackingLinesearchState`][], with the loss and its
        gradient at the new parameters. `learning_rate` is 0 if the search failed.
    - `optimality`: $\max_i |\Pi(p - \nabla f(p))_i - p_i|$ at the new parameters, a 0-d
        array. It is 0 at a minimum between the bounds, and infinite before the first
        step.
    """

    memory: ScaleByLBFGSState
    search: ScaleByBacktrackingLinesearchState
    optimality: Float[Array, ""]


class ProjectedLBFGS(AbstractComposite):
    r"""Minimises a loss that is the same in each step, with bounds on each parameter.

    !!! abstract "One step"

        $$p_t = \Pi(p_{t-1} + \eta_t u_t), \qquad
          u_{t,i} = \begin{cases}
            b_i - p_{t-1,i} & i \in A_t \\
            -(H_t^F g_t)_i & i \in F_t
          \end{cases}$$

        for each number $i$ of the parameters, where $\Pi$ puts numbers outside the
        bounds $l \le p \le u$ on the nearest bound. $A_t$ are the numbers that are at a
        bound $b_i$, or less than $\min(10^{-6}, \max_i |\Pi(p - g)_i - p_i|)$ away from
        it, and that the gradient pushes towards it. $F_t$ are all others. $H_t^F$ is
        the inverse of the Hessian of the numbers in $F_t$ alone, estimated as in
        [`eqopt.ScaleByLBFGS`][] from the components of the last steps in $F_t$. The
        step size $\eta_t$ is the first of decreasing ones, from 1, with a sufficient
        decrease of the loss; interpolation reduces it.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$.

    This is two-metric projection with L-BFGS. It is not the algorithm L-BFGS-B of Byrd,
    Lu, Nocedal and Zhu, which follows the projected gradient to a generalised Cauchy
    point first. It needs no loop over the bounds. On a dozen problems, it reaches the
    same minima as SciPy's `L-BFGS-B`, with 1.3 times the evaluations in all.

    !!! example

        ```python
        opt = eqopt.ProjectedLBFGS(lower=0.0)
        model = eqopt.projections.box(model, 0.0, None)
        state = opt.init(model)
        value_and_grad = eqopt.value_and_grad_from_state(loss_fn)

        @eqx.filter_jit
        def step(model, state):
            value, grads = value_and_grad(model, state=state)
            return opt.step(
                grads, state, model, value=value, grad=grads, value_fn=loss_fn
            )

        while eqopt.tree.get(state, "optimality") > 1e-6:
            model, state = step(model, state)
        ```

    `update` and `step` need the extra arguments `value`, `grad` and `value_fn`, as in
    [`eqopt.LBFGS`][]. The loss is only evaluated between the bounds, if the first
    parameters are. With `step`, the new parameters are between the bounds; with
    `update`, the sum of parameters and updates is, except for rounding. If no step size
    decreases the loss, the parameters stay unchanged. Then the next step forgets the
    curvature, and a second failure is final. Derivatives of the step treat the step size
    as a constant.

    **Arguments:**

    - `lower`, `upper`: the bounds, as in [`eqopt.projections.box`][]: a number, an array
        that broadcasts to each parameter, or a tree of them with the structure of the
        parameters or a prefix of it. `None`, also instead of a subtree, means no bound.
    - `memory_size`: the number of steps to remember, an integer of at least 1. Defaults
        to 10.
    - `max_linesearch_steps`: the largest number of step sizes to try, an integer of at
        least 1. Defaults to 20.

    **Raises:**

    A `ValueError` if a number of steps is not an integer of at least 1; in `init`, if
    `lower` is above `upper`, or if a bound does not fit the parameters, and a
    `TypeError` for complex parameters. The errors of [`eqopt.LBFGS`][] in `update`.

    **When to use it:** instead of [`eqopt.LBFGS`][], if parameters have bounds, such as
    rates and variances that must not be negative. For losses of mini-batches, use
    [`eqopt.Project`][] around another optimizer. It keeps 23 numbers per parameter.

    ??? cite "References"

        The projection is from the first article, L-BFGS for the free numbers from the
        survey.

        ```bibtex
        @article{bertsekas1982projected,
            author = {Bertsekas, Dimitri P.},
            title = {Projected {Newton} Methods for Optimization Problems with Simple
                     Constraints},
            journal = {SIAM Journal on Control and Optimization},
            volume = {20},
            number = {2},
            pages = {221--246},
            year = {1982},
        }

        @incollection{schmidt2012projected,
            author = {Schmidt, Mark and Kim, Dongmin and Sra, Suvrit},
            title = {Projected {Newton}-type Methods in Machine Learning},
            booktitle = {Optimization for Machine Learning},
            publisher = {MIT Press},
            year = {2012},
        }
        ```
    """

    _loads = "all"
    _descends = True

    lower: PyTree = None
    upper: PyTree = None
    memory_size: Size = static_choice(static=True, default=10)
    max_linesearch_steps: Count = 20

    def init(self, params: Params) -> ProjectedLBFGSState:
        self._projected(parameters(params))  # checks the bounds
        return ProjectedLBFGSState(
            ScaleByLBFGS(self.memory_size).init(params),
            ScaleByBacktrackingLinesearch(1, store_grad=True).init(params),
            scalar(jnp.inf, params),
        )

    def handle(self, call: Call, state: ProjectedLBFGSState) -> tuple[Any, State]:
        params = required_params(call.params)
        grads, start = widened(call.updates), restrict(params, call.updates)
        check_real(grads, params, "params")
        to_bound, is_free = self._bounds(start, grads)
        inside, memory = times_inverse(grads, state.memory, params, True, free=is_free)
        change = lambda free, r, d: jnp.where(free, -r, d.astype(r.dtype))
        direction = jtu.tree_map(change, is_free, inside, to_bound)
        line = make_line(self, direction, params, call.extra, state.search.value)
        most = jnp.asarray(self.max_linesearch_steps, jnp.int32)
        bounds = stopped((self.lower, self.upper))  # constants in its derivatives
        found = search_arc(line, lambda tree: _between(tree, *bounds), most)
        search = state_after(found, found.error <= 0, line, state.search.grad)
        new = self._projected(_moved(direction, params, search.learning_rate))
        optimality = self._optimality(new, restrict(search.grad, new))
        # The projection moves a start outside the bounds even if the search fails. Then
        # neither the loss nor its gradient are known.
        is_known = (found.error <= 0) | eqx.tree_equal(new, start)
        value, optimality = (
            jnp.where(is_known, x, jnp.inf) for x in (search.value, optimality)
        )
        search = eqx.tree_at(lambda search: search.value, search, value)
        optimality = optimality.astype(state.optimality.dtype)
        state = ProjectedLBFGSState(memory, search, optimality)
        if call.is_step:
            return eqx.combine(new, params), state
        reads = {"projected": new, "p": params}
        return leafwise(towards, call.updates, reads=reads), state

    def _projected(self, tree: PyTree) -> PyTree:
        return _between(tree, self.lower, self.upper)

    def _bounds(self, start: Params, grads: Updates) -> tuple[Updates, PyTree]:
        """The changes to the bounds that the gradients push to, and what is free."""
        real = compute_dtype(start)
        p, g = widen(start, real), widen(grads, real)
        end = lambda x, g: jnp.where(g > 0, -jnp.inf, jnp.inf).astype(x.dtype)
        far = jtu.tree_map(end, p, g)
        # A parameter at its bound has the bound's value in its own precision.
        seen = lambda bound, p: bound.astype(p.dtype).astype(bound.dtype)
        bound = jtu.tree_map(seen, self._projected(far), start)
        change = jtu.tree_map(jnp.subtract, bound, p)
        near = jnp.minimum(_NEAR, self._optimality(start, grads))
        free = lambda d, g: (jnp.abs(d) > near.astype(d.dtype)) | (g == 0)
        is_free = jtu.tree_map(free, change, g)
        held = lambda d, is_free: jnp.where(is_free, 0, d)
        return jtu.tree_map(held, change, is_free), is_free

    def _optimality(self, params: Params, grads: Updates) -> Scalar:
        real = compute_dtype(params)
        p, g = widen(params, real), widen(grads, real)
        moved = self._projected(jtu.tree_map(jnp.subtract, p, g))
        sizes = jtu.tree_map(lambda x, y: jnp.max(jnp.abs(x - y), initial=0), moved, p)
        return jnp.max(jnp.stack([jnp.zeros((), real), *jtu.tree_leaves(sizes)]))


def _between(tree: PyTree, lower: PyTree, upper: PyTree) -> PyTree:
    has_any = any(x.size for x in jtu.tree_leaves(tree))
    return box(tree, lower, upper) if has_any else tree


def _moved(direction: Updates, params: Params, step_size: Scalar) -> Params:
    updates = leafwise(move, direction, step_size=step_size)
    return restrict(add_updates(params, updates), direction)
