"""Shampoo and KL-Shampoo, with another optimizer for parameters that are not matrices."""

import dataclasses

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation
from ..._transforms.weight_decay import WeightDecay
from ..._trees.axes import DimensionNumbers
from ..._types import Hyperparameter, IntegerLike, Mask, ScalarOrSchedule
from .parts.graft import Graft
from .parts.recipe import matrices_and_others
from .scale_by_shampoo import ScaleByShampoo


class Shampoo(AbstractOptimizer):
    r"""Shampoo: both sides of a gradient, divided by roots of their second moments.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByShampoo`][], which has the equations and
    the references.

    With a graft, the steps are as long as the steps of Adam (or RMSprop, or AdaGrad),
    so the learning rate of that method also suits Shampoo. Derivatives through the step
    treat the eigenvalues and eigenvectors of both factors as constants.

    !!! warning

        Without a graft, roots that are several steps old make steps in new directions
        much too long. In that case, use a larger `eps`, such as 1e-6, or
        `precondition_frequency=1`.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - `b2`: $\beta_2 \in [0, 1]$, the decay of the factors. With 1, they are plain sums.
    - `eps`: $\varepsilon \ge 0$, added to the factors. With 0, directions without a
        gradient are omitted.
    - `exponent`: $e \ge 0$. Defaults to 1/4, or to 1/2 with `one_sided`.
    - `correct_bias`: whether to correct $\mu$ and the factors for their start at zero.
    - All others: see [`eqopt.ScaleByShampoo`][].
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.999
    b3: Hyperparameter | None = None
    eps: Hyperparameter = 1e-12
    exponent: Hyperparameter | None = None
    weight_decay: WeightDecay = 0.0
    precondition_frequency: IntegerLike = 10
    start_preconditioning_step: IntegerLike | None = None
    graft: Graft | None = eqx.field(static=True, default="adam")
    graft_b2: Hyperparameter = 0.999
    graft_eps: Hyperparameter = 1e-8
    one_sided: bool = static_choice(static=True, default=False)
    block_size: int | None = static_choice(static=True, default=1024)
    correct_bias: bool = True
    stagger: bool = static_choice(static=True, default=False)
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        return matrices_and_others(self, self.part(ScaleByShampoo))


class KLShampoo(AbstractOptimizer):
    r"""KL-Shampoo: the factors of Shampoo, each whitened by the other one.

    For each matrix $G_t$ with $m$ outputs and $n$ inputs,

    $$\begin{aligned}
      L_t &= \beta_2 L_{t-1} + \frac{1 - \beta_2}{n}\, G_t R_{t-1}^{-1} G_t^* &
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, G_t \\
      R_t &= \beta_2 R_{t-1} + \frac{1 - \beta_2}{m}\, G_t^* L_{t-1}^{-1} G_t &
      \bar G_t &= \frac{\beta_3 \mu_{t-1} + (1 - \beta_3)\, G_t}
                       {1 - \beta_3 \beta_1^{t-1}} \\
      u_t &= L_t^{-1/2}\, \bar G_t\, R_t^{-1/2} &
      p_t &= p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),
    \end{aligned}$$

    with eigenvalues of $L$ and $R$ of at least $\varepsilon$. $L_0$ and $R_0$ are the
    identity, times the root mean square of the first gradient that is not zero. One
    factor alone starts with the mean square. $u_t$ is the update of
    [`eqopt.ScaleByShampoo`][], which has the references, with `kl=True`.

    The product of both factors estimates the covariance of the gradients, so the steps
    have the right length without a graft. The eigenvectors are updated by one step of
    orthogonal iteration every $k$ steps, the eigenvalues in each. With `block_size`,
    zeros that fill up the last block of a side count in $m$ and $n$.

    Derivatives through the step treat the eigenvectors as constants.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][].
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the factors.
    - `eps`: $\varepsilon > 0$, the smallest eigenvalue of a factor.
    - `correct_bias`: whether to correct $\mu$ for its start at zero.
    - All others: see [`eqopt.ScaleByShampoo`][].

    ??? cite "Reference"

        ```bibtex
        @article{lin2025understanding,
            author = {Lin, Wu and Lowe, Scott C. and Dangel, Felix and Eschenhagen, Runa
                      and Xu, Zikun and Grosse, Roger B.},
            title = {Understanding and Improving {Shampoo} and {SOAP} via
                     {Kullback-Leibler} Minimization},
            journal = {arXiv:2509.03378},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.9
    b2: Hyperparameter = 0.95
    eps: Hyperparameter = 1e-12
    weight_decay: WeightDecay = 0.01
    precondition_frequency: IntegerLike = 10
    one_sided: bool = static_choice(static=True, default=False)
    block_size: int | None = static_choice(static=True, default=None)
    correct_bias: bool = True
    stagger: bool = static_choice(static=True, default=False)
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        part = dataclasses.replace(self.part(ScaleByShampoo), graft=None, kl=True)
        return matrices_and_others(self, part)
