"""NovoGrad: one second moment for each layer."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, equation, leafwise, rounded_like, widened
from ..._errors import naming_recipe
from ..._transforms.trace import Trace, TraceState
from ..._transforms.weight_decay import AddDecayedWeights, AddDecayedWeightsState
from ..._trees.leaves import map_parameters
from ..._trees.precision import compute_dtype
from ..._trees.states import check_state
from ..._types import (
    Leaf,
    Mask,
    Params,
    PerLeaf,
    Scalar,
    ScalarOrSchedule,
    State,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, as_float, safe_increment, safe_sqrt
from ...tree._like import wide_zeros_like
from ..moments import AbstractMomentsState
from ..recipe import AbstractRecipe, ScaleByLearningRate


class ScaleByNovoGradState(AbstractMomentsState):
    """The momentum, and the second moments of layers.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the decaying sum of normalised updates, a tree like the parameters.
    - `nu`: the mean of their squared norms so far, a 0-d real array for each parameter.
    """

    nu: PerLeaf


@equation
def normalize(g: Leaf, nu: Scalar, *, b2, eps, eps_root) -> tuple[Leaf, Scalar]:
    nu = b2 * nu + (1 - b2) * jnp.sum(abs_sq(g))
    root = safe_sqrt(nu + eps_root) + eps
    return g / jnp.where(root == 0, 1, root), nu


class ScaleByNovoGrad(AbstractTransformation):
    r"""Normalises the update of each layer, then adds momentum.

    $$\begin{aligned}
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, \|g_t\|^2, \qquad
      \nu_1 = \|g_1\|^2 \\
      \mu_t &= \beta_1 \mu_{t-1} + \frac{g_t}{\sqrt{\nu_t + \bar\varepsilon} +
               \varepsilon} + \lambda p_{t-1} \\
      u_t &= \mu_t
    \end{aligned}$$

    The norm is taken over one leaf, so $\nu$ is a single number for each leaf. The
    momentum is a sum, not an average: with $\beta_1 = 0.9$, steps are up to ten times
    larger than without momentum.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moments. Defaults to 0.25.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the
        number zero, `params` is not needed. Defaults to 0.0.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that gives one, as in
        [`eqopt.Masked`][]. Defaults to all.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to float32, or the
        precision of the parameter if that is higher: it is only one number.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{ginsburg2019stochastic,
            author = {Ginsburg, Boris and Castonguay, Patrice and Hrinchuk, Oleksii and
                      Kuchaiev, Oleksii and Lavrukhin, Vitaly and Leary, Ryan and Li,
                      Jason and Nguyen, Huyen and Zhang, Yang and Cohen, Jonathan M.},
            title = {Stochastic Gradient Methods with Layer-wise Adaptive Moments for
                     Training of Deep Networks},
            journal = {arXiv:1905.11286},
            year = {2019},
        }
        ```
    """

    _loads = "nothing"

    b1: Unit = 0.9
    b2: Unit = 0.25
    eps: ZeroOrMore = 1e-8
    eps_root: ZeroOrMore = 0.0
    weight_decay: ScalarOrSchedule = 0.0
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mask: Mask | None = static_choice(default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByNovoGradState:
        zero = lambda x: jnp.zeros((), self.nu_dtype or compute_dtype(x))
        return ScaleByNovoGradState(
            count=jnp.zeros((), jnp.int32),
            mu=wide_zeros_like(params, self.mu_dtype),
            nu=map_parameters(zero, params),
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        b2 = jnp.where(state.count == 0, 0.0, as_float(self.b2))
        u, nu = leafwise(
            normalize,
            widened(updates),
            state.nu,
            b2=b2,
            eps=self.eps,
            eps_root=self.eps_root,
        )
        # Weights decay between the normalisation and the momentum, with their own mask.
        decay = AddDecayedWeights(self.weight_decay, self.mask)
        with naming_recipe(self):
            u, _ = decay.update(u, AddDecayedWeightsState(state.count), params)
            u, momentum = Trace(self.b1).update(u, TraceState(state.mu))
        count = safe_increment(state.count)
        return rounded_like(u, updates), ScaleByNovoGradState(count, momentum.trace, nu)


class NovoGrad(AbstractRecipe):
    r"""NovoGrad: momentum of gradients that are normalised layer by layer.

    !!! abstract "One step"

        $$\begin{aligned}
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, \|g_t\|^2, \qquad
          \nu_1 = \|g_1\|^2 \\
          \mu_t &= \beta_1 \mu_{t-1} + \frac{g_t}{\sqrt{\nu_t + \bar\varepsilon} +
                   \varepsilon} + \lambda p_{t-1} \\
          u_t &= \mu_t
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, u_t,$$

        where $u_t$ is the update of [`eqopt.ScaleByNovoGrad`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9), $\beta_2$ is
        `b2` (0.25), $\varepsilon$ is `eps` (1e-6), $\bar\varepsilon$ is `eps_root`
        (0.0), $\lambda$ is `weight_decay` (0.0).

    It needs half the memory of Adam: one moment of the size of the parameters. The
    weight decay is part of the momentum.

    !!! example

        ```python
        opt = eqopt.NovoGrad(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the momentum. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moments. Defaults to 0.25.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-6.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the
        number zero, `params` is not needed. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to `None`, which means
        float32, or the precision of the parameter if that is higher: it is only one
        number.

    **When to use it:** where SGD with momentum works well but its learning rate is hard
    to find, as in speech recognition and other convolutional networks. Its state is no
    larger than the state of SGD with momentum.

    ??? cite "Reference"

        ```bibtex
        @article{ginsburg2019stochastic,
            author = {Ginsburg, Boris and Castonguay, Patrice and Hrinchuk, Oleksii and
                      Kuchaiev, Oleksii and Lavrukhin, Vitaly and Leary, Ryan and Li,
                      Jason and Nguyen, Huyen and Zhang, Yang and Cohen, Jonathan M.},
            title = {Stochastic Gradient Methods with Layer-wise Adaptive Moments for
                     Training of Deep Networks},
            journal = {arXiv:1905.11286},
            year = {2019},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.25
    eps: ZeroOrMore = 1e-6
    eps_root: ZeroOrMore = 0.0
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByNovoGrad, ScaleByLearningRate
