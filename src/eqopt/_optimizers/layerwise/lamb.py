"""LAMB: Adam with steps in proportion to each layer."""

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._transforms.block import ScaleByTrustRatio
from ..._types import Mask, ScalarOrSchedule, Unit, ZeroOrMore
from ..adam.adam import ScaleByAdam
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class LAMB(AbstractRecipe):
    r"""LAMB: AdamW with steps proportional to the norm of each layer.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} +
              \varepsilon\big)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, \frac{\|p_{t-1}\|}{\|d_t\|}\, d_t, \qquad
          d_t = u_t + \lambda p_{t-1},$$

        where $u_t$ is the update of [`eqopt.ScaleByAdam`][], and norms are taken over
        one leaf at a time.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-6), $\bar\varepsilon$ is
        `eps_root` (0.0), $\lambda$ is `weight_decay` (0.0).

    A leaf with norm zero moves by $-\eta_t\, d_t$.

    !!! example

        ```python
        opt = eqopt.LAMB(2e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the first moment. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moment. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-6.
    - `eps_root`: $\bar\varepsilon \ge 0$, inside the root. Derivatives through the step
        are also finite without it. Defaults to 0.0.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`, `nu_dtype`: the dtypes in which $\mu$ and $\nu$ are stored. Default to
        `None`, which means the dtype of each parameter, at least float32.

    **When to use it:** for transformers at batch sizes of many thousands, where AdamW
    needs smaller and smaller learning rates. At common batch sizes, [`eqopt.AdamW`][]
    works as well and needs no norms.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{you2020large,
            author = {You, Yang and Li, Jing and Reddi, Sashank and Hseu, Jonathan and
                      Kumar, Sanjiv and Bhojanapalli, Srinadh and Song, Xiaodan and
                      Demmel, James and Keutzer, Kurt and Hsieh, Cho-Jui},
            title = {Large Batch Optimization for Deep Learning: Training {BERT} in 76
                     minutes},
            booktitle = {International Conference on Learning Representations},
            year = {2020},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-6
    eps_root: ZeroOrMore = 0.0
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdam, AddDecayedWeights, ScaleByTrustRatio(), ScaleByLearningRate
