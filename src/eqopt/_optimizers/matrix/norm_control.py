"""Controls the norms of steps and weights: how far a matrix turns, and how it grows."""

from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from ..._checks import check_choice, check_range
from ..._dimension_numbers import DimensionNumbers
from ..._equations import equation
from ..._matrixwise import AbstractMatrixwise, Rows
from ..._pipeline import Leafwise
from ..._types import Hyperparameter, Nonnegative, Params, RealScalarLike
from ...numerics import abs_sq, safe_sqrt


Per: TypeAlias = Literal["matrix", "row"]
Radius: TypeAlias = Literal["current", "initial"] | RealScalarLike
Matrix: TypeAlias = Inexact[Array, "m n"]


def norms(x: Matrix, per: Per) -> Float[Array, "_ 1"]:
    """The norm of a matrix, or the norms of its rows as a column."""
    axes = (0, 1) if per == "matrix" else 1
    return safe_sqrt(jnp.sum(abs_sq(x), axes, keepdims=True))


def _rows_of(per: Per) -> Rows:
    # A transposed matrix has the same norm.
    return "outputs" if per == "row" else "first"


def _over(above: Array, below: Array) -> Array:
    """`above / below`, or 1 if one of them is zero."""
    is_one = (above == 0) | (below == 0)
    return jnp.where(is_one, 1, above / jnp.where(is_one, 1, below))


@equation
def relative_update(g: Matrix, p: Matrix, *, per: Per) -> Inexact[Array, "m n"]:
    return g * _over(norms(p, per), norms(g, per))


@equation
def floor_norm(
    g: Matrix, p: Matrix, *, floor: Float[Array, ""], per: Per
) -> Inexact[Array, "m n"]:
    return g * jnp.maximum(1, _over(floor * norms(p, per), norms(g, per)))


@equation
def brake_norm(
    g: Matrix, p: Matrix, *, outward: Float[Array, ""], inward: Float[Array, ""]
) -> Inexact[Array, "m n"]:
    old, new = norms(p, "matrix"), norms(p + g, "matrix")
    part = jnp.where(new > old, outward, inward)
    braked = (p + g) * _over(old + part * (new - old), new) - p
    return jnp.where(old == 0, g, braked)


@equation
def brake_component(
    g: Matrix, p: Matrix, *, outward: Float[Array, ""], inward: Float[Array, ""]
) -> Inexact[Array, "m n"]:
    old = norms(p, "matrix")
    is_zero = old == 0
    direction = p / jnp.where(is_zero, 1, old)
    radial = jnp.sum(jnp.real(jnp.conj(direction) * g), keepdims=True)
    braked = jnp.where(radial > 0, outward, inward) * radial
    q = p + g + (braked - radial) * direction
    radius = jnp.maximum(old + braked, 0)
    return jnp.where(is_zero, g, q * _over(radius, norms(q, "matrix")) - p)


@equation
def keep_norm(
    g: Matrix, p: Matrix, *, radius: Float[Array, ""] | None, per: Per
) -> Inexact[Array, "m n"]:
    kept = norms(p, per)
    if radius is not None:
        kept = jnp.where(kept == 0, 0, radius)
    return jnp.where(kept == 0, g, (p + g) * _over(kept, norms(p + g, per)) - p)


@equation
def keep_first_norm(
    g: Matrix, radius: Float[Array, "_ 1"], p: Matrix, *, per: Per
) -> tuple[Inexact[Array, "m n"], Float[Array, "_ 1"]]:
    radius = jnp.where(radius == 0, norms(p, per), radius)
    u = (p + g) * _over(radius, norms(p + g, per)) - p
    return jnp.where(radius == 0, g, u), radius


class _NormControl(AbstractMatrixwise):
    """Uses the norms of matrices, or of their rows if `per="row"`; it has no state."""

    @property
    def _rows(self) -> Rows:
        return _rows_of(getattr(self, "per", "matrix"))

    def init(self, params: Params) -> None:
        self._layouts(params, params)  # raises an error if they do not fit


class RelativeUpdate(_NormControl):
    r"""Gives the update of each matrix the norm of the matrix.

    $$u = \frac{\|p\|}{\|g\|}\; g$$

    The learning rate after it is then the fraction by which a matrix changes in each
    step. If one of the norms is zero, $u = g$. Parameters that are not matrices pass
    unchanged.

    **Arguments:**

    - `per`: whether to use the norm of each `"matrix"`, or of each `"row"`, the weights
        of one output of a layer.
    - `weight_dimension_numbers`: see [`eqopt.ScaleByMuon`][]. Each matrix in a stack has
        its own norm.

    **Raises:**

    A `ValueError` if `per` is something else. In `init` and `update`, a `ValueError` with
    the key path if the dimension numbers do not fit the parameters. In `update`, a
    `ValueError` if `params` is `None`.
    """

    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_choice(self, "per", get_args(Per))

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(relative_update)


