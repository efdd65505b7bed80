"""Controls the norms of steps and weights: how far a matrix turns, and how it grows."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation, Leafwise, equation
from ..._errors import InputError
from ..._matrices import (
    AbstractMatrixwise,
    DimensionNumbers,
    make_slot,
    map_layouts,
    map_matrices,
)
from ..._transforms.scale import ScaleByLearningRate, has_learning_rate
from ..._types import (
    Interval,
    Params,
    PerLeaf,
    RealScalarLike,
    ScalarOrSchedule,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_sqrt
from ...tree import zeros_like
from .parts.eigenbasis import Matrix


Per: TypeAlias = Literal["matrix", "row"]
Radius: TypeAlias = (
    Literal["current", "initial"]
    | Annotated[RealScalarLike, Interval(0, includes_low=False)]
)


class Norms(eqx.Module):
    """A function of a matrix: its norm, or a norm for each row or column."""

    axes: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Matrix) -> Float[Array, "_ _"]:
        return safe_sqrt(jnp.sum(abs_sq(x), self.axes, keepdims=True))


norm = Norms((0, 1))


def _over(above: Array, below: Array) -> Array:
    """`above / below`, or 1 if one of them is zero, or the first one infinite."""
    is_one = (above == 0) | (below == 0) | jnp.isinf(above)
    return jnp.where(is_one, 1, above / jnp.where(is_one, 1, below))


def _step(q: Matrix, radius: Array, norms: Norms, g: Matrix, p: Matrix) -> Matrix:
    """The step from `p` to `q`, scaled to the norm `radius`; zeros stay zeros.

    No step if the square of a norm overflows. (Not 0: an infinity stays visible as NaN.)
    """
    found = norms(q)
    u = q * (radius / jnp.where(found == 0, 1, found)) - p
    return jnp.where(jnp.isinf(radius) | jnp.isinf(found), 0 * g, u)


@equation
def relative_update(g: Matrix, p: Matrix, norms: Norms) -> Matrix:
    return g * _over(norms(p), norms(g))


@equation
def floor_norm(g: Matrix, p: Matrix, norms: Norms, *, floor) -> Matrix:
    return g * jnp.maximum(1, _over(floor * norms(p), norms(g)))


@equation
def brake_norm(g: Matrix, p: Matrix, *, outward, inward) -> Matrix:
    old, new = norm(p), norm(p + g)
    part = jnp.where(new > old, outward, inward)
    radius = jnp.maximum(old + part * (new - old), 0)
    radius = jnp.where(jnp.isinf(old), old, radius)  # not infinity minus infinity
    return jnp.where(old == 0, g, _step(p + g, radius, norm, g, p))


@equation
def brake_component(g: Matrix, p: Matrix, *, outward, inward) -> Matrix:
    old = norm(p)
    is_zero = old == 0
    direction = p / jnp.where(is_zero, 1, old)
    radial = jnp.sum(jnp.real(jnp.conj(direction) * g), keepdims=True)
    braked = jnp.where(radial > 0, outward, inward) * radial
    q = p + g + (braked - radial) * direction
    radius = jnp.maximum(old + braked, 0)
    return jnp.where(is_zero, g, _step(q, radius, norm, g, p))


@equation
def keep_norm(g: Matrix, p: Matrix, norms: Norms, *, radius) -> Matrix:
    kept = norms(p)
    if radius is not None:
        kept = jnp.where(kept == 0, 0, radius)
    return jnp.where(kept == 0, g, _step(p + g, kept, norms, g, p))


@equation
def keep_first_norm(
    g: Matrix, radius: Float[Array, "_ _"], p: Matrix, norms: Norms
) -> tuple[Matrix, Float[Array, "_ _"]]:
    # Unlike `jnp.where`, it takes no numbers of rows for the number of the matrix.
    radius = lax.select(radius == 0, norms(p), radius)
    u = _step(p + g, radius, norms, g, p)
    return jnp.where(radius == 0, g, u), radius


class _NormControl(AbstractMatrixwise):
    """Uses the norms of matrices, or those for each output if `per="row"`.

    The sides of a matrix have the order of memory, so that nothing is transposed. Then
    the rows of an array with inputs first are its columns.
    """

    in_batches: ClassVar[bool] = False
    _rows = "first"

    def _norms(self, tree, params):
        is_of_rows = getattr(self, "per", "matrix") == "row"
        of_rows = lambda axes, x: Norms((int(axes.output < axes.reduction),))
        one = of_rows if is_of_rows else lambda axes, x: norm
        return map_matrices(one, self.weight_dimension_numbers, tree, params)

    def _leafwise(self, equation, state, params, **shared) -> Leafwise:
        norms = lambda updates: self._norms(updates, params)
        return Leafwise(equation, state, shared, reads={"norms": norms})


class _Stateless(_NormControl):
    def init(self, params: Params) -> None:
        self._layouts(params, params)  # raises an error if they do not fit


class RelativeUpdate(_Stateless):
    r"""Gives the update of each matrix the norm of the matrix.

    $$u = \frac{\|p\|}{\|g\|}\; g$$

    The learning rate after it is then the fraction by which a matrix changes in each
    step. If one of the norms is zero, $u = g$. In float32, the square of a norm above
    1.8e19 overflows: then $u = 0$, or $u = g$ if it is the norm of the matrix. Parameters
    that are not matrices pass unchanged.

    **Arguments:**

    - `per`: whether to use the norm of each `"matrix"`, or of each `"row"`, the weights
        of one output of a layer. Defaults to `"matrix"`.
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
        [`eqopt.groups.stacked`][]. Each matrix in a stack has its own norm.

    **Raises:**

    A `ValueError` if `per` is something else, if the dimension numbers do not fit the
    parameters (with the key path), or if `params` is `None` in `update`.

    **When to use it:** if the learning rate should mean how far a matrix moves relative
    to its size. The norm may still grow; [`eqopt.Hyperball`][] also keeps it.
    """

    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return self._leafwise(relative_update, state, params)


class UpdateNormFloor(_Stateless):
    r"""Lengthens the update of a matrix if it is short relative to the matrix.

    $$u = g\, \max\!\left(1, \frac{f\, \|p\|}{\|g\|}\right)$$

    Longer updates stay unchanged, and so does $g$ if one of the norms is zero, or above
    1.8e19, where its square overflows float32. Parameters that are not matrices pass
    unchanged.

    **Arguments:**

    - `floor`: $f \ge 0$, the smallest norm of an update, relative to the norm of its
        matrix, before the learning rate is applied. Defaults to 0.35.
    - `per`: whether to use the norm of each `"matrix"`, or of each `"row"`, the weights
        of one output of a layer. Defaults to `"matrix"`.
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
        [`eqopt.groups.stacked`][]. Each matrix in a stack has its own norm.

    **Raises:**

    A `ValueError` for an invalid argument, or as in [`eqopt.RelativeUpdate`][].

    **When to use it:** after an orthogonalized or normalized direction, if large
    weights hardly move any more. Runs of the public benchmark of GPT-2-small training
    use floors of 0.35 to 0.38; its record has one floor for each row.
    """

    floor: ZeroOrMore = 0.35
    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return self._leafwise(floor_norm, state, params)


Brake: TypeAlias = Literal["norm", "component"]
_BRAKES = {"norm": brake_norm, "component": brake_component}


class RadialBrake(_Stateless):
    r"""Limits the change of the norm of a matrix to a fraction.

    Put it after the learning rate, where the update $g$ is added to $p$. It returns

    $$u = r\, \frac{p + g}{\|p + g\|} - p, \qquad
      r = \max\Big(0,\; \|p\| + s\, \big(\|p + g\| - \|p\|\big)\Big),$$

    with $s = s_\text{out}$ if the step increases the norm, and $s = s_\text{in}$
    otherwise. So the new matrix has the direction of $p + g$. With `of="component"`, only
    the part of $g$ along $p$ is multiplied by $s$, and
    $r = \max(0, \|p\| + s\, \langle g, p\rangle / \|p\|)$. A matrix of zeros takes the
    whole step. In float32, the square of a norm above 1.8e19 overflows: then the matrix
    stays as it is. Parameters that are not matrices pass unchanged.

    **Arguments:**

    - `outward`: $s_\text{out} \ge 0$. Defaults to 0.5.
    - `inward`: $s_\text{in} \ge 0$. Defaults to 1.0.
    - `of`: `"norm"` or `"component"`. Defaults to `"norm"`.
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
        [`eqopt.groups.stacked`][]. Each matrix in a stack has its own norm.

    **Raises:**

    A `ValueError` for an invalid argument, or as in [`eqopt.RelativeUpdate`][].

    **When to use it:** instead of weight decay, if weights that are followed by a
    normalization grow, and smaller relative steps are not wanted. The record of the
    public benchmark of GPT-2-small training halves the outward part.
    """

    outward: ZeroOrMore = 0.5
    inward: ZeroOrMore = 1.0
    of: Brake = eqx.field(static=True, default="norm")
    weight_dimension_numbers: DimensionNumbers | None = None

    def matrixwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(_BRAKES[self.of])


class KeepNormState(eqx.Module):
    """`radius`: with `radius="initial"`, the norms to keep; otherwise `None`.

    They are zero before the first step, in a tree like the parameters, with a number for
    each matrix or row.
    """

    radius: PerLeaf | None


class KeepNorm(_NormControl):
    r"""Scales each matrix so that it keeps the norm from before the step.

    Put it after the learning rate, where the update $g$ is added to $p$:

    $$u = R\, \frac{p + g}{\|p + g\|} - p$$

    For a matrix of zeros, $u = g$. In float32, the square of a norm above 1.8e19
    overflows: then $u = 0$. Parameters that are not matrices pass unchanged.

    **Arguments:**

    - `radius`: $R$: `"current"` for the norm $\|p\|$, which rounding changes a little
        over many steps; `"initial"` for the norm in the first step, which is kept in
        the state; or a positive number for all matrices. Defaults to `"current"`.
    - `per`: whether to use the norm of each `"matrix"`, or of each `"row"`, the weights
        of one output of a layer. Defaults to `"matrix"`.
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
        [`eqopt.groups.stacked`][]. Each matrix in a stack has its own norm.

    **Raises:**

    A `ValueError` for an invalid argument, or as in [`eqopt.RelativeUpdate`][].

    **When to use it:** at the end of a chain, to keep the norms of hidden matrices. It
    is the last part of [`eqopt.Hyperball`][].
    """

    radius: Radius = "current"
    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> KeepNormState:
        layouts = self._layouts(params, params)
        if self.radius != "initial":
            return KeepNormState(None)
        start = lambda layout, norms, x: make_slot(norms, x, layout, None)
        norms = self._norms(params, params)
        return KeepNormState(map_layouts(start, layouts, norms, zeros_like(params)))

    def matrixwise(
        self, state: KeepNormState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        radius = None if isinstance(self.radius, str) else self.radius
        is_first = radius is None and self.radius == "initial"
        if is_first == (state.radius is None):
            self._reject_state()
        if is_first:
            return self._leafwise(keep_first_norm, state, params)
        return self._leafwise(keep_norm, state, params, radius=radius)


class Hyperball(AbstractOptimizer):
    r"""Turns each matrix in the direction of `inner` and keeps its norm.

    !!! abstract "One step"

        $$\tilde p_t = p_{t-1} - \eta_t\, \|p_{t-1}\|\, \frac{u_t}{\|u_t\|}, \qquad
          p_t = R\, \frac{\tilde p_t}{\|\tilde p_t\|},$$

        where $u_t$ is the update of `inner`. If $u_t$ is orthogonal to the matrix, the
        learning rate is the tangent of the angle by which the matrix turns. Weight
        decay has no effect. Parameters that are not matrices move by $-\eta_t u_t$.

        $\eta$ is `learning_rate`, $R$ is `radius` (`"current"`).

    `Hyperball(ScaleByAdam(), ...)` is also known as AdamH. With
    [`eqopt.ScaleByMuon`][], it is MuonH, and with [`eqopt.ScaleBySOAP`][], SOAP-H.

    !!! example

        ```python
        head = eqopt.groups.where(lambda model: model.head)
        opt = eqopt.Partition(
            {
                "head": eqopt.AdamW(3e-3),
                "rest": eqopt.Hyperball(eqopt.ScaleByAdam(b2=0.95), 0.02),
            },
            eqopt.groups.label({"head": head, "rest": eqopt.groups.everything}),
        )
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `inner`: the transformation that computes the direction, such as
        [`eqopt.ScaleByAdam`][]. It must not have a learning rate.
    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. It corresponds to
        about $\sqrt{\eta\lambda}$ for an AdamW with learning rate $\eta$ and weight
        decay $\lambda$.
    - `radius`: $R$: `"current"` for the norm $\|p\|$, which rounding changes a little
        over many steps; `"initial"` for the norm in the first step, which is kept in
        the state; or a positive number for all matrices. Defaults to `"current"`.
    - `per`: whether to use the norm of each `"matrix"`, or of each `"row"`, the weights
        of one output of a layer. Defaults to `"matrix"`.
    - `weight_dimension_numbers`: which parameters are matrices, and which of their axes
        are outputs and inputs. It is a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` with the structure of the parameters or a prefix of it, or a function of
        the parameters that returns one. A single `MatrixDimensionNumbers` applies to
        all arrays with at least two axes. Defaults to `None`, which means
        [`eqopt.groups.layer_matrices`][]: the weights of Equinox's linear, convolution
        and recurrent layers, and arrays with two axes (inputs first) outside the layers
        of `equinox.nn`. Embeddings are not matrices. Other arrays with three or more
        axes outside these layers, such as your own stack of matrices, are then an
        error. Describe them with [`eqopt.groups.matrices`][] and
        [`eqopt.groups.stacked`][]. Each matrix in a stack has its own norm. If
        embeddings or the last layer count as matrices, exclude them as in the example.

    **Raises:**

    A `ValueError` if `inner` has a learning rate, and the errors of
    [`eqopt.KeepNorm`][].

    **When to use it:** instead of weight decay, for hidden matrices. The learning rate
    alone then determines how far they turn in a step, so it means the same for wide and
    narrow layers. In the public benchmark of GPT-2-small training, Adam takes 4875
    steps on the sphere and 5625 without; Muon takes 3250 either way. On eqopt's small
    workloads, Adam takes as many steps as AdamW.

    ??? cite "References"

        The code of the Marin project (`levanter`, `optim/adamh.py` and `muonh.py`) uses
        the current norm as the radius. NVIDIA's Emerging-Optimizers take the radius as
        an argument.

        ```bibtex
        @misc{marin2025adamh,
            author = {{The Marin Project}},
            title = {Levanter},
            url = {https://github.com/marin-community/levanter},
        }

        @misc{nvidia2025emerging,
            author = {{NVIDIA}},
            title = {Emerging-Optimizers},
            url = {https://github.com/NVIDIA-NeMo/Emerging-Optimizers},
        }
        ```
    """

    inner: AbstractTransformation
    learning_rate: ScalarOrSchedule
    radius: Radius = "current"
    per: Per = eqx.field(static=True, default="matrix")
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self) -> None:
        if has_learning_rate(self.inner):
            raise InputError(
                "`inner` must not have a learning rate, but "
                f"{type(self.inner).__name__} has one. Pass `eqopt.ScaleByAdam()` "
                "instead of `eqopt.Adam`, for example."
            )

    @property
    def chain(self) -> Chain:
        return Chain(
            self.inner,
            self.part(RelativeUpdate),
            self.part(ScaleByLearningRate),
            self.part(KeepNorm),
        )
