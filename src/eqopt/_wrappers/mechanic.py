"""Learning the learning rate during training."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments.fields import static_choice
from .._core import (
    AbstractTransformation,
    AbstractWrapper,
    Call,
    as_update,
    dot,
    equation,
    leafwise,
    result_of,
    sum_over_leaves,
)
from .._trees.leaves import parameters
from .._trees.precision import compute_dtype
from .._trees.states import check_size
from .._types import Leaf, Params, Positive, Scalar, Size, State, Updates, ZeroOrMore
from ..numerics._numerics import abs_sq, safe_sqrt
from ..tree._like import wide_zeros_like


class MechanicState(eqx.Module):
    r"""The sum of the inner updates, and the numbers that determine their factor.

    The arrays of `num_betas` numbers are at least float32.

    **Attributes:**

    - `inner_state`: the inner state.
    - `r`: the rewards, one for each $\beta$.
    - `m`: the largest $|h|$ so far, decayed by $\beta$ in each step; one for each
        $\beta$.
    - `v`: the sums of $h^2$, decayed by $\beta^2$; one for each $\beta$.
    - `s`: the factors, one for each $\beta$; the learning rate is their sum.
    - `delta`: $\Delta$, the sum of all inner updates, a tree like the parameters, in at
        least float32.
    """

    inner_state: State
    r: Float[Array, " num_betas"]
    m: Float[Array, " num_betas"]
    v: Float[Array, " num_betas"]
    s: Float[Array, " num_betas"]
    delta: Updates


@equation
def mechanic_sums(g: Leaf, delta: Leaf, p: Leaf) -> tuple[Scalar, ...]:
    return dot(delta, g), dot(delta, p), jnp.sum(abs_sq(g)), jnp.sum(abs_sq(p))


@equation(elementwise=True)
def mechanic(g, delta, *, s, growth, counts):
    # The product of the sum and the factor after the step, minus the product before it,
    # computed without cancellation.
    g = counts * g
    return s * g + growth * delta, delta + g


class Mechanic(AbstractWrapper):
    r"""Learns the factor by which to multiply the updates of an optimizer.

    $$\begin{aligned}
      \Delta_{t+1} &= \Delta_t + u_t & \Delta_1 &= 0 \\
      h_t &= \operatorname{Re} \Big\langle \Delta_t,\;
        g_t + \lambda\, \bar s_t\, \frac{\|g_t\|}{\|x_t\| + \varepsilon}\, x_t
        \Big\rangle &
      \bar s_t &= \textstyle\sum_i s_{t,i}, \quad s_1 = s_\text{init} \\
      m_t &= \max\big(\beta\, m_{t-1},\; |h_t| + \varepsilon\big) &
      v_t &= \beta^2\, v_{t-1} + h_t^2 \\
      r_t &= \beta\, r_{t-1}
        - s_t \operatorname{clip}\big(h_t, -m_{t-1}, m_{t-1}\big) &
      W_t &= \frac{s_\text{init}}{n}\, m_t + \max(0, r_t) \\
      s_{t+1} &= \frac{W_t}{\sqrt{v_t} + \varepsilon} &
      x_{t+1} &= x_1 + \bar s_{t+1}\, \Delta_{t+1}
    \end{aligned}$$

    where $u_t$ is the update of the inner optimizer, and $r$, $m$, $v$, $W$ and $s$ have
    an entry for each of the $n$ rates $\beta_i = 1 - 10^{-i}$. Scalar products and norms
    are over all leaves.

    Leave the learning rate of the inner optimizer at 1; a schedule should have a peak
    of 1. SGD, Adam and Lion are suitable. LARS and LAMB are not, because their step
    length depends on the parameters. The current factor is `state.s.sum()`.

    !!! example

        ```python
        schedule = eqopt.schedules.WarmupCosineDecay(0.0, 1.0, 100, 1000)
        opt = eqopt.Mechanic(eqopt.AdamW(schedule))
        ```

    In float32, the squares of gradient norms and of $h$ overflow above 1.8e19: then
    nothing changes but the inner state. A NaN in the gradients makes the whole state
    NaN. To skip such steps, put this inside [`eqopt.ApplyIfFinite`][]. Also put it
    inside [`eqopt.ParamEMA`][], [`eqopt.SWA`][], [`eqopt.Lookahead`][],
    [`eqopt.GPA`][], [`eqopt.EMANesterov`][], [`eqopt.OuterNesterov`][],
    [`eqopt.DiLoCo`][] and [`eqopt.ScheduleFree`][]: inside Mechanic, they would use
    updates without the factor.

    **Arguments:**

    - `inner`: the optimizer.
    - `weight_decay`: $\lambda \ge 0$. It does not decay the parameters: it lowers the
        factor if steps have made them larger. Defaults to 0.01.
    - `eps`: $\varepsilon > 0$. Defaults to 1e-8.
    - `s_init`: $s_\text{init} > 0$. Choose it well below the expected factor. Defaults
        to 1e-6.
    - `num_betas`: $n \ge 1$, an integer. Defaults to 6.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{cutkosky2023mechanic,
            author = {Cutkosky, Ashok and Defazio, Aaron and Mehta, Harsh},
            title = {Mechanic: A Learning Rate Tuner},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2023},
        }
        ```
    """

    # Differs from Optax in: the sum of the updates is stored, as in Algorithm 1 of the
    # paper, not the first parameters. Both take the memory of one tree. Optax computes
    # the sum as the distance from the first parameters divided by `sum(s) + eps`. While
    # s is about 1e-6, a parameter of 1 keeps only one digit of the sum in float32, and
    # does not move at all in bfloat16; eps shortens the sum by 1% in each step.
    #
    # Like Optax, but unlike Algorithm 1: Algorithm 1 has h instead of |h| + eps in m,
    # stores max(0, r) as r, and does not clip h. The authors' JAX code, used for the
    # experiments, has the first two differences from Algorithm 1 as well; the clipping
    # was added to it later.

    _moves_params = True
    _needs_params = True
    _stores_in_turn = True

    inner: AbstractTransformation
    weight_decay: ZeroOrMore = 0.01
    eps: Positive = 1e-8
    s_init: Positive = 1e-6
    num_betas: Size = static_choice(static=True, default=6)

    def init(self, params: Params) -> MechanicState:
        dtype = jax.dtypes.canonicalize_dtype(compute_dtype(parameters(params)))
        full = lambda value: jnp.full((self.num_betas,), value, dtype)
        return MechanicState(
            inner_state=self.inner.init(params),
            r=full(0),
            m=full(0),
            v=full(0),
            s=full(self.s_init),
            delta=wide_zeros_like(params),
        )

    def handle(self, call: Call, state: MechanicState) -> tuple[Any, State]:
        check_size(self, "num_betas", len(state.r))
        update, reads = as_update(call), {"delta": state.delta, "p": call.params}
        sums = sum_over_leaves(mechanic_sums, update.updates, reads)
        numbers, counts = self._tuned(state, *(x.astype(state.s.dtype) for x in sums))
        r, m, v, factors = numbers
        new, inner_state = update.run(self.inner, state.inner_state)
        s = jnp.sum(factors)
        growth = s - jnp.sum(state.s)
        new, delta = leafwise(
            mechanic, new, state.delta, s=s, growth=growth, counts=counts
        )
        new_state = MechanicState(inner_state, r, m, v, factors, delta)
        return result_of(call, new), new_state

    def _tuned(self, state: MechanicState, delta_g, delta_p, g_sq, p_sq):
        """The new `r`, `m`, `v` and `s`; and 0 if a square overflows, otherwise 1."""
        dtype = state.s.dtype
        numbers = self.weight_decay, self.eps, self.s_init
        weight_decay, eps, s_init = (jnp.asarray(x, dtype) for x in numbers)
        betas = jnp.asarray(1 - 0.1 ** np.arange(1, self.num_betas + 1), dtype)
        decay = weight_decay * jnp.sum(state.s) * safe_sqrt(g_sq)
        h = delta_g + decay / (safe_sqrt(p_sq) + eps) * delta_p
        m = jnp.maximum(betas * state.m, jnp.abs(h) + eps)
        v = betas**2 * state.v + h * h
        r = betas * state.r - state.s * jnp.clip(h, -state.m, state.m)
        wealth = s_init / self.num_betas * m + jnp.maximum(r, 0)
        s = wealth / (safe_sqrt(v) + eps)
        is_lost = jnp.isinf(g_sq) | jnp.isinf(h * h)
        old, new = (state.r, state.m, state.v, state.s), (r, m, v, s)
        numbers = tuple(jnp.where(is_lost, x, y) for x, y in zip(old, new, strict=True))
        return numbers, jnp.where(is_lost, 0.0, 1.0)
