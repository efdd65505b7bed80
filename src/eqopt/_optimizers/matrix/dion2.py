"""Dion2: orthogonal steps for the largest rows or columns."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Inexact, Int

from ..._arguments.checks import check_range
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import (
    AbstractMatrixwise,
    AbstractOptimizer,
    AbstractTransformation,
    Leafwise,
    equation,
)
from ..._transforms.weight_decay import WeightDecay
from ..._trees.axes import DimensionNumbers
from ..._types import (
    Hyperparameter,
    Mask,
    Nonnegative,
    Params,
    Scalar,
    ScalarOrSchedule,
    Updates,
)
from ...numerics import abs_sq
from .orthogonalize import SCALES, NewtonSchulz, Scale, orthogonalize_of
from .parts.coefficients import Coefficients
from .parts.eigenbasis import short_side
from .parts.recipe import matrices_and_others
from .parts.row_rms import scale_by_row_rms


def _number(x: Any) -> Any:
    """`x` as a Python float if it is a number with a known value, otherwise unchanged."""
    try:
        return float(x)
    except (TypeError, ValueError):
        return x


class ScaleByDion2State(eqx.Module):
    r"""The gradients that have not been applied yet.

    **Attributes:**

    - `mu`: the sum of the gradients, minus the parts that were applied. A tree like the
        parameters, with `None` for parameters that are not matrices.
    - `nu`: with `b2`, the mean of the squares in each row of the orthogonal updates. It
        has the axes of the parameter, with size 1 along the inputs. Otherwise `None`.
    """

    mu: Updates
    nu: Nonnegative | None


class Largest(eqx.Module):
    """Selects the rows or columns with the largest sums of absolute values; static.

    **Attributes:**

    - `fraction`: the fraction of them to select.
    - `always_rows`: whether to select rows. Otherwise, it selects from the shorter side.
    """

    fraction: float = eqx.field(static=True)
    always_rows: bool = eqx.field(static=True)

    def __call__(self, x: Inexact[Array, "m n"]) -> tuple[Int[Array, " k"], int]:
        """Returns the selected indices, and their axis."""
        axis = 0 if self.always_rows else short_side(x.shape)
        # The selection is not a smooth function of the gradients.
        sizes = jnp.sum(jnp.abs(lax.stop_gradient(x)), 1 - axis)
        count = max(1, math.ceil(self.fraction * x.shape[axis]))
        return lax.top_k(sizes, count)[1], axis


def _back(x: Any, places: Any, axis: int, size: int) -> tuple[Any, Any]:
    """The selected rows with zeros in between, and a mask of the selected ones.

    This gathers instead of scattering, because XLA on a CPU fuses reads from many places,
    but not writes.
    """
    count = len(places)
    order = jnp.full(size, count).at[places].set(jnp.arange(count))
    is_there = jnp.expand_dims(order < count, 1 - axis)
    return jnp.where(is_there, jnp.take(x, order, axis, mode="clip"), 0), is_there


@equation
def dion2(
    g: Inexact[Array, "m n"],
    mu: Inexact[Array, "m n"],
    *,
    newton_schulz: NewtonSchulz,
    largest: Largest,
    ef_decay: Scalar,
    eps: Scalar,
    scale: str,
) -> tuple[Inexact[Array, "m n"], Inexact[Array, "m n"]]:
    mu = mu + g
    places, axis = largest(mu)
    o = newton_schulz(jnp.take(mu, places, axis), eps)
    o = SCALES[scale](*g.shape) * o
    u, is_there = _back(o, places, axis, mu.shape[axis])
    return u, jnp.where(is_there, ef_decay * mu, mu)


@equation
def nordion2(
    g: Inexact[Array, "m n"],
    mu: Inexact[Array, "m n"],
    nu: Float[Array, "m 1"],
    *,
    newton_schulz: NewtonSchulz,
    largest: Largest,
    ef_decay: Scalar,
    b2: Scalar,
    eps: Scalar,
    scale: str,
) -> tuple[Inexact[Array, "m n"], Inexact[Array, "m n"], Float[Array, "m 1"]]:
    mu = mu + g
    rows, _ = largest(mu)
    o = newton_schulz(mu[rows], eps)
    o, v = scale_by_row_rms(o, nu[rows], b2=b2, eps=eps, side="rows")
    u, is_there = _back(SCALES[scale](*g.shape) * o, rows, 0, len(mu))
    return u, jnp.where(is_there, ef_decay * mu, mu), nu.at[rows].set(v)


class ScaleByDion2(AbstractMatrixwise):
    r"""Orthogonal updates for a fraction of the rows, or columns, of each matrix.

    Let $G_t$ be a matrix with $m$ outputs and $n$ inputs, with $m \le n$. Otherwise,
    exchange rows and columns, and $m$ and $n$. Then

    $$\begin{aligned}
      M_t &= \mu_{t-1} + G_t &
      S_t &= \operatorname{top}_k \Big(\textstyle\sum_j |M_{t, ij}|\Big), \quad
        k = \lceil f m \rceil \\
      u_t[S_t] &= s \operatorname{NS}(M_t[S_t]) &
      \mu_t[S_t] &= \alpha\, M_t[S_t]
    \end{aligned}$$

    and for the other rows, $u_t = 0$ and $\mu_t = M_t$: they accumulate until they are
    among the largest. $\operatorname{NS}$ and $s$ are the iteration and the factor, for
    the shape of the whole matrix, of [`eqopt.Orthogonalize`][], which has the equations.

    With $f = 1$, this is Muon with heavy-ball momentum. Parameters that are not
    matrices pass unchanged and have no state.

    With `b2`, this is NorDion2. It selects rows for all shapes, and divides each row by
    the root of a second moment, like [`eqopt.ScaleByNorMuon`][]:

    $$\nu_t[S_t] = \beta_2 \nu_{t-1}[S_t] + (1 - \beta_2)
      \operatorname{mean}_{\text{columns}} |O_t|^2, \qquad
      u_t[S_t] = s\, \frac{\|O_t\|_F}{\|\hat O_t\|_F + \varepsilon}\, \hat O_t, \qquad
      \hat O_t = \frac{O_t}{\sqrt{\nu_t[S_t]} + \varepsilon},$$

    where $O_t = \operatorname{NS}(M_t[S_t])$.

    **Arguments:**

    - `fraction`: $f \in (0, 1]$, a Python number: the fraction of rows or columns to
        select.
    - `ef_decay`: $\alpha \in [0, 1)$: how much of the applied rows stays in $\mu$.
    - `b2`: $\beta_2 \in [0, 1)$, for NorDion2, whose authors use 0.95. Defaults to
        `None`, for Dion2.
    - `eps`: $\varepsilon \ge 0$, also added to the norm in $\operatorname{NS}$.
    - `coefficients`, `steps`, `scale`: see [`eqopt.Orthogonalize`][].
    - `ns_dtype`: see [`eqopt.ScaleByAdaMuon`][].
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @article{ahn2025dion2,
            author = {Ahn, Kwangjun and Amsel, Noah and Langford, John},
            title = {{Dion2}: A Simple Method to Shrink Matrix in {Muon}},
            journal = {arXiv:2512.16928},
            year = {2025},
        }
        ```
    """

    fraction: float = eqx.field(static=True, converter=_number, default=0.25)
    ef_decay: Hyperparameter = 0.95
    b2: Hyperparameter | None = None
    eps: Hyperparameter = 1e-8
    coefficients: Coefficients = "polar_express"
    steps: int | None = static_choice(static=True, default=None)
    scale: Scale = eqx.field(static=True, default="unit_rms")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        if not (isinstance(self.fraction, float) and 0 < self.fraction <= 1):
            raise ValueError(
                "ScaleByDion2: `fraction` must be a Python number in (0, 1], but is "
                f"{self.fraction!r}. The compiled code depends on it."
            )
        check_range(self, "ef_decay", 0, 1)
        if self.b2 is not None:
            check_range(self, "b2", 0, 1)
        check_range(self, "eps", 0)
        orthogonalize_of(self)

    def _factor(self, outputs: int, inputs: int) -> float:
        return SCALES[self.scale](outputs, inputs)

    def init(self, params: Params) -> ScaleByDion2State:
        squares = lambda x: jnp.sum(abs_sq(x), 1, keepdims=True)
        return ScaleByDion2State(
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=None if self.b2 is None else self.for_matrices(params, squares),
        )

    def matrixwise(
        self, state: ScaleByDion2State, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        by_row = self.b2 is not None
        shared = {
            "newton_schulz": orthogonalize_of(self).newton_schulz(),
            "largest": Largest(self.fraction, by_row),
        }
        return Leafwise(nordion2 if by_row else dion2, state, shared)


class Dion2(AbstractOptimizer):
    r"""Dion2: orthogonal steps for a fraction of the rows, or columns, of each matrix.

    $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

    where $u_t$ is the update of [`eqopt.ScaleByDion2`][], which has the equations and
    the reference.

    Weight decay applies to all rows in each step.

    **Arguments:**

    - `learning_rate`: see [`eqopt.SGD`][]. The authors use 0.01.
    - `weight_decay`, `mask`, `fallback`: see [`eqopt.NorMuon`][].
    - All others: see [`eqopt.ScaleByDion2`][].
    """

    learning_rate: ScalarOrSchedule
    fraction: float = eqx.field(static=True, converter=_number, default=0.25)
    ef_decay: Hyperparameter = 0.95
    b2: Hyperparameter | None = None
    eps: Hyperparameter = 1e-8
    weight_decay: WeightDecay = 0.01
    mask: Mask | None = static_choice(default=None)
    coefficients: Coefficients = "polar_express"
    steps: int | None = static_choice(static=True, default=None)
    scale: Scale = eqx.field(static=True, default="unit_rms")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        return matrices_and_others(self, self.part(ScaleByDion2))
