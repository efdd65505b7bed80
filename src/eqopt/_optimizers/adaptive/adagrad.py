"""Adagrad: gradients over the root of the sum of all their squares."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from ..._core import AbstractLeafwise, Leafwise, equation
from ..._types import Nonnegative, Params, ScalarOrSchedule, ZeroOrMore
from ...numerics._numerics import abs_sq
from ...tree._like import real_full_like
from ..recipe import AbstractRecipe, ScaleByLearningRate
from .rmsprop import over_root


class ScaleByRSSState(eqx.Module):
    """`sum_of_squares`: over all gradients so far, a real tree like the parameters."""

    sum_of_squares: Nonnegative


@equation(elementwise=True)
def rss(g, sum_of_squares, *, eps, eps_in_sqrt):
    sum_of_squares = sum_of_squares + abs_sq(g)
    return over_root(g, sum_of_squares, eps, eps_in_sqrt), sum_of_squares


class ScaleByRSS(AbstractLeafwise):
    r"""Divides the gradients by the root of the sum of all their squares.

    $$G_t = G_{t-1} + |g_t|^2, \qquad u_t = \frac{g_t}{\sqrt{G_t + \varepsilon}}.$$

    Without `eps_in_sqrt`, $u_t = g_t / (\sqrt{G_t} + \varepsilon)$.

    **Arguments:**

    - `initial_accumulator_value`: $G_0 \ge 0$ in every coordinate. Defaults to 0.1.
    - `eps`: $\varepsilon \ge 0$. It may be 0, because zero divided by zero is zero
        here. Defaults to 1e-7.
    - `nu_dtype`: the dtype in which $G$ is stored. Defaults to the dtype of each
        parameter, at least float32. In half precision, the sum would soon stop growing.
    - `eps_in_sqrt`: whether $\varepsilon$ is inside the root. Defaults to `True`.

    **Raises:**

    A `ValueError` if a hyperparameter is negative.

    ??? cite "Reference"

        ```bibtex
        @article{duchi2011adaptive,
            author = {Duchi, John and Hazan, Elad and Singer, Yoram},
            title = {Adaptive Subgradient Methods for Online Learning and Stochastic
                     Optimization},
            journal = {Journal of Machine Learning Research},
            volume = {12},
            pages = {2121--2159},
            year = {2011},
        }
        ```
    """

    initial_accumulator_value: ZeroOrMore = 0.1
    eps: ZeroOrMore = 1e-7
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    eps_in_sqrt: bool = True

    def init(self, params: Params) -> ScaleByRSSState:
        start = self.initial_accumulator_value
        return ScaleByRSSState(real_full_like(params, start, self.nu_dtype))

    def leafwise(
        self, state: ScaleByRSSState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(rss, state)


class Adagrad(AbstractRecipe):
    r"""Adagrad: the more a coordinate has already moved, the smaller its steps.

    !!! abstract "One step"

        $$G_t = G_{t-1} + |g_t|^2, \qquad u_t = \frac{g_t}{\sqrt{G_t + \varepsilon}}.$$

        Without `eps_in_sqrt`, $u_t = g_t / (\sqrt{G_t} + \varepsilon)$.

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByRSS`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $\eta$ is
        `learning_rate`, $G_0$ is `initial_accumulator_value` (0.1), $\varepsilon$ is
        `eps` (1e-7). By default, `eps_in_sqrt` is `True`.

    `torch.optim.Adagrad` starts at $G_0 = 0$ and has $\varepsilon = 10^{-10}$ outside
    the root: `eqopt.Adagrad(lr, 0.0, 1e-10, eps_in_sqrt=False)`. For its `lr_decay`,
    use a schedule, `lambda t: lr / (1 + t * lr_decay)`.

    !!! example

        ```python
        opt = eqopt.Adagrad(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `initial_accumulator_value`: $G_0 \ge 0$ in every coordinate. Defaults to 0.1.
    - `eps`: $\varepsilon \ge 0$. It may be 0, because zero divided by zero is zero
        here. Defaults to 1e-7.
    - `nu_dtype`: the dtype in which $G$ is stored. Defaults to `None`, which means the
        dtype of each parameter, at least float32. In half precision, the sum would soon
        stop growing.
    - `eps_in_sqrt`: whether $\varepsilon$ is inside the root. Defaults to `True`.

    **When to use it:** for sparse gradients (embeddings of rare words, bandits, online
    learning) and convex problems. Its steps only ever shrink, which is too early for
    most deep networks.

    ??? cite "Reference"

        ```bibtex
        @article{duchi2011adaptive,
            author = {Duchi, John and Hazan, Elad and Singer, Yoram},
            title = {Adaptive Subgradient Methods for Online Learning and Stochastic
                     Optimization},
            journal = {Journal of Machine Learning Research},
            volume = {12},
            pages = {2121--2159},
            year = {2011},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    initial_accumulator_value: ZeroOrMore = 0.1
    eps: ZeroOrMore = 1e-7
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    eps_in_sqrt: bool = True

    _parts = ScaleByRSS, ScaleByLearningRate
