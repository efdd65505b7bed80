"""L-BFGS: the inverse of the Hessian, estimated from the last few steps."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact, Int, PyTree

from ..._arguments.checks import check_count
from ..._arguments.extra import required_params
from ..._arguments.fields import static_choice
from ..._arguments.owners import name_of
from ..._combinators.chain import Chain
from ..._core.misfits import check_real
from ..._core.reductions import inner
from ..._core.transformation import AbstractOptimizer, AbstractTransformation
from ..._linesearch.zoom import ScaleByZoomLinesearch
from ..._transforms.scale import Scale, ScaleByLearningRate
from ..._trees.leaves import align, flatten_updates, keystr, map_parameters, parameters
from ..._trees.precision import compute_dtype, widen
from ..._trees.states import check_state
from ..._types import Params, Scalar, ScalarOrSchedule, State, Updates
from ...numerics import safe_increment
from ...tree import zeros_like
from ...tree._like import wide_zeros_like


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
    """

    count: Int[Array, ""]
    params: PyTree
    updates: PyTree
    diff_params_memory: PyTree
    diff_updates_memory: PyTree
    weights_memory: Float[Array, " memory"]


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
    discarded, and the next direction is the gradient.

    Do not use it for gradients of mini-batches, because these differ by more than the
    curvature. All leaves form one vector. A complex parameter counts as two real
    parameters. Pass conjugated gradients: `grads = eqopt.tree.conj(grads)`.

    **Arguments:**

    - `memory_size`: $m \ge 1$, an integer.
    - `scale_init_precond`: whether to use $\gamma$. Otherwise, it is replaced by 1.

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

    memory_size: int = static_choice(static=True, default=10)
    scale_init_precond: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_count(self, "memory_size")

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
        )

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, ScaleByLBFGSState]:
        check_state(self, state)
        required_params("ScaleByLBFGS", params)
        leaves, treedef = flatten_updates(updates)
        places = [i for i, x in enumerate(leaves) if x is not None]
        names = "params", "updates", "diff_params_memory", "diff_updates_memory"
        memory = {
            name: align(treedef, getattr(state, name), f"state.{name}", updates)
            for name in names
        }
        for i in places:
            if memory["params"][i] is None:
                raise ValueError(
                    f"{name_of(self)}: `updates` has a value at "
                    f"`{keystr(updates, i)}`, but the state has no memory for it. Was "
                    "the parameter frozen, masked or missing in `init`? Call `init` "
                    "with the model whose gradients you pass."
                )
        check_real(self, updates, state.params, "state.params")
        of = lambda column: [column[i] for i in places]
        new, *columns, weights = _preconditioned(
            of(leaves),
            of(align(treedef, params, "params", updates)),
            *map(of, memory.values()),
            state.weights_memory,
            state.count,
            self.scale_init_precond,
        )

        def into(column, new):
            new = dict(zip(places, new, strict=True))
            return treedef.unflatten(new.get(i, x) for i, x in enumerate(column))

        memory = {
            k: into(memory[k], new) for k, new in zip(names, columns, strict=True)
        }
        count = safe_increment(state.count)
        state = ScaleByLBFGSState(count=count, weights_memory=weights, **memory)
        return into(leaves, new), state


_Leaves = list[Inexact[Array, "..."]]


