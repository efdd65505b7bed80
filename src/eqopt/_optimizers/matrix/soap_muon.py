"""SOAP-Muon: orthogonalizes the direction of SOAP."""

import dataclasses

import equinox as eqx
from jaxtyping import DTypeLike

from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation
from ..._transforms.weight_decay import WeightDecay
from ..._trees.axes import DimensionNumbers
from ..._types import Hyperparameter, IntegerLike, Mask, ScalarOrSchedule
from .orthogonalize import Scale, orthogonalize_of
from .parts.coefficients import STANDARD, Coefficients
from .parts.recipe import matrices_and_others
from .soap import ScaleBySOAP


# The five steps of Muon, then two steps that converge.
_ROWS = (STANDARD,) * 5 + ((1.5, -0.5, 0.0),) * 2


class SOAPMuon(AbstractOptimizer):
    r"""SOAP-Muon: orthogonalizes the update of SOAP for each matrix.

    $$p_t = p_{t-1} - \eta_t\, \big(s \operatorname{NS}(v_t) + \lambda p_{t-1}\big),
      \qquad v_t = Q_L \left( \frac{\mu_t}{\sqrt{\nu_t} + \varepsilon} \right) Q_R^*,$$

    with $\mu_t$, $\nu_t$, $Q_L$ and $Q_R$ of [`eqopt.ScaleBySOAP`][], and
    $\operatorname{NS}$ and $s$ of [`eqopt.Orthogonalize`][], which have the equations and
    the references. $\operatorname{NS}$ has its own $\varepsilon$, $10^{-7}$.

    With $Q = I$ and a constant $\nu$, this is Muon without Nesterov momentum. The first
    step only initializes the preconditioner and applies weight decay. SOAP-Muon is this
    chain, followed by weight decay and the learning rate:

    ```python
    eqopt.Chain(
        eqopt.ScaleBySOAP(0.95, 0.98, eps=1e-15, correct_bias=False),
        eqopt.Orthogonalize(rows, scale="shape"),
    )
    ```

    It follows the authors' code for modded-nanogpt with one exception: the authors
    multiply the orthogonal update by Adam's bias correction
    $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$, which is 2.8 in the first step and near 1
    after ten. Their code for OLMo uses five more quintic steps, and finally divides by
    the root mean square. The effect is similar to `scale="spectral"`.

    The record of the speedrun (track 3, #46) differs. It applies Nesterov momentum
    first. $\nu$ is the mean of the squared projected momentum, with $\beta_2 = 0.9$, and
    is at least $\varepsilon^2$. $Q$ is recomputed in each step, and $v_t$ is rescaled to
    the norm of the momentum. $\operatorname{NS}$ has 12 steps of
    $(2, -\frac32, \frac12)$, here `coefficients="simple"`. The first step is a Muon
    step.

    Derivatives through the step treat the bases $Q_L$ and $Q_R$ as constants.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][]. The authors use 0.001.
    - `coefficients`: see [`eqopt.Orthogonalize`][]. Defaults to the five quintic steps of
        Muon and two steps of $(\frac32, -\frac12, 0)$.
    - `steps`, `scale`: see [`eqopt.Orthogonalize`][].
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - `ns_dtype`: the dtype of the iteration, called `dtype` in
        [`eqopt.Orthogonalize`][]. By default, the matrix keeps its dtype on all
        platforms, unless you name a set of coefficients.
    - All others: see [`eqopt.ScaleBySOAP`][].

    ??? cite "Reference"

        ```bibtex
        @misc{vyas2025soapmuon,
            author = {Vyas, Nikhil and others},
            title = {{SOAP-Muon}},
            url = {https://github.com/nikhilvyas/SOAP_MUON},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Hyperparameter = 0.95
    b2: Hyperparameter = 0.98
    shampoo_beta: Hyperparameter | None = None
    eps: Hyperparameter = 1e-15
    coefficients: Coefficients = _ROWS
    steps: int | None = static_choice(static=True, default=None)
    scale: Scale = eqx.field(static=True, default="shape")
    weight_decay: WeightDecay = 0.0
    precondition_frequency: IntegerLike = 10
    max_precond_dim: int = static_choice(static=True, default=10_000)
    one_sided: bool = static_choice(static=True, default=False)
    block_size: int | None = static_choice(static=True, default=None)
    kl: bool = False
    stagger: bool = static_choice(static=True, default=False)
    mask: Mask | None = static_choice(default=None)
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        soap = dataclasses.replace(self.part(ScaleBySOAP), correct_bias=False)
        return matrices_and_others(self, soap, orthogonalize_of(self))
