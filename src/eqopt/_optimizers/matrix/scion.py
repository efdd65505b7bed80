"""Scion: the steepest step of a given size, in a norm that fits the layer."""

import math
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..._checks import check_choice, check_range
from ..._combinators.chain import Chain
from ..._dimension_numbers import DimensionNumbers, MatrixDimensionNumbers
from ..._equations import equation
from ..._fields import static_choice
from ..._matrixwise import AbstractMatrixwise, everywhere
from ..._pipeline import Leafwise
from ..._transformation import AbstractOptimizer, AbstractTransformation
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.weight_decay import AddDecayedWeights, WeightDecay
from ..._types import Hyperparameter, Mask, Params, ScalarOrSchedule, Updates
from ...numerics import safe_norm
from .orthogonalize import NewtonSchulz, orthogonalize_of
from .parts.coefficients import Coefficients
from .parts.recipe import matrices_and_others


Norm: TypeAlias = Literal["spectral", "sign", "row", "col"]
_NORMS = get_args(Norm)


class ScaleByLMOState(eqx.Module):
    """`mu`: the mean of the gradients so far; `None` for all but matrices."""

    mu: Updates


@equation
def lmo(
    g: Inexact[Array, "m n"],
    mu: Inexact[Array, "m n"],
    newton_schulz: NewtonSchulz,
    *,
    radius: Float[Array, ""],
    beta: Float[Array, ""],
    eps: Float[Array, ""],
    norm: str,
    normalized: bool,
) -> tuple[Inexact[Array, "m n"], Inexact[Array, "m n"]]:
    mu = beta * mu + (1 - beta) * g
    m, n = g.shape
    inputs = n if normalized else 1
    if norm == "spectral":
        u = math.sqrt(m / inputs) * newton_schulz(mu)
    elif norm == "sign":
        u = jnp.sign(mu) / inputs
    else:
        size = math.sqrt(inputs) if norm == "row" else inputs / math.sqrt(m)
        axis = 1 if norm == "row" else 0
        u = mu / (size * safe_norm(mu, 0, axis=axis, keepdims=True) + eps)
    return radius * u, mu


