"""ADOPT: Adam that normalizes before it averages."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.clip import clip
from ..._transforms.scale import ScaleByLearningRate, at
from ..._typecheck import checked
from ..._types import Params, Scalar, ScalarOrSchedule, Unit, ZeroOrMore
from ...numerics._numerics import abs_sq, safe_sqrt
from ..moments import AbstractMomentsState, counted, init_moments, or_tiny
from ..recipe import AbstractRecipe


class ScaleByADOPTState(AbstractMomentsState):
    """The moments so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the mean of the normalized gradients, a tree like the parameters.
    - `nu`: the second moment of the gradients, real also for complex parameters.
    """


@equation(elementwise=True)
def adopt(g, mu, nu, *, b1, b2, eps, clip_value, is_first, nesterov):
    scale = jnp.where(is_first, 1, jnp.maximum(safe_sqrt(nu), or_tiny(eps)))
    normalized = g / scale  # of the gradients before
    if clip_value is not None:
        normalized = clip(normalized, max_delta=clip_value)
    average = lambda mu: jnp.where(is_first, mu, (1 - b1) * normalized + b1 * mu)
    mu = average(mu)
    nu = jnp.where(is_first, abs_sq(g), (1 - b2) * abs_sq(g) + b2 * nu)
    return (average(mu) if nesterov else mu), mu, nu


@checked  # a default, so it is the same function from the start
def fourth_root(count: Int[Array, ""]) -> Scalar:
    """$t^{1/4}$, the bound that the paper proposes."""
    return jnp.asarray(count, float) ** 0.25


class ScaleByADOPT(AbstractLeafwise):
    r"""The mean of gradients, each divided by the root of the earlier squares.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)
        \operatorname{clip}\Big(\frac{g_t}{\max(\sqrt{\nu_{t-1}}, \varepsilon)},
        c_{t-1}\Big) &
      u_t &= \mu_t \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2
    \end{aligned}$$

    for $t \ge 2$. The first step only initialises the second moment: $\nu_1 = |g_1|^2$,
    and the updates are zero.

    With `nesterov`, $u_t$ is $\mu_t$ averaged once more with the incoming value.

    Because $\nu_{t-1}$ does not depend on $g_t$, this converges for any $\beta_2$, unlike
    Adam.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.9999.
    - `eps`: $\varepsilon \ge 0$, a lower bound of the divisor. Defaults to 1e-6.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `use_clipping`: whether to clip the values before they are averaged (real and
        imaginary parts separately). Without it, a gradient that is small at first and
        large later can cause a huge step. Defaults to `True`.
    - `clip_value_fn`: $c_t$, a function of the number of steps taken so far. Defaults to
        $t^{1/4}$.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to the dtype of each
        parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{taniguchi2024adopt,
            author = {Taniguchi, Shohei and Harada, Keno and Minegishi, Gouki and
                      Oshima, Yuta and Jeong, Seong Cheol and Nagahara, Go and
                      Iiyama, Tomoshi and Suzuki, Masahiro and Iwasawa, Yusuke and
                      Matsuo, Yutaka},
            title = {{ADOPT}: Modified {A}dam Can Converge with Any $\beta_2$ with the
                     Optimal Rate},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2024},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.9999
    eps: ZeroOrMore = 1e-6
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = False
    use_clipping: bool = True
    clip_value_fn: Callable[[Int[Array, ""]], Any] = fourth_root
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByADOPTState:
        return init_moments(self, ScaleByADOPTState, params)

    def leafwise(
        self, state: ScaleByADOPTState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        clip_value = None
        if self.use_clipping:
            clip_value = jnp.asarray(at(self, "clip_value_fn", state.count), float)
        return counted(
            self, adopt, state, clip_value=clip_value, is_first=state.count == 0
        )


class ADOPT(AbstractRecipe):
    r"""ADOPT: Adam that converges for any decay of its second moment.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)
            \operatorname{clip}\Big(\frac{g_t}{\max(\sqrt{\nu_{t-1}}, \varepsilon)},
            c_{t-1}\Big) &
          u_t &= \mu_t \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2
        \end{aligned}$$

        for $t \ge 2$. The first step only initialises the second moment:
        $\nu_1 = |g_1|^2$, and the updates are zero.

        With `nesterov`, $u_t$ is $\mu_t$ averaged once more with the incoming value.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByADOPT`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9), $\beta_2$ is
        `b2` (0.9999), $\varepsilon$ is `eps` (1e-6), $c_t$ is `clip_value_fn`. By
        default, `nesterov` is `False`.

    The first step does not change the parameters.

    !!! example

        ```python
        opt = eqopt.ADOPT(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.9999.
    - `eps`: $\varepsilon \ge 0$, a lower bound of the divisor. Defaults to 1e-6.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `False`.
    - `use_clipping`: whether to clip the values before they are averaged (real and
        imaginary parts separately). Without it, a gradient that is small at first and
        large later can cause a huge step. Defaults to `True`.
    - `clip_value_fn`: $c_t$, a function of the number of steps taken so far. Defaults
        to $t^{1/4}$.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.

    **When to use it:** if Adam diverges or is sensitive to $\beta_2$, as with small
    batches and rare, large gradients.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{taniguchi2024adopt,
            author = {Taniguchi, Shohei and Harada, Keno and Minegishi, Gouki and
                      Oshima, Yuta and Jeong, Seong Cheol and Nagahara, Go and
                      Iiyama, Tomoshi and Suzuki, Masahiro and Iwasawa, Yusuke and
                      Matsuo, Yutaka},
            title = {{ADOPT}: Modified {A}dam Can Converge with Any $\beta_2$ with the
                     Optimal Rate},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2024},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.9999
    eps: ZeroOrMore = 1e-6
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = False
    use_clipping: bool = True
    clip_value_fn: Callable[[Int[Array, ""]], Any] = fourth_root
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByADOPT, ScaleByLearningRate
