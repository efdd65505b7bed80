"""A length for each row of an update, by its second moment."""

from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from ...._arguments.fields import static_choice
from ...._core import Leafwise, equation
from ...._matrices import AbstractMatrixwise, DimensionNumbers
from ...._transforms.normalize import or_1, zero_if_infinite
from ...._types import Nonnegative, Params, PerLeaf, Scalar, Unit, ZeroOrMore
from ....numerics._numerics import abs_sq, safe_norm, safe_sqrt


Side: TypeAlias = Literal["rows", "long"]


class ScaleByRowRMSState(eqx.Module):
    """The mean squares of the rows.

    **Attributes:**

    - `nu`: the mean of the squares in each row so far. It has the shape of the parameter,
        with size 1 along the inputs, and is `None` for parameters that are not matrices.
    """

    nu: PerLeaf


def _axis(shape: tuple[int, ...], side: Side) -> int:
    """The axis over which the squares are averaged."""
    return 0 if side == "long" and shape[1] > shape[0] else 1


@equation
def scale_by_row_rms(
    g: Inexact[Array, "m n"],
    nu: Float[Array, "#m #n"],
    *,
    b2: Scalar,
    eps: Scalar,
    side: Side,
) -> tuple[Inexact[Array, "m n"], Float[Array, "#m #n"]]:
    nu = b2 * nu + (1 - b2) * jnp.mean(abs_sq(g), _axis(g.shape, side), keepdims=True)
    u = g / or_1(safe_sqrt(nu) + eps)
    return zero_if_infinite(safe_norm(g, 0)) / or_1(safe_norm(u, 0) + eps) * u, nu


class ScaleByRowRMS(AbstractMatrixwise):
    r"""Divides each row of a matrix by the root of its second moment; keeps the norm.

    $$\nu_t = \beta_2 \nu_{t-1}
              + (1 - \beta_2) \operatorname{mean}_{\text{columns}} |g_t|^2, \qquad
      \hat u_t = \frac{g_t}{\sqrt{\nu_t} + \varepsilon}, \qquad
      u_t = \frac{\|g_t\|_F}{\|\hat u_t\|_F + \varepsilon}\, \hat u_t$$

    A row holds the weights of one output of a layer. This is the last part of
    [`eqopt.ScaleByNorMuon`][], which has the reference, for a chain of your own. The
    moments need no bias correction, because the norm is restored at the end. The state
    has one number per row. In float32, the square of a norm above 1.8e19 overflows:
    then the update is zero. A row with such a norm stays zero in all later updates.
    Parameters that are not matrices pass unchanged and have no state.

    !!! example

        ```python
        # NorMuon without Nesterov momentum.
        eqopt.Chain(
            eqopt.EMA(0.95, debias=False),
            eqopt.Orthogonalize("polar_express"),
            eqopt.ScaleByRowRMS(0.95),
        )
        ```

    **Arguments:**

    - `b2`: $\beta_2 \in [0, 1)$. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-10.
    - `side`: which side has second moments: `"rows"` for the outputs, as in the paper; or
        `"long"` for the longer side of the matrix (rows if both are equal). Defaults to
        `"rows"`.
    - `weight_dimension_numbers`: which parameters are matrices, and which of their axes
        are outputs and inputs. It is a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` with the structure of the parameters or a prefix of it, or a function of
        the parameters that returns one. A single `MatrixDimensionNumbers` applies to
        all arrays with at least two axes. Defaults to
        [`eqopt.groups.layer_matrices`][]: the weights of Equinox's linear, convolution
        and recurrent layers, and arrays with two axes (inputs first) outside the layers
        of `equinox.nn`. Embeddings are not matrices. Other arrays with three or more
        axes outside these layers, such as your own stack of matrices, are then an
        error. Describe them with [`eqopt.groups.matrices`][] and
        [`eqopt.groups.stacked`][].

    **Raises:**

    A `ValueError` if an argument is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.
    """

    in_batches: ClassVar[bool] = False

    b2: Unit = 0.95
    eps: ZeroOrMore = 1e-10
    side: Side = static_choice(static=True, default="rows")
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> ScaleByRowRMSState:
        return ScaleByRowRMSState(moments_of_rows(self, params))

    def matrixwise(
        self, state: ScaleByRowRMSState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale_by_row_rms, state)


def moments_of_rows(owner: Any, params: Params) -> Nonnegative:
    """Zeros for the second moments of a transformation with a `side`."""
    # A mean of nothing would not be zero.
    total = lambda x: jnp.sum(abs_sq(x), _axis(x.shape, owner.side), keepdims=True)
    return owner.for_matrices(params, total)