@partial(jax.jit, static_argnums=8)
def _preconditioned(
    g: _Leaves,
    p: _Leaves,
    last_p: _Leaves,
    last_g: _Leaves,
    s_memory: _Leaves,
    y_memory: _Leaves,
    rho: Float[Array, " memory"],
    count: Int[Array, ""],
    scales: bool,
) -> tuple[Any, ...]:
    """The new updates, and the new state except for the count."""
    real = rho.dtype
    newest = (count - 1) % len(rho)
    s = [_difference(x, y, real) for x, y in zip(p, last_p, strict=True)]
    y = [_difference(a, b, real) for a, b in zip(g, last_g, strict=True)]
    sy, ss, yy = _inner(s, y), _inner(s, s), _inner(y, y)
    cosine = jnp.finfo(real).eps * jnp.sqrt(ss) * jnp.sqrt(yy)
    is_good = (count > 0) & (sy > cosine)
    rho = jnp.where(ss == 0, 0, rho)
    rho = rho.at[newest].set(jnp.where(is_good, 1 / jnp.where(is_good, sy, 1), 0))
    store = lambda memory, x: lax.dynamic_update_index_in_dim(
        memory, jnp.where(is_good, x, 0).astype(memory.dtype), newest, 0
    )
    s_memory, y_memory = [*map(store, s_memory, s)], [*map(store, y_memory, y)]
    at = lambda memory, i: [
        widen(lax.dynamic_index_in_dim(x, i, 0, keepdims=False), real) for x in memory
    ]
    order = (newest - jnp.arange(len(rho), dtype=newest.dtype)) % len(rho)

    def back(q, i):
        alpha = rho[i] * _inner(at(s_memory, i), q)
        return _plus(q, -alpha, at(y_memory, i)), alpha

    def forth(r, i_alpha):
        i, alpha = i_alpha
        beta = rho[i] * _inner(at(y_memory, i), r)
        return _plus(r, alpha - beta, at(s_memory, i)), None

    wide = widen(g, real)
    q, alphas = lax.scan(back, wide, order)
    if scales:
        latest = order[jnp.argmax(rho[order] > 0)]
        # To read what was just stored from memory, XLA on a CPU would copy all of it.
        before = lambda memory: _inner(at(memory, latest), at(memory, latest))
        yy = lax.cond(is_good, lambda _: yy, before, y_memory)
        gamma = _gamma(rho[latest], yy, wide)
        q = _times(gamma, q)
    r, _ = lax.scan(forth, q, (order, alphas), reverse=True)
    new = [x.astype(like.dtype) for x, like in zip(r, g, strict=True)]
    last_p = [jnp.array(x, y.dtype, copy=True) for x, y in zip(p, last_p, strict=True)]
    last_g = [jnp.array(x, y.dtype, copy=True) for x, y in zip(g, last_g, strict=True)]
    return new, last_p, last_g, s_memory, y_memory, rho


def _gamma(rho: Scalar, yy: Scalar, g: _Leaves) -> Scalar:
    """The curvature of the last step, or a factor for a first step of length up to 1."""
    is_known, length = rho > 0, jnp.sqrt(lax.stop_gradient(_inner(g, g)))
    curvature = 1 / jnp.where(is_known, rho * yy, 1)
    return jnp.where(is_known, curvature, jnp.minimum(1, 1 / length))


def _difference(new: Any, old: Any, real: Any) -> Inexact[Array, "..."]:
    return widen(new, real) - widen(old, real)


def _inner(x: _Leaves, y: _Leaves) -> Scalar:
    return sum(map(inner, x, y), jnp.zeros((), compute_dtype(x)))


def _times(scale: Scalar, x: _Leaves) -> _Leaves:
    return [scale.astype(a.dtype) * a for a in x]


def _plus(x: _Leaves, scale: Scalar, y: _Leaves) -> _Leaves:
    return [a + b for a, b in zip(x, _times(scale, y), strict=True)]


class LBFGS(AbstractOptimizer):
    r"""L-BFGS, for losses that are the same in each step, with a line search.

    $$p_t = p_{t-1} - \eta_t H_t g_t,$$

    with the step size $\eta_t$ from [`eqopt.ScaleByZoomLinesearch`][], and the inverse
    Hessian $H_t$ of [`eqopt.ScaleByLBFGS`][], which has the equations.

    It needs fewer steps than first-order optimizers, and usually one evaluation of the
    loss and its gradient for each. For losses of mini-batches, use another optimizer.

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
    - `scale_init_precond`: see [`eqopt.ScaleByLBFGS`][].
    - `linesearch`: a transformation that comes last, or `None` for no line search.

    **Raises:**

    The errors of [`eqopt.ScaleByLBFGS`][] and of the line search.

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
    memory_size: int = static_choice(static=True, default=10)
    scale_init_precond: bool = eqx.field(static=True, default=True)
    linesearch: AbstractTransformation | None = ScaleByZoomLinesearch(
        20, initial_guess_strategy="one"
    )

    @property
    def chain(self) -> Chain:
        rate = self.learning_rate
        parts = (
            self.part(ScaleByLBFGS),
            Scale(-1.0) if rate is None else ScaleByLearningRate(rate),
            self.linesearch,
        )
        return Chain(*(part for part in parts if part is not None))
