"""Adafactor: Adam's second moments in sublinear memory."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation
from ..._matrices import DimensionNumbers
from ..._transforms.block import ScaleByParamBlockRMS
from ..._transforms.factored_rms import ScaleByFactoredRMS
from ..._transforms.scale import Scale, ScaleByLearningRate
from ..._transforms.trace import EMA
from ..._transforms.weight_decay import AddDecayedWeights
from ..._types import (
    CountOrZero,
    Hyperparameter,
    Mask,
    Positive,
    ScalarOrSchedule,
    SizeOrZero,
    Unit,
    ZeroOrMore,
)


class Adafactor(AbstractOptimizer):
    r"""Adafactor: adaptive steps with almost no state.

    !!! abstract "One step"

        $$\begin{aligned}
          r_t &= \beta_t r_{t-1} + (1 - \beta_t) \operatorname{mean}_{\text{columns}}
                 (|g_t|^2 + \varepsilon) \\
          c_t &= \beta_t c_{t-1} + (1 - \beta_t) \operatorname{mean}_{\text{rows}}
                 (|g_t|^2 + \varepsilon) \\
          u_t &= g_t \Big/ \sqrt{r_t c_t^\top / \operatorname{mean}(r_t)}, \qquad
          \beta_t = 1 - t^{-c}
        \end{aligned}$$

        for matrices, and $u_t = g_t / \sqrt{v_t}$ with
        $v_t = \beta_t v_{t-1} + (1 - \beta_t) (|g_t|^2 + \varepsilon)$ for everything
        else.

        $$\begin{aligned}
          d_t &= \eta_t \max\left(10^{-3}, \operatorname{RMS}(p_{t-1})\right)
                 u_t \big/ \max\left(1, \operatorname{RMS}(u_t) / d\right) \\
          m_t &= \beta m_{t-1} + (1 - \beta)\, d_t \\
          p_t &= p_{t-1} - m_t - \lambda p_{t-1},
        \end{aligned}$$

        where $u_t$ is the update of [`eqopt.ScaleByFactoredRMS`][].

        Without `momentum`, $m_t = d_t$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $r_0 = c_0 = v_0 = m_0 = 0$. $\eta$ is `learning_rate`, $c$ is `decay_rate`
        (0.8), $d$ is `clipping_threshold` (1.0), $\beta$ is `momentum`, $\lambda$ is
        `weight_decay` (0.0), $\varepsilon$ is `eps` (1e-30).

    The root mean squares are taken over one leaf at a time.

    The learning rate is relative to the size of the parameters. The paper uses
    `lambda count: jnp.minimum(1e-2, (count + 1.0) ** -0.5)`, and
    `torch.optim.Adafactor` with `lr=eta` uses `eta` instead of `1e-2`. Otherwise,
    torch's optimizer differs as follows:

    - matrices are the last two axes, and are always factored:
        `min_dim_size_to_factor=1` does the same for arrays with two axes;
    - its weight decay is multiplied by `lr`: $\lambda$ here is `lr * weight_decay`;
    - its `eps` bounds the second moment from below, and is not added to the squares.

    !!! example

        ```python
        opt = eqopt.Adafactor()
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Defaults to `None`,
        which means 1: in that case, scale the updates yourself, because steps are
        otherwise as large as the parameters.
    - `min_dim_size_to_factor`: the smallest size of rows and columns to factor, if
        `weight_dimension_numbers` is not given. Defaults to 128.
    - `decay_rate`: $c$, a number or a 0-d array. A larger value averages over more
        steps. Defaults to 0.8.
    - `decay_offset`: the number of steps that do not count in $t$, for a state whose
        count continues from earlier training: an integer of at least 0. Before this
        step, $t = 1$. Defaults to 0.
    - `multiply_by_parameter_scale`: whether $\operatorname{RMS}(p)$ is a factor, so
        that learning rates are relative. Defaults to `True`.
    - `clipping_threshold`: $d > 0$, or `None` for no clipping. Defaults to 1.0.
    - `momentum`: $\beta \in [0, 1)$. Defaults to `None`, which means no momentum and no
        memory for it.
    - `mu_dtype`: the dtype in which $m$ is stored. Defaults to float32.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. It is not
        multiplied by the learning rate. Defaults to 0.0.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-30.
    - `factored`: whether to factor second moments. With `False`, all parameters have
        `v`. Defaults to `True`.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `weight_dimension_numbers`: [`eqopt.MatrixDimensionNumbers`][] for each parameter
        to factor, of any size, and `None` for all others: a tree like the parameters or
        a prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means the two largest axes of each array, if both have at least
        `min_dim_size_to_factor` entries.
    - `nu_dtype`: the dtype in which second moments are stored. Defaults to `None`,
        which means float32, or the precision of the parameter if that is higher.

    **When to use it:** if the two moments of Adam do not fit into memory. Its state is
    a small fraction of the parameters. In exchange it is somewhat less stable, so keep
    the clipping.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{shazeer2018adafactor,
            author = {Shazeer, Noam and Stern, Mitchell},
            title = {Adafactor: Adaptive Learning Rates with Sublinear Memory Cost},
            booktitle = {International Conference on Machine Learning},
            year = {2018},
        }
        ```
    """

    learning_rate: ScalarOrSchedule | None = None
    min_dim_size_to_factor: SizeOrZero = static_choice(static=True, default=128)
    decay_rate: Hyperparameter = 0.8
    decay_offset: CountOrZero = 0
    multiply_by_parameter_scale: bool = True
    clipping_threshold: Positive | None = 1.0
    momentum: Unit | None = None
    mu_dtype: DTypeLike = eqx.field(static=True, default=jnp.float32)
    weight_decay: ScalarOrSchedule = 0.0
    eps: ZeroOrMore = 1e-30
    factored: bool = True
    mask: Mask | None = static_choice(default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def chain(self) -> Chain:
        parts: list[AbstractTransformation] = [
            self.part(ScaleByFactoredRMS, step_offset=self.decay_offset)
        ]
        if self.learning_rate is not None:
            parts.append(ScaleByLearningRate(self.learning_rate, flip_sign=False))
        if self.multiply_by_parameter_scale:
            parts.append(ScaleByParamBlockRMS())
        if self.momentum is not None:
            parts.append(EMA(self.momentum, False, self.mu_dtype))
        return Chain(*parts, self.part(AddDecayedWeights), Scale(-1.0))
