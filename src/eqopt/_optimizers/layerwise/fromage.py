"""Fromage: steps of a fixed length, relative to each layer."""

from typing import Any

import jax.numpy as jnp

from ..._core import AbstractLeafwise, Leafwise, equation
from ..._transforms.block import ScaleByTrustRatio
from ..._transforms.scale import ScaleByLearningRate, ScaleByScheduleState, at
from ..._types import Params, ScalarOrSchedule, ZeroOrMore
from ..moments import counted
from ..recipe import AbstractRecipe


@equation(elementwise=True)
def contract(g, p, *, learning_rate):
    # 1 / sqrt(1 + eta^2) - 1; computed as a difference, it would lose all digits.
    shrinkage = jnp.expm1(-jnp.log1p(learning_rate**2) / 2)
    return g + shrinkage * (p + g)


class _Contract(AbstractLeafwise):
    """Shrinks the updated parameters by a factor of sqrt(1 + eta^2)."""

    learning_rate: ScalarOrSchedule

    def init(self, params: Params) -> ScaleByScheduleState:
        return ScaleByScheduleState(count=jnp.zeros((), jnp.int32))

    def leafwise(
        self, state: ScaleByScheduleState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        eta = at(self, "learning_rate", state.count)
        return counted(self, contract, state, learning_rate=eta)


class Fromage(AbstractRecipe):
    r"""Fromage: each layer turns by the same angle, whatever the size of its gradient.

    !!! abstract "One step"

        $$p_t = \frac{1}{\sqrt{1 + \eta_t^2}} \left( p_{t-1} -
          \eta_t\, \frac{\|p_{t-1}\|}{\|g_t\|}\, g_t \right),$$

        with the norms of each leaf separately.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. $\eta$ is
        `learning_rate`.

    The leading factor preserves the norm of $p$ if $g$ and $p$ are orthogonal. Without
    it, norms would grow from step to step.

    !!! example

        ```python
        opt = eqopt.Fromage(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule: the tangent of the
        angle.
    - `min_norm`: $m \ge 0$, a lower bound of both norms, so that parameters that start
        at zero can move, and zero gradients are allowed. Defaults to 1e-6.

    **Raises:**

    A `ValueError` if `min_norm` is negative, and in `update` if `params` is `None`.

    **When to use it:** if you want one learning rate, such as 0.01, that means the same
    in every layer of every model. It keeps norms close to their initial values.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{bernstein2020distance,
            author = {Bernstein, Jeremy and Vahdat, Arash and Yue, Yisong and Liu,
                      Ming-Yu},
            title = {On the Distance between Two Neural Networks and the Stability of
                     Learning},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2020},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    min_norm: ZeroOrMore = 1e-6

    _parts = ScaleByTrustRatio, ScaleByLearningRate, _Contract
