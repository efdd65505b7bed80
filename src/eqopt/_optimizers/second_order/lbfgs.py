"""L-BFGS: the inverse of the Hessian, estimated from the last few steps."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact, Int

from ..._arguments.extra import required_params
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation, check_real, inner
from ..._linesearch.zoom import ScaleByZoomLinesearch
from ..._transforms.scale import Scale, ScaleByLearningRate
from ..._trees.leaves import align, flatten_updates, map_parameters, parameters
from ..._trees.precision import compute_dtype, widen
from ..._trees.states import check_size, check_state
from ..._types import (
    Params,
    PerLeaf,
    PyTree,
    Scalar,
    ScalarOrSchedule,
    Size,
    State,
    Updates,
)
from ..._wrappers.averages.copies import check_kept
from ...numerics._numerics import safe_increment, safe_sqrt
from ...tree._like import wide_zeros_like, zeros_like


class ScaleByLBFGSState(eqx.Module):
    """The last few steps.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `params`, `updates`: the parameters and updates of the last step.
    - `diff_params_memory`, `diff_updates_memory`: the differences $s_i$ and $y_i$ of
        the last `memory_size` steps in at least float32, stacked along a new first
        axis. The difference of step $i$ has the index $i$ modulo `memory_size`.
    - `weights_memory`: $1 / \\langle s_i, y_i \\rangle$, or 0 for a pair that is
        ignored.
    - `trained`: whether each parameter had an update in the last step, 0-d bool arrays.
    """

    count: Int[Array, ""]
    params: PyTree
    updates: PyTree
    diff_params_memory: PerLeaf
    diff_updates_memory: PerLeaf
    weights_memory: Float[Array, " memory"]
    trained: PerLeaf


def times_inverse(updates, state, params, scales, free: PyTree | None = None):
    """The updates times the inverse of the Hessian, and the state with one more pair.

    `free` is a tree of bools like the updates, for the inverse of a part of the Hessian:
    with the rows and columns of the numbers that it selects. All others become zero.
    """
    leaves, treedef = flatten_updates(updates)
    places = [i for i, x in enumerate(leaves) if x is not None]
    names = "params", "updates", "diff_params_memory", "diff_updates_memory"
    memory = {
        name: align(treedef, getattr(state, name), f"state.{name}", updates)
        for name in names
    }
    check_kept("params", state.params, updates)
    check_real(updates, state.params, "state.params")
    of = lambda column: [column[i] for i in places]
    last_trained, flags = jax.tree.flatten(state.trained)
    parts = align(treedef, state.trained, "state.trained", updates)
    trained = [
        g is not None
        for g, part in zip(leaves, parts, strict=True)
        for _ in jax.tree.leaves(part)
    ]
    new, *columns, weights, trained = _preconditioned(
        of(leaves),
        of(align(treedef, params, "params", updates)),
        *map(of, memory.values()),
        state.weights_memory,
        state.count,
        last_trained,
        np.array(trained, bool),
        scales,
        None if free is None else of(treedef.flatten_up_to(free)),
    )

    def into(column, new):
        new = dict(zip(places, new, strict=True))
        return treedef.unflatten(new.get(i, x) for i, x in enumerate(column))

    memory = {k: into(memory[k], new) for k, new in zip(names, columns, strict=True)}
    count = safe_increment(state.count)
    memory["trained"] = flags.unflatten(trained)
    state = type(state)(count=count, weights_memory=weights, **memory)
    return into(leaves, new), state


_Leaves = list[Inexact[Array, "..."]]


@partial(jax.jit, static_argnums=10)
def _preconditioned(
    g: _Leaves,
    p: _Leaves,
    last_p: _Leaves,
    last_g: _Leaves,
    s_memory: _Leaves,
    y_memory: _Leaves,
    rho: Float[Array, " memory"],
    count: Int[Array, ""],
    last_trained: list[Bool[Array, ""]],
    trained: Bool[np.ndarray, " leaves"],
    scales: bool,
    free: list[Any] | None,
) -> tuple[Any, ...]:
    """The new updates, and the new state except for the count."""
    real, was_trained = rho.dtype, jnp.array(last_trained, bool)
    newest = (count - 1) % len(rho)
    s = [_difference(x, y, real) for x, y in zip(p, last_p, strict=True)]
    y = [_difference(a, b, real) for a, b in zip(g, last_g, strict=True)]
    sy, ss, yy = _inner(s, y), _inner(s, s), _inner(y, y)
    cosine = jnp.finfo(real).eps * jnp.sqrt(ss) * jnp.sqrt(yy)
    # All leaves of a pair must be from the same steps. Before the first one, none is
    # trained.
    has_changed = jnp.any(trained != was_trained)
    is_good = (sy > cosine) & ~has_changed
    rho = jnp.where((ss == 0) | has_changed, 0, rho)
    rho = rho.at[newest].set(jnp.where(is_good, 1 / jnp.where(is_good, sy, 1), 0))
    store = lambda memory, x: lax.dynamic_update_index_in_dim(
        memory, jnp.where(is_good, x, 0).astype(memory.dtype), newest, 0
    )
    s_memory, y_memory = [*map(store, s_memory, s)], [*map(store, y_memory, y)]
    at = lambda memory, i: [
        widen(lax.dynamic_index_in_dim(x, i, 0, keepdims=False), real) for x in memory
    ]
    order = (newest - jnp.arange(len(rho), dtype=newest.dtype)) % len(rho)
    wide, weights = widen(g, real), rho
    if free is not None:
        whole, wide = at, _selected(free, wide)
        at = lambda memory, i: _selected(free, whole(memory, i))
        of_part = lambda i: _weight(rho[i], at(s_memory, i), at(y_memory, i))
        weights = lax.map(of_part, jnp.arange(len(rho)))

    def back(q, i):
        alpha = weights[i] * _inner(at(s_memory, i), q)
        return _plus(q, -alpha, at(y_memory, i)), alpha

    def forth(r, i_alpha):
        i, alpha = i_alpha
        beta = weights[i] * _inner(at(y_memory, i), r)
        return _plus(r, alpha - beta, at(s_memory, i)), None

    q, alphas = lax.scan(back, wide, order)
    if scales:
        latest = order[jnp.argmax(weights[order] > 0)]
        # To read what was just stored from memory, XLA on a CPU would copy all of it.
        before = lambda memory: _inner(at(memory, latest), at(memory, latest))
        if free is None:
            yy = lax.cond(is_good, lambda _: yy, before, y_memory)
        else:
            yy = before(y_memory)
        gamma = _gamma(weights[latest], yy, wide)
        q = _times(gamma, q)
    r, _ = lax.scan(forth, q, (order, alphas), reverse=True)
    new = [x.astype(like.dtype) for x, like in zip(r, g, strict=True)]
    last_p = [jnp.array(x, y.dtype, copy=True) for x, y in zip(p, last_p, strict=True)]
    last_g = [jnp.array(x, y.dtype, copy=True) for x, y in zip(g, last_g, strict=True)]
    # Computed, because a program that returns a constant copies it.
    now = jnp.unstack(jnp.where(has_changed, trained, was_trained))
    return new, last_p, last_g, s_memory, y_memory, rho, now


def _selected(free: list[Any], x: _Leaves) -> _Leaves:
    return [jnp.where(is_free, a, 0) for is_free, a in zip(free, x, strict=True)]


def _weight(rho: Scalar, s: _Leaves, y: _Leaves) -> Scalar:
    """The weight of a pair in a part of the Hessian, or 0 if it is ignored."""
    sy, size = _inner(s, y), jnp.sqrt(_inner(s, s)) * jnp.sqrt(_inner(y, y))
    is_good = (rho > 0) & (sy > jnp.finfo(rho.dtype).eps * size)
    return jnp.where(is_good, 1 / jnp.where(is_good, sy, 1), 0)


def _gamma(rho: Scalar, yy: Scalar, g: _Leaves) -> Scalar:
    """The curvature of the last step, or a factor for a first step of length up to 1."""
    is_known, length = rho > 0, safe_sqrt(_inner(g, g))
    curvature = 1 / jnp.where(is_known, rho * yy, 1)
    return jnp.where(is_known, curvature, 1 / jnp.maximum(1, length))


def _difference(new: Any, old: Any, real: Any) -> Inexact[Array, "..."]:
    return widen(new, real) - widen(old, real)


def _inner(x: _Leaves, y: _Leaves) -> Scalar:
    return sum(map(inner, x, y), jnp.zeros((), compute_dtype(x)))


def _times(scale: Scalar, x: _Leaves) -> _Leaves:
    return [scale.astype(a.dtype) * a for a in x]


def _plus(x: _Leaves, scale: Scalar, y: _Leaves) -> _Leaves:
    return [a + b for a, b in zip(x, _times(scale, y), strict=True)]


class ScaleByLBFGS(AbstractTransformation):
    r"""Multiplies the updates by an estimate of the inverse of the Hessian.

    With the differences of the last parameters and gradients, $s_i = p_{i+1} - p_i$ and
    $y_i = g_{i+1} - g_i$, the estimate is $H_t$, where

    $$\begin{aligned}
      H_{i+1} &= V_i^\top H_i V_i + \rho_i s_i s_i^\top, \qquad
        V_i = I - \rho_i y_i s_i^\top, \quad \rho_i = 1 / \langle s_i, y_i \rangle, \\
      H_{t-m} &= \gamma I, \qquad
        \gamma = \langle s_{t-1}, y_{t-1} \rangle / |y_{t-1}|^2,
    \end{aligned}$$

    for the last $m$ steps. Before the first of these, $\gamma = \min(1, 1 / |g|)$.

    Computing $u = H_t g$ takes $4 m$ passes over arrays of the size of the parameters.
    The state has $2 m + 2$ such arrays.

    Only pairs with $\langle s_i, y_i \rangle > \varepsilon\, |s_i| |y_i|$ count, with
    the rounding error $\varepsilon$: others would make $H$ infinite or negative. If the
    parameters have not moved, for example after a failed line search, all pairs are
    discarded, and the next direction is the gradient. The same happens if a leaf is
    frozen or unfrozen: if it has an update in this step, but had none in the last, or the
    other way round.

    Do not use it for gradients of mini-batches, because these differ by more than the
    curvature. All leaves form one vector. A complex parameter counts as two real
    parameters. Pass conjugated gradients: `grads = eqopt.tree.conj(grads)`.

    **Arguments:**

    - `memory_size`: $m \ge 1$, an integer. Defaults to 10.
    - `scale_init_precond`: whether to use $\gamma$. Otherwise, it is replaced by 1.
        Defaults to `True`.

    **Raises:**

    A `ValueError` if `memory_size` is not an integer of at least 1, and in `update` if
    `params` is missing, or if there is an update for a leaf that was not in `init`.

    ??? cite "Reference"

        ```bibtex
        @article{liu1989limited,
            author = {Liu, Dong C. and Nocedal, Jorge},
            title = {On the Limited Memory {BFGS} Method for Large Scale Optimization},
            journal = {Mathematical Programming},
            volume = {45},
            pages = {503--528},
            year = {1989},
        }
        ```
    """

    memory_size: Size = static_choice(static=True, default=10)
    scale_init_precond: bool = eqx.field(static=True, default=True)

    def init(self, params: Params) -> ScaleByLBFGSState:
        # A stack of arrays that are all sharded like the parameter.
        stacked = lambda x: jnp.stack([x] * self.memory_size)
        return ScaleByLBFGSState(
            jnp.zeros((), jnp.int32),
            zeros_like(params),
            zeros_like(params),
            map_parameters(stacked, wide_zeros_like(params)),
            map_parameters(stacked, wide_zeros_like(params)),
            jnp.zeros(self.memory_size, compute_dtype(parameters(params))),
            map_parameters(lambda x: jnp.zeros((), bool), parameters(params)),
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        check_size(self, "memory_size", len(state.weights_memory))
        params = required_params(params)
        return times_inverse(updates, state, params, self.scale_init_precond)


class LBFGS(AbstractOptimizer):
    r"""L-BFGS, for losses that are the same in each step, with a line search.

    !!! abstract "One step"

        With the differences of the last parameters and gradients, $s_i = p_{i+1} - p_i$
        and $y_i = g_{i+1} - g_i$, the estimate is $H_t$, where

        $$\begin{aligned}
          H_{i+1} &= V_i^\top H_i V_i + \rho_i s_i s_i^\top, \qquad
            V_i = I - \rho_i y_i s_i^\top, \quad \rho_i = 1 / \langle s_i, y_i \rangle,
                \\
          H_{t-m} &= \gamma I, \qquad
            \gamma = \langle s_{t-1}, y_{t-1} \rangle / |y_{t-1}|^2,
        \end{aligned}$$

        for the last $m$ steps. Before the first of these, $\gamma = \min(1, 1 / |g|)$.

        $$p_t = p_{t-1} - \eta_t H_t g_t,$$

        with the step size $\eta_t$ from [`eqopt.ScaleByZoomLinesearch`][], and the
        inverse Hessian $H_t$ of [`eqopt.ScaleByLBFGS`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $m$ is `memory_size`
        (10).

    It needs fewer steps than first-order optimizers, and usually one evaluation of the
    loss and its gradient for each. For losses of mini-batches, use another optimizer.
    Derivatives of the step treat the step size of the line search as a constant.

    For complex parameters, pass conjugated gradients, both as `grads` and as `grad`.

    !!! example

        ```python
        opt = eqopt.LBFGS()
        state = opt.init(model)
        value_and_grad = eqopt.value_and_grad_from_state(loss_fn)

        @eqx.filter_jit
        def train_step(model, state):
            value, grads = value_and_grad(model, state=state)
            return opt.step(
                grads, state, model, value=value, grad=grads, value_fn=loss_fn
            )
        ```

    **Arguments:**

    - `learning_rate`: a factor before the line search, a number, a 0-d array or a
        schedule. Defaults to `None`, which means 1.
    - `memory_size`: $m$, the number of steps to remember, an integer of at least 1.
        Defaults to 10.
    - `scale_init_precond`: whether to use $\gamma$. Otherwise, it is replaced by 1.
        Defaults to `True`.
    - `linesearch`: a transformation that comes last, or `None` for no line search.
        Defaults to `eqopt.ScaleByZoomLinesearch(20, initial_guess_strategy="one")`.

    **Raises:**

    The errors of [`eqopt.ScaleByLBFGS`][] and of the line search.

    **When to use it:** for full batches and small or medium models, if you need the
    minimum to many digits: physics-informed networks, logistic regression, the last
    part of a fit that Adam began. It keeps 23 numbers per parameter. Do not use it for
    mini-batches.

    ??? cite "Reference"

        ```bibtex
        @article{liu1989limited,
            author = {Liu, Dong C. and Nocedal, Jorge},
            title = {On the Limited Memory {BFGS} Method for Large Scale Optimization},
            journal = {Mathematical Programming},
            volume = {45},
            pages = {503--528},
            year = {1989},
        }
        ```
    """

    learning_rate: ScalarOrSchedule | None = None
    memory_size: Size = static_choice(static=True, default=10)
    scale_init_precond: bool = eqx.field(static=True, default=True)
    linesearch: AbstractTransformation | None = ScaleByZoomLinesearch(
        20, initial_guess_strategy="one"
    )

    @property
    def chain(self) -> Chain:
        rate = self.learning_rate
        descend = Scale(-1.0) if rate is None else ScaleByLearningRate(rate)
        search = () if self.linesearch is None else (self.linesearch,)
        return Chain(self.part(ScaleByLBFGS), descend, *search)