class ScaleByLMO(AbstractMatrixwise):
    r"""Replaces the momentum by the point of a ball that is furthest along it.

    $$\mu_t = \beta \mu_{t-1} + (1 - \beta)\, G_t, \qquad
      u_t = \rho \operatorname*{arg\,max}_{\|X\| \le 1} \langle \mu_t, X \rangle$$

    The norm is one of four, for matrices of $m$ outputs and $n$ inputs:

    | `norm` | $u_t / \rho$ | for |
    |---|---|---|
    | `"spectral"` | $\sqrt{m / n}\, \operatorname{NS}(\mu_t)$ | hidden layers |
    | `"sign"` | $\operatorname{sign}(\mu_t) / n$ | the last layer |
    | `"row"` | rows of $\mu_t$ over $\sqrt n$ times their norms | the last layer |
    | `"col"` | columns of $\mu_t$ over $n$ times their r.m.s. | the first layer |

    Here $\operatorname{NS}$ is the iteration of [`eqopt.Orthogonalize`][]. For one-hot
    inputs, such as words, `normalized=False` sets the $n$ of this table to 1. The
    moment is not corrected for its start at zero, because no step depends on its size.
    Zero rows and columns stay zero. Parameters that are not matrices pass unchanged and
    have no state.

    The kernel of a convolution is the matrix of all its inputs: the inputs of one pixel
    times the number of pixels $k$. (The authors also divide the spectral one by
    $\sqrt k$.)

    !!! example

        ```python
        # Weights to start with, of norm 50:
        ball = eqopt.ScaleByLMO(radius=50.0, beta=0.0)
        params, _ = ball.update(params, ball.init(params))
        ```

    **Arguments:**

    - `norm`: `"spectral"`, `"sign"`, `"row"` or `"col"`.
    - `radius`: $\rho \ge 0$.
    - `beta`: $\beta \in [0, 1)$. The momentum in the paper is $1 - \beta$.
    - `eps`: what is added to the norms of rows and columns, at least 0.
    - `normalized`: see above.
    - `coefficients`, `steps`: as for [`eqopt.Orthogonalize`][].
    - `ns_dtype`: the dtype of the iteration, `dtype` in [`eqopt.Orthogonalize`][].
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the parameter's dtype.
    - `weight_dimension_numbers`: which parameters are matrices, as for
        [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if an argument is none of these; in `init` and `update`, one that names
    the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pethick2025training,
            author = {Pethick, Thomas and Xie, Wanyun and Antonakopoulos, Kimon and Zhu,
                      Zhenyu and Silveti-Falls, Antonio and Cevher, Volkan},
            title = {Training Deep Learning Models with Norm-Constrained {LMOs}},
            booktitle = {International Conference on Machine Learning},
            year = {2025},
        }
        ```
    """

    norm: Norm = eqx.field(static=True, default="spectral")
    radius: Hyperparameter = 1.0
    beta: Hyperparameter = 0.9
    eps: Hyperparameter = 1e-8
    normalized: bool = True
    coefficients: Coefficients = "standard"
    steps: int | None = static_choice(static=True, default=None)
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_range(self, "radius", 0)
        check_range(self, "beta", 0, 1)
        check_range(self, "eps", 0)
        check_choice(self, "norm", _NORMS)
        orthogonalize_of(self)

    def init(self, params: Params) -> ScaleByLMOState:
        return ScaleByLMOState(self.for_matrices(params, lambda x: x, self.mu_dtype))

    def matrixwise(
        self, state: ScaleByLMOState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        newton_schulz = orthogonalize_of(self).newton_schulz()
        reads = {"newton_schulz": everywhere(newton_schulz)}
        return Leafwise(lmo, state, reads=reads)


def _columns(params: Params) -> Any:
    """Each array as a single column."""
    return jax.tree.map(
        lambda x: MatrixDimensionNumbers((), tuple(range(np.ndim(x)))), params
    )


class Scion(AbstractOptimizer):
    r"""Scion: steps of one size, measured in a norm for each kind of layer.

    $$p_t = (1 - \lambda \eta_t)\, p_{t-1} - \eta_t u_t,$$

    where $u_t$ is the update of [`eqopt.ScaleByLMO`][], which has the equations and the
    reference. With $\lambda = 1$, this is the constrained form, conditional gradients:
    parameters in the ball of radius $\rho$ stay in it, and all others move towards it.
    With $\lambda = 0$, it is the unconstrained form, steepest descent.

    !!! example

        ```python
        # The authors' choice for a transformer:
        opt = eqopt.Partition(
            {
                "hidden": eqopt.Scion(2**-12, radius=50.0),
                "head": eqopt.Scion(2**-12, "sign", radius=3000.0),
            },
            labels,
        )
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `weight_decay`: $\lambda$, of all parameters, a number, a 0-d array, a schedule
        or an [`eqopt.AddDecayedWeights`][] that says more.
    - `mask`: which matrices decay, as in [`eqopt.Masked`][]. Defaults to all.
    - `fallback`: the optimizer for all parameters that are not matrices. Defaults to
        the same steps, with $u_t = \rho\, \mu_t / \operatorname{rms}(\mu_t)$ for each
        array.
    - The others are those of [`eqopt.ScaleByLMO`][].
    """

    learning_rate: ScalarOrSchedule
    norm: Norm = eqx.field(static=True, default="spectral")
    radius: Hyperparameter = 1.0
    beta: Hyperparameter = 0.9
    eps: Hyperparameter = 1e-8
    weight_decay: WeightDecay = 1.0
    mask: Mask | None = static_choice(default=None)
    normalized: bool = True
    coefficients: Coefficients = "standard"
    steps: int | None = static_choice(static=True, default=None)
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        others = ScaleByLMO(
            norm="col",
            radius=self.radius,
            beta=self.beta,
            eps=self.eps,
            mu_dtype=self.mu_dtype,
            weight_dimension_numbers=_columns,
        )
        rate = self.part(ScaleByLearningRate)
        decay = AddDecayedWeights(self.weight_decay, learning_rate=self.learning_rate)
        fallback = Chain(others, decay, rate)
        return matrices_and_others(self, self.part(ScaleByLMO), fallback=fallback)