class UpdateNormFloor(_NormControl):
    r"""Lengthens the update of a matrix if it is short relative to the matrix.

    $$u = g\, \max\!\left(1, \frac{f\, \|p\|}{\|g\|}\right)$$

    Longer updates stay unchanged, and so does $g$ if one of the norms is zero. Parameters
    that are not matrices pass unchanged.

    **Arguments:**

    - `floor`: $f \ge 0$, the smallest norm of an update, relative to the norm of its
        matrix, before the learning rate is applied.
    - `per`, `weight_dimension_numbers`: see [`eqopt.RelativeUpdate`][].

    **Raises:**

    A `ValueError` if an argument is invalid, and the errors of
    [`eqopt.RelativeUpdate`][].
    """

    floor: Hyperparameter = 0.35
    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_range(self, "floor", 0)
        check_choice(self, "per", get_args(Per))

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(floor_norm)


Brake: TypeAlias = Literal["norm", "component"]
_BRAKES = {"norm": brake_norm, "component": brake_component}


class RadialBrake(_NormControl):
    r"""Limits the change of the norm of a matrix to a fraction.

    Put it after the learning rate, where the update $g$ is added to $p$. It returns

    $$u = r\, \frac{p + g}{\|p + g\|} - p, \qquad
      r = \|p\| + s\, \big(\|p + g\| - \|p\|\big),$$

    with $s = s_\text{out}$ if the step increases the norm, and $s = s_\text{in}$
    otherwise. So the new matrix has the direction of $p + g$. With `of="component"`, only
    the part of $g$ along $p$ is multiplied by $s$, and
    $r = \|p\| + s\, \langle g, p\rangle / \|p\|$. A matrix of zeros takes the whole
    step. Parameters that are not matrices pass unchanged.

    **Arguments:**

    - `outward`: $s_\text{out} \ge 0$.
    - `inward`: $s_\text{in} \ge 0$.
    - `of`: `"norm"` or `"component"`.
    - `weight_dimension_numbers`: see [`eqopt.RelativeUpdate`][].

    **Raises:**

    A `ValueError` if an argument is invalid, and the errors of
    [`eqopt.RelativeUpdate`][].
    """

    outward: Hyperparameter = 0.5
    inward: Hyperparameter = 1.0
    of: Brake = eqx.field(static=True, default="norm")
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_range(self, "outward", 0)
        check_range(self, "inward", 0)
        check_choice(self, "of", _BRAKES)

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(_BRAKES[self.of])


class KeepNormState(eqx.Module):
    """`radius`: with `radius="initial"`, the norms to keep; otherwise `None`.

    They are zero before the first step, in a tree like the parameters, with a number for
    each matrix or row.
    """

    radius: Nonnegative | None


class KeepNorm(AbstractMatrixwise):
    r"""Scales each matrix so that it keeps the norm from before the step.

    Put it after the learning rate, where the update $g$ is added to $p$:

    $$u = R\, \frac{p + g}{\|p + g\|} - p$$

    For a matrix of zeros, $u = g$. Parameters that are not matrices pass unchanged.

    **Arguments:**

    - `radius`: $R$: `"current"` for the norm $\|p\|$, which rounding changes a little
        over many steps; `"initial"` for the norm in the first step, which is kept in
        the state; or a positive number for all matrices.
    - `per`, `weight_dimension_numbers`: see [`eqopt.RelativeUpdate`][].

    **Raises:**

    A `ValueError` if an argument is invalid, and the errors of
    [`eqopt.RelativeUpdate`][].
    """

    radius: Radius = "current"
    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    @property
    def _rows(self) -> Rows:
        return _rows_of(self.per)

    def __check_init__(self):
        check_choice(self, "per", get_args(Per))
        if isinstance(self.radius, str):
            check_choice(self, "radius", ("current", "initial"))
        else:
            check_range(self, "radius", 0, includes_low=False)

    def init(self, params: Params) -> KeepNormState:
        if self.radius != "initial":
            self._layouts(params, params)  # raises an error if they do not fit
            return KeepNormState(None)
        return KeepNormState(self.for_matrices(params, lambda x: norms(x, self.per)))

    def matrixwise(
        self, state: KeepNormState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        if state.radius is not None:
            return Leafwise(keep_first_norm, state)
        radius = None if isinstance(self.radius, str) else self.radius
        return Leafwise(keep_norm, state, {"radius": radius})
