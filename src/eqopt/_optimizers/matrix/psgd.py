"""PSGD-Kron: a preconditioner that is fitted to whiten gradients, without inverses."""

import functools
import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Int

from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers
from ..._transforms.normalize import power_of_two
from ..._trees.control import cond
from ..._types import (
    Count,
    Mask,
    Params,
    PerLeaf,
    Positive,
    ScalarOrSchedule,
    Size,
    SizeOrZero,
    Unit,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_root_mean_squares, safe_sqrt
from ..moments import counted
from .parts.eigenbasis import Matrix, gram
from .parts.recipe import AbstractMatrixRecipe, WeightDecay
from .parts.stagger import Shift, shifts


# The decay of the estimate of a Lipschitz constant, and the longest step of a rotation.
_LIPSCHITZ_BETA = 0.9
_LONGEST_ROTATION = 1 / 8

# The number of steps of the power iteration that estimates a norm.
_POWER_STEPS = 2

# The largest square of a whitened norm to which factors are fitted.
_LARGEST = 1e30


class ScaleByPSGDKronState(eqx.Module):
    r"""The momentum, and the two factors of each preconditioner.

    **Attributes:**

    - `count`: the number of steps so far, a 0-d int32 array.
    - `mu`: the mean of the gradients, a tree like the parameters, with `None` for
        parameters that are not matrices.
    - `factors`: $(Q_L, Q_R)$ for each matrix, with the axes of its stack first. A vector
        is the diagonal of a factor.
    - `lipschitz`: $(\ell_L, \ell_R)$, estimates of the Lipschitz constants of the
        gradient of the fit.
    """

    count: Int[Array, ""]
    mu: Updates
    factors: PerLeaf
    lipschitz: PerLeaf


@equation
def psgd_kron(
    g: Matrix,
    mu: Matrix,
    factors: Any,
    lipschitz: Any,
    shift: Shift,
    *,
    b1,
    mu_correction,
    preconditioner_lr,
    damping,
    max_rms,
    max_abs,
    steps,
    precondition_frequency,
    whiten_momentum,
) -> tuple[Matrix, Matrix, Any, Any]:
    mu = b1 * mu + (1 - b1) * g
    mean = mu / mu_correction
    seen = mean if whiten_momentum else g
    factors = _at_scale(factors, seen, damping)
    is_due = shift.is_due(steps, precondition_frequency)
    old = factors, lipschitz
    fit = functools.partial(_fitted, preconditioner_lr, damping, seen, *old)
    factors, lipschitz = cond(is_due, fit, lambda: old)
    u = _whitened_by(mean, [_squared(q) for q in factors])
    u = u * _shrinking(safe_root_mean_squares(u, 0), max_rms)
    u = u * _shrinking(safe_sqrt(abs_sq(u)), max_abs)
    return u, mu, factors, lipschitz


def _shrinking(size, limit):
    is_over = size > limit
    return jnp.where(is_over, limit / jnp.where(is_over, size, 1), 1)


# One step of the fit. The factors are matrices, or vectors that represent diagonals.


def _fitted(rate, damping, g, factors, lipschitz):
    """The factors and the Lipschitz constants after one step of the fit.

    They stay as they are if the gradient is too large for squares of its products.
    """
    factors = _balanced(factors)
    squares = [_squared(q) for q in factors]
    whitened = _whitened_by(g, squares)
    pairs = []
    for side, (q, old) in enumerate(zip(factors, lipschitz, strict=True)):
        # The expected effect of noise of size `damping` on the gradients.
        others = float(g.size // q.shape[0])
        noise = damping**2 * jnp.sum(abs_sq(squares[1 - side]))
        is_diagonal = q.ndim == 1
        if is_diagonal:
            first = jnp.sum(abs_sq(whitened), 1 - side) + noise * squares[side] ** 2
            total = jnp.sum(first)
            bound = jnp.max(first) + others
            ascent = first * q - others * q
        else:
            x = whitened if side == 0 else whitened.T
            first = x @ jnp.conj(x.T) + noise * (squares[side] @ squares[side])
            total = jnp.trace(first).real
            bound = _norm(first) + others
            ascent = first @ q - others * q
        new = jnp.maximum(_LIPSCHITZ_BETA * old + (1 - _LIPSCHITZ_BETA) * bound, bound)
        step = q - rate / new * ascent
        is_lost = total > _LARGEST
        q_new = step if is_diagonal else _rotated(step)
        pairs.append((jnp.where(is_lost, q, q_new), jnp.where(is_lost, old, new)))
    return tuple(tuple(x) for x in zip(*pairs, strict=True))


def _at_scale(factors, g, damping):
    """Replaces factors that are zero by the identity at the scale of the gradient."""
    largest = jnp.max(jnp.abs(g))
    ratio = g / jnp.where(largest > 0, largest, 1)
    size = largest * jnp.where(largest > 0, jnp.mean(abs_sq(ratio) ** 2), 1) ** 0.25
    scale = jnp.maximum(size, damping)
    # The squares of both factors multiply to the inverse of the scale.
    scale = jnp.where(size > 0, jnp.where(scale > 0, scale, 1) ** -0.25, 0)

    def identity(q):
        return jnp.ones_like(q) if q.ndim == 1 else jnp.eye(len(q), dtype=q.dtype)

    is_new = jnp.all(factors[0] == 0)
    return tuple(jnp.where(is_new, scale * identity(q), q) for q in factors)


def _balanced(factors):
    """Factors with the same product, scaled so that their largest elements are equal."""
    left, right = (jnp.max(jnp.abs(q)) for q in factors)
    ratio = jnp.sqrt(jnp.where(left > 0, right, 1) / jnp.where(left > 0, left, 1))
    return [factors[0] * ratio, factors[1] / jnp.where(ratio > 0, ratio, 1)]


def _squared(q):
    return abs_sq(q) if q.ndim == 1 else jnp.conj(q.T) @ q


def _whitened_by(x, squares):
    r"""$P_L X P_R^\top$."""
    left, right = squares
    x = left[:, None] * x if left.ndim == 1 else left @ x
    return x * right[None] if right.ndim == 1 else x @ right.T


def _norm(x):
    """A close lower bound of the spectral norm of a normal matrix."""
    y = x[:, jnp.argmax(jnp.sum(abs_sq(x), 0))]
    for _ in range(_POWER_STEPS):
        y = x @ (y / _at_least_tiny(_length(y)))
    return _length(y)


def _length(y):
    """The norm of a vector, whose squares may overflow."""
    unit = power_of_two(jnp.max(jnp.abs(y)))
    return unit * safe_sqrt(jnp.sum(abs_sq(y / unit)))


def _at_least_tiny(x):
    return jnp.where(x > 0, x, 1)


def _rotated(q):
    """Rotates `q` slightly towards the Hermitian matrix with the same square.

    The rotation is a constant in derivatives. It has none where `q` is Hermitian, which
    factors are at first.
    """
    r = lax.stop_gradient(jnp.conj(q.T) - q)
    r = r / _at_least_tiny(_norm(r))
    once = r @ q
    twice = r @ once
    rise, fall = jnp.trace(once).real, -jnp.trace(twice).real
    best = jnp.minimum(rise / jnp.where(fall > 0, fall, 1), _LONGEST_ROTATION)
    a = lax.stop_gradient(jnp.where(fall > 0, best, _LONGEST_ROTATION))
    return q + a * (once + 0.5 * a * twice)


class ScaleByPSGDKron(AbstractMatrixwise):
    r"""Whitens each matrix with a preconditioner that is fitted step by step.

    For each matrix $G_t$ with $m$ outputs and $n$ inputs, $P_L = Q_L^* Q_L$,
    $P_R = Q_R^* Q_R$, and

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, G_t &
      u_t &= \operatorname{clip}\left(
        P_L\, \frac{\mu_t}{1 - \beta_1^t}\, P_R \right).
    \end{aligned}$$

    The factors minimize $\operatorname{E} \operatorname{tr} (G^* P_L G P_R) +
    \operatorname{tr} (P_L^{-1} \otimes P_R^{-1})$. At the minimum, the updates are
    white. Let $W = P_L G_t P_R$ be the gradient, whitened by the old factors. Then

    $$\begin{aligned}
      T_L &= W W^* + \delta^2\, \|P_R\|_F^2\, P_L^2 &
      \ell_L &\leftarrow \max\left( 0.9\, \ell_L + 0.1\, s,\; s \right),
      \quad s = \|T_L\| + n \\
      Q_L &\leftarrow Q_L - \frac{\rho}{\ell_L} (T_L - n I)\, Q_L,
    \end{aligned}$$

    and $Q_L$ is then rotated towards a Hermitian matrix. $Q_R$ is fitted in the same
    way. Both start as identities, scaled according to the first gradient that is not
    zero. $\ell$ estimates the Lipschitz constant of the fit.

    There are no inverses, and nothing is random. The authors add noise of size $\delta$
    to the gradients; here, $T_L$ contains its expectation instead. The norm is
    estimated by the power method, starting from the longest column. (The authors call
    this form Q0.5EQ1.5.) A gradient whose whitened norm is above 1e15 does not change
    them, and its update is zero above 1.8e19, where squares overflow float32.

    Parameters that are not matrices pass unchanged and have no state. Stacked matrices
    are transformed separately.

    Derivatives through the step treat the rotation of full factors as a constant.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$. Defaults to 0.9.
    - `preconditioner_lr`: $\rho \in [0, 1)$. The fit oscillates above about 0.4.
        Defaults to 0.1.
    - `damping`: $\delta \ge 0$. Defaults to 1e-9.
    - `max_rms`: the limit to which the root mean square of an update is clipped, above 0.
        Defaults to 2.0.
    - `max_abs`: the limit to which each element is then clipped, above 0. Defaults to
        10.0.
    - `precondition_frequency`: the number of steps from one fit of the factors to the
        next, an integer or an integer 0-d array. Defaults to 1.
    - `whiten_momentum`: whether to fit the factors to the momentum instead of the
        gradients. The updates are then longer by a factor of about
        $\sqrt{(1 + \beta_1) / (1 - \beta_1)}$. Defaults to `False`.
    - `max_size`: the largest side with a full factor, an integer of at least 0. The
        factors of larger sides are diagonal. Defaults to 8192.
    - `max_skew`: an integer. The factor of a side is also diagonal if the side is longer
        than `max_skew` times the other side. `None` for no such limit. Defaults to 1.
    - `stagger`: whether matrices take turns, so that their factors are fitted in
        different steps. Defaults to `False`.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
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

    A `ValueError` if a hyperparameter is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "References"

        ```bibtex
        @article{li2018preconditioned,
            author = {Li, Xi-Lin},
            title = {Preconditioned Stochastic Gradient Descent},
            journal = {IEEE Transactions on Neural Networks and Learning Systems},
            year = {2018},
        }

        @article{pooladzandi2024curvature,
            author = {Pooladzandi, Omead and Li, Xi-Lin},
            title = {Curvature-Informed {SGD} via General Purpose {Lie}-Group
                     Preconditioners},
            journal = {arXiv:2402.04553},
            year = {2024},
        }
        ```
    """

    _stays: ClassVar[bool] = True
    _sized = (("factors", "_factors"),)

    b1: Unit = 0.9
    preconditioner_lr: Unit = 0.1
    damping: ZeroOrMore = 1e-9
    max_rms: Positive = 2.0
    max_abs: Positive = 10.0
    precondition_frequency: Count = 1
    whiten_momentum: bool = False
    max_size: SizeOrZero = static_choice(static=True, default=8192)
    max_skew: Size | None = static_choice(static=True, default=1)
    stagger: bool = static_choice(static=True, default=False)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    def init(self, params: Params) -> ScaleByPSGDKronState:
        zeros = lambda x: (jnp.zeros((), x.real.dtype),) * 2
        return ScaleByPSGDKronState(
            jnp.zeros((), jnp.int32),
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            factors=self.for_matrices(params, self._factors),
            lipschitz=self.for_matrices(params, zeros),
        )

    def _factors(self, x: Any) -> tuple[Any, ...]:
        made = []
        for i, n in enumerate(x.shape):
            other = x.shape[1 - i]
            limit = math.inf if self.max_skew is None else self.max_skew * other
            is_diagonal = n > min(self.max_size, limit)
            made.append(jnp.sum(x.real, 1 - i) if is_diagonal else gram(x, i))
        return tuple(made)

    def matrixwise(
        self, state: ScaleByPSGDKronState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        every = jnp.asarray(self.precondition_frequency, jnp.int32)
        reads = {"shift": functools.partial(shifts, self, params)}
        return counted(self, psgd_kron, state, reads=reads, steps=state.count % every)


class PSGDKron(AbstractMatrixRecipe):
    r"""PSGD-Kron: steps whitened with a preconditioner that is fitted during training.

    !!! abstract "One step"

        For each matrix $G_t$ with $m$ outputs and $n$ inputs, $P_L = Q_L^* Q_L$,
        $P_R = Q_R^* Q_R$, and

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, G_t &
          u_t &= \operatorname{clip}\left(
            P_L\, \frac{\mu_t}{1 - \beta_1^t}\, P_R \right).
        \end{aligned}$$

        The factors minimize $\operatorname{E} \operatorname{tr} (G^* P_L G P_R) +
        \operatorname{tr} (P_L^{-1} \otimes P_R^{-1})$. At the minimum, the updates are
        white. Let $W = P_L G_t P_R$ be the gradient, whitened by the old factors. Then

        $$\begin{aligned}
          T_L &= W W^* + \delta^2\, \|P_R\|_F^2\, P_L^2 &
          \ell_L &\leftarrow \max\left( 0.9\, \ell_L + 0.1\, s,\; s \right),
          \quad s = \|T_L\| + n \\
          Q_L &\leftarrow Q_L - \frac{\rho}{\ell_L} (T_L - n I)\, Q_L,
        \end{aligned}$$

        and $Q_L$ is then rotated towards a Hermitian matrix. $Q_R$ is fitted in the
        same way. Both start as identities, scaled according to the first gradient that
        is not zero. $\ell$ estimates the Lipschitz constant of the fit.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByPSGDKron`][]. Derivatives through
        the step treat the rotation of full factors as a constant.

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9), $\rho$ is
        `preconditioner_lr` (0.1), $\delta$ is `damping` (1e-9), $\lambda$ is
        `weight_decay` (0.0). Parameters that are not matrices use `fallback`, by
        default [`eqopt.AdamW`][].

    !!! example

        ```python
        opt = eqopt.PSGDKron(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$. Defaults to 0.9.
    - `preconditioner_lr`: $\rho \in [0, 1)$. The fit oscillates above about 0.4.
        Defaults to 0.1.
    - `damping`: $\delta \ge 0$. Defaults to 1e-9.
    - `max_rms`: the limit to which the root mean square of an update is clipped,
        above 0. Defaults to 2.0.
    - `max_abs`: the limit to which each element is then clipped, above 0. Defaults to
        10.0.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `precondition_frequency`: the number of steps from one fit of the factors to the
        next, an integer or an integer 0-d array. Defaults to 1.
    - `whiten_momentum`: whether to fit the factors to the momentum instead of the
        gradients. The updates are then longer by a factor of about
        $\sqrt{(1 + \beta_1) / (1 - \beta_1)}$. Defaults to `False`.
    - `max_size`: the largest side with a full factor, an integer of at least 0. The
        factors of larger sides are diagonal. Defaults to 8192.
    - `max_skew`: an integer. The factor of a side is also diagonal if the side is
        longer than `max_skew` times the other side. `None` for no such limit. Defaults
        to 1.
    - `stagger`: whether matrices take turns, so that their factors are fitted in
        different steps. Defaults to `False`.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
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
        [`eqopt.groups.stacked`][].
    - `fallback`: the optimizer for all parameters that are not matrices. Defaults to
        `None`, which means [`eqopt.AdamW`][] with the same `learning_rate`,
        `weight_decay` and `mask`, and with $\beta_2 = 0.95$. Your own has its own
        decay.

    **When to use it:** if decompositions are slow or inexact, in low precision or on
    hardware without them: a step uses only matrix products. For white gradients, its
    updates have a root mean square of about 1, so Adam's learning rates are a good
    start. Its authors report fewer steps than AdamW on language models.

    ??? cite "References"

        ```bibtex
        @article{li2018preconditioned,
            author = {Li, Xi-Lin},
            title = {Preconditioned Stochastic Gradient Descent},
            journal = {IEEE Transactions on Neural Networks and Learning Systems},
            year = {2018},
        }

        @article{pooladzandi2024curvature,
            author = {Pooladzandi, Omead and Li, Xi-Lin},
            title = {Curvature-Informed {SGD} via General Purpose {Lie}-Group
                     Preconditioners},
            journal = {arXiv:2402.04553},
            year = {2024},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    preconditioner_lr: Unit = 0.1
    damping: ZeroOrMore = 1e-9
    max_rms: Positive = 2.0
    max_abs: Positive = 10.0
    weight_decay: WeightDecay = 0.0
    precondition_frequency: Count = 1
    whiten_momentum: bool = False
    max_size: SizeOrZero = static_choice(static=True, default=8192)
    max_skew: Size | None = static_choice(static=True, default=1)
    stagger: bool = static_choice(static=True, default=False)
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    _part = ScaleByPSGDKron
