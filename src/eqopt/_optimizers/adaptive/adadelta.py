"""Adadelta: steps in the units of the parameters."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Mask, Nonnegative, Params, Positive, ScalarOrSchedule, Unit
from ...numerics._numerics import abs_sq, safe_sqrt
from ...tree._like import real_full_like
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate


class ScaleByAdadeltaState(eqx.Module):
    """The mean squares, real also for complex parameters.

    **Attributes:**

    - `e_g`: the mean square of the gradients so far, a tree like the parameters.
    - `e_x`: the mean square of the updates so far, a tree like the parameters.
    """

    e_g: Nonnegative
    e_x: Nonnegative


@equation(elementwise=True)
def adadelta(g, e_g, e_x, *, rho, eps):
    e_g = rho * e_g + (1 - rho) * abs_sq(g)
    # Not the quotient times the square of the gradient, which may be zero times infinity.
    u = safe_sqrt((e_x + eps) / (e_g + eps)) * g
    return u, e_g, rho * e_x + (1 - rho) * abs_sq(u)


class ScaleByAdadelta(AbstractLeafwise):
    r"""Scales the gradients to the root mean square of the last updates.

    $$\begin{aligned}
      E[g^2]_t &= \rho\, E[g^2]_{t-1} + (1 - \rho)\, |g_t|^2 \\
      u_t &= \sqrt{\frac{E[u^2]_{t-1} + \varepsilon}{E[g^2]_t + \varepsilon}}\; g_t \\
      E[u^2]_t &= \rho\, E[u^2]_{t-1} + (1 - \rho)\, |u_t|^2
    \end{aligned}$$

    In float32, the square of a gradient above 1.8e19 overflows: its coordinate then has
    an infinite $E[g^2]$, and updates of zero.

    **Arguments:**

    - `rho`: $\rho \in [0, 1)$. Defaults to 0.9.
    - `eps`: $\varepsilon > 0$. It sets the size of the first steps, about
        $\sqrt\varepsilon$. Defaults to 1e-6.
    - `nu_dtype`: the dtype in which both means are stored. Defaults to the dtype of
        each parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{zeiler2012adadelta,
            author = {Zeiler, Matthew D.},
            title = {{ADADELTA}: An Adaptive Learning Rate Method},
            journal = {arXiv preprint arXiv:1212.5701},
            year = {2012},
        }
        ```
    """

    _stores_in_turn = True

    rho: Unit = 0.9
    eps: Positive = 1e-6  # with zero, the parameters would never move
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByAdadeltaState:
        return ScaleByAdadeltaState(
            e_g=real_full_like(params, 0, self.nu_dtype),
            e_x=real_full_like(params, 0, self.nu_dtype),
        )

    def leafwise(
        self, state: ScaleByAdadeltaState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(adadelta, state)


class Adadelta(AbstractRecipe):
    r"""Adadelta: a method without a learning rate.

    !!! abstract "One step"

        $$\begin{aligned}
          E[g^2]_t &= \rho\, E[g^2]_{t-1} + (1 - \rho)\, |g_t|^2 \\
          u_t &= \sqrt{\frac{E[u^2]_{t-1} + \varepsilon}{E[g^2]_t +
              \varepsilon}}\; g_t \\
          E[u^2]_t &= \rho\, E[u^2]_{t-1} + (1 - \rho)\, |u_t|^2
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByAdadelta`][], with
        $g_t + \lambda p_{t-1}$ instead of $g_t$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $\eta$ is
        `learning_rate` (1.0), $\rho$ is `rho` (0.9), $\varepsilon$ is `eps` (1e-6),
        $\lambda$ is `weight_decay` (0.0).

    As in `torch.optim.Adadelta`, weight decay is an $L^2$ penalty. The default,
    $\eta = 1$, is the method of the paper.

    !!! example

        ```python
        opt = eqopt.Adadelta()
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Defaults to 1.0.
    - `rho`: $\rho \in [0, 1)$. Defaults to 0.9.
    - `eps`: $\varepsilon > 0$. It sets the size of the first steps, about
        $\sqrt\varepsilon$. Defaults to 1e-6.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `nu_dtype`: the dtype in which both means are stored. Defaults to `None`, which
        means the dtype of each parameter, at least float32.

    **When to use it:** to reproduce results that used it. It needs no learning rate,
    but starts slowly, because $\varepsilon$ then sets the pace.

    ??? cite "Reference"

        ```bibtex
        @article{zeiler2012adadelta,
            author = {Zeiler, Matthew D.},
            title = {{ADADELTA}: An Adaptive Learning Rate Method},
            journal = {arXiv preprint arXiv:1212.5701},
            year = {2012},
        }
        ```
    """

    # Differs from Optax in: without a learning rate, Optax drops the minus sign.
    learning_rate: ScalarOrSchedule = 1.0
    rho: Unit = 0.9
    eps: Positive = 1e-6
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = AddDecayedWeights, ScaleByAdadelta, ScaleByLearningRate
