"""Shampoo: divides both sides of a gradient by roots of their second moments."""

import functools
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from ..._arguments.checks import check_fields, check_interval
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation, Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers, Rows, Work
from ..._transforms.normalize import zero_if_infinite
from ..._types import (
    ClosedUnit,
    Count,
    Mask,
    Params,
    PerLeaf,
    Positive,
    ScalarOrSchedule,
    Size,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import (
    abs_sq,
    bias_correction,
    safe_increment,
    safe_norm,
    safe_sqrt,
)
from ..moments import AbstractMomentsState, counted, root_plus
from .parts.eigenbasis import (
    Matrix,
    PerSide,
    average,
    eigenvalues,
    from_basis,
    grams,
    identities,
    inverse_root,
    renew_if_due,
    start_or_follow,
    to_basis,
    whitened,
)
from .parts.recipe import AbstractMatrixRecipe, WeightDecay, matrices_and_others
from .parts.stagger import Shift, shifts


Graft: TypeAlias = Literal["adam", "rmsprop", "adagrad", "sgd"]


class ScaleByShampooState(AbstractMomentsState):
    r"""The momentum, the two factors of each matrix, and their roots.

    **Attributes:**

    - `count`: the number of steps so far, a 0-d int32 array.
    - `mu`: the mean of the gradients, a tree like the parameters, with `None` for
        parameters that are not matrices.
    - `nu`: the second moment of the grafted method; if that has none, `()` for each
        matrix.
    - `factors`: for each matrix, a pair of factors, with the axes of its stack first;
        `None` for a side without a factor. The pair is $(L, R^\top)$ for the layers
        of Equinox, and $(R^\top, L)$ for arrays whose inputs come first.
    - `roots`: the inverse roots of the factors. With `kl`, their eigenvectors, as rows.
    """

    factors: PerLeaf
    roots: PerLeaf


@equation
def shampoo(
    g: Matrix,
    mu: Matrix,
    nu: Any,
    factors: Any,
    roots: Any,
    shift: Shift,
    *,
    b1,
    b2,
    b3,
    eps,
    exponent,
    graft,
    graft_b2,
    graft_eps,
    mu_left,
    factor_correction,
    graft_correction,
    steps,
    precondition_frequency,
    is_start,
    is_on,
    kl,
) -> tuple[Matrix, Any, Any, Any, Any]:
    factors_of = _kl_factors if kl else _factors
    direction_of = _kl_direction if kl else _direction
    factors, counts = factors_of(factors, roots, g, b2, eps)
    g = counts.astype(g.dtype) * g
    mean = (b3 * mu + (1 - b3) * g) / (1 - b3 * mu_left)
    mu = b1 * mu + (1 - b1) * g
    is_due = is_start | (is_on & shift.is_due(steps, precondition_frequency))
    u, roots = direction_of(
        mean, factors, roots, is_due, is_start, factor_correction, eps, exponent
    )
    step, nu = _step_of(graft, mean, g, nu, graft_b2, graft_eps, graft_correction)
    u = u if graft is None else _as_long_as(step, u)
    return jnp.where(is_on, u, step), mu, nu, factors, roots


def _factors(factors, roots, g, b2, eps):
    return average(factors, (g, g), b2, jnp.where(b2 == 1, 1, 1 - b2))


def _direction(x, factors, roots, is_due, is_start, correction, eps, exponent):
    renew = functools.partial(inverse_root, correction, eps, exponent)
    roots = renew_if_due(is_due, renew, factors, roots)
    return to_basis(x, roots), roots


# The same two functions for KL-Shampoo, where each factor is whitened by the other one.


def _kl_factors(factors, basis, g, b2, eps):
    """The next factors, and whether the gradient counts: see `average`."""
    factors = _started(factors, g)
    seen = whitened(factors, basis, g, lambda values: eps)
    return average(factors, seen, b2, 1 - b2)


def _kl_direction(x, factors, basis, is_due, is_start, correction, eps, exponent):
    r"""$L^{-e} X R^{-e}$, in a basis that is updated if due, and that basis."""
    renew = functools.partial(start_or_follow, is_start)
    basis = renew_if_due(is_due, renew, factors, basis)
    u = to_basis(x, basis)
    for side, (factor, v) in enumerate(zip(factors, basis, strict=True)):
        if factor is not None:
            values = jnp.maximum(eigenvalues(factor, v), eps) ** -exponent
            u = u * jnp.expand_dims(values, 1 - side)
    return from_basis(u, basis), basis


def _started(factors: PerSide, g: Any) -> PerSide:
    """Replaces factors that are zero by the identity at the scale of the gradient."""
    there = [x for x in factors if x is not None]
    # The covariance of the gradient is the product of both factors.
    mean = jnp.mean(abs_sq(g))
    scale = zero_if_infinite(safe_sqrt(mean) if len(there) == 2 else mean)
    new = []
    for x in factors:
        if x is not None:
            identity = scale * jnp.eye(x.shape[0], dtype=x.dtype)
            x = jnp.where(jnp.trace(x).real == 0, identity, x)
        new.append(x)
    return tuple(new)


def _step_of(graft, mean, g, nu, b2, eps, correction):
    """The step of the grafted method for a mean of the gradients, and its new moment."""
    if graft in (None, "sgd"):
        return mean, nu
    is_sum = graft == "adagrad"
    nu = (1 if is_sum else b2) * nu + (1 if is_sum else 1 - b2) * abs_sq(g)
    nu_hat = nu / correction if graft == "adam" else nu
    return mean / root_plus(nu_hat, eps), nu


def _as_long_as(step, direction):
    """`direction` with the norm of `step`."""
    norm = safe_norm(direction, 0)
    return direction * (safe_norm(step, 0) / jnp.where(norm == 0, 1, norm))


class ScaleByShampoo(AbstractMatrixwise):
    r"""Divides both sides of each matrix by roots of their second moments.

    For each matrix $G_t$ with $m$ outputs and $n$ inputs,

    $$\begin{aligned}
      L_t &= \beta_2 L_{t-1} + (1 - \beta_2)\, G_t G_t^* &
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, G_t \\
      R_t &= \beta_2 R_{t-1} + (1 - \beta_2)\, G_t^* G_t &
      \bar G_t &= \frac{\beta_3 \mu_{t-1} + (1 - \beta_3)\, G_t}
                       {1 - \beta_3 \beta_1^{t-1}}
    \end{aligned}$$

    $$U_t = \hat L_t^{-e}\, \bar G_t\, \hat R_t^{-e} \qquad
      u_t = \frac{\|A(\bar G_t)\|_F}{\|U_t\|_F}\, U_t$$

    where $\hat L_t = L_t / (1 - \beta_2^t) + \varepsilon I$, and $\hat R_t$ is defined in
    the same way. If $\beta_2 = 1$, the factors are plain sums, as in the paper. The roots
    are computed every $k$ steps. $A$ is the method whose step length is grafted onto the
    direction. It divides $\bar G_t$:

    - `"adam"`: by $\sqrt{\nu_t / (1 - \beta_g^t)} + \varepsilon_g$, with
        $\nu_t = \beta_g \nu_{t-1} + (1 - \beta_g)\, |G_t|^2$;
    - `"rmsprop"`: by $\sqrt{\nu_t} + \varepsilon_g$, with the same $\nu_t$;
    - `"adagrad"`: by $\sqrt{\nu_t} + \varepsilon_g$, with $\nu_t = \nu_{t-1} + |G_t|^2$;
    - `"sgd"`: by 1. With `None`, there is no graft, and $u_t = U_t$.

    Parameters that are not matrices pass unchanged and have no state. Stacked matrices
    are transformed separately. In float32, the square of a norm above 1.8e19 overflows:
    such a gradient counts as zero. With `kl`, so does a whitened gradient.

    With `kl`, the product of both factors is fitted to the covariance of the gradients:
    see [`eqopt.KLShampoo`][].

    For an $m \times n$ matrix, the state has $2mn + 2m^2 + 2n^2$ numbers, or $mn$ fewer
    if the graft has no second moment.

    Derivatives through the step treat the eigenvalues and eigenvectors of both factors
    as constants; with `kl`, only the eigenvectors.

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1]$; below 1 with `kl`. Defaults to 0.999.
    - `b3`: $\beta_3 \in [0, 1)$. Defaults to $\beta_1$. Then $\bar G_t$ is $\mu_t$ with
        bias correction.
    - `eps`: $\varepsilon \ge 0$; above 0 with `kl`. With 0, directions without a
        gradient are omitted. Defaults to 1e-12.
    - `exponent`: $e \ge 0$. Defaults to 1/4, or to 1/2 with `one_sided` or `kl`.
    - `precondition_frequency`: $k$, an integer or an integer 0-d array. Defaults to 10.
    - `start_preconditioning_step`: the first step with roots, an integer of at least 1.
        Before it, the update is $A(\bar G_t)$, or $\bar G_t$ without a graft. Defaults to
        $k$, or to 1 without a graft.
    - `graft`: $A$, `"adam"`, `"rmsprop"`, `"adagrad"`, `"sgd"` or `None` for no graft.
        Defaults to `"adam"`.
    - `graft_b2`: $\beta_g \in [0, 1)$. Defaults to 0.999.
    - `graft_eps`: $\varepsilon_g \ge 0$. Defaults to 1e-8.
    - `one_sided`: whether only the shorter side has a factor; of a square, the outputs.
        Defaults to `False`.
    - `block_size`: an integer of at least 1. Larger sides are split into equal blocks of
        at most this size, and each block is a separate matrix. `None` for whole matrices.
        Defaults to 1024.
    - `correct_bias`: whether to correct $\mu$ and the factors for their start at zero.
        With `kl`, only $\mu$ starts at zero. Defaults to `True`.
    - `kl`: whether to fit the product of both factors to the covariance of the
        gradients, as in [`eqopt.KLShampoo`][]. Zeros that fill up the last block of
        a side count in the means. Defaults to `False`.
    - `stagger`: whether matrices take turns, so that in each step about one in $k$ of
        them computes its roots. All matrices of a stack take the same turn. The first
        roots of all matrices are computed in one step. Defaults to `False`.
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
        @inproceedings{gupta2018shampoo,
            author = {Gupta, Vineet and Koren, Tomer and Singer, Yoram},
            title = {{Shampoo}: Preconditioned Stochastic Tensor Optimization},
            booktitle = {International Conference on Machine Learning},
            year = {2018},
        }

        @article{shi2023distributed,
            author = {Shi, Hao-Jun Michael and Lee, Tsung-Hsien and Iwasaki, Shintaro and
                      Gallego-Posada, Jose and Li, Zhijing and Rangadurai, Kaushik and
                      Mudigere, Dheevatsa and Rabbat, Michael},
            title = {A Distributed Data-Parallel {PyTorch} Implementation of the
                     Distributed {Shampoo} Optimizer for Training Neural Networks
                     At-Scale},
            journal = {arXiv:2309.06497},
            year = {2023},
        }
        ```
    """

    _stays: ClassVar[bool] = True
    _sized = (("factors", "_grams"), ("nu", "_moment"))

    b1: Unit = 0.9
    b2: ClosedUnit = 0.999
    b3: Unit | None = None
    eps: ZeroOrMore = 1e-12
    exponent: ZeroOrMore | None = None
    precondition_frequency: Count = 10
    start_preconditioning_step: Count | None = None
    graft: Graft | None = eqx.field(static=True, default="adam")
    graft_b2: Unit = 0.999
    graft_eps: ZeroOrMore = 1e-8
    one_sided: bool = static_choice(static=True, default=False)
    block_size: Size | None = static_choice(static=True, default=1024)
    correct_bias: bool = True
    kl: bool = static_choice(static=True, default=False)
    stagger: bool = static_choice(static=True, default=False)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    @property
    def _work(self) -> Work:
        return "QR" if self.kl else "decompositions"

    @property
    def _rows(self) -> Rows:
        return "outputs" if self.one_sided else "first"  # if so, sides are not alike

    def __check_init__(self) -> None:
        check_fields(self)
        if self.kl:
            check_interval("b2", self.b2, 0, 1, includes_high=False)
            check_interval("eps", self.eps, 0, includes_low=False)

    def init(self, params: Params) -> ScaleByShampooState:
        return ScaleByShampooState(
            jnp.zeros((), jnp.int32),
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=self.for_matrices(params, self._moment),
            factors=self.for_matrices(params, self._grams),
            roots=self.for_matrices(params, lambda x: identities(self._grams(x))),
        )

    def _moment(self, x: Any) -> Any:
        return () if self.graft in (None, "sgd") else abs_sq(x)

    def _grams(self, x: Any) -> PerSide:
        return grams(x, one_sided=self.one_sided)

    def matrixwise(
        self, state: ScaleByShampooState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        every = jnp.asarray(self.precondition_frequency, jnp.int32)
        start: Any = self.start_preconditioning_step
        if start is None:
            start = 1 if self.graft is None else every
        start = jnp.asarray(start, jnp.int32)
        mu_left: Any = 0.0
        factor_correction: Any = 1.0
        if self.correct_bias:
            mu_left = 1 - bias_correction(self.b1, state.count)
            factor_correction = bias_correction(self.b2, count)
            is_sum = factor_correction == 0  # and has no bias
            factor_correction = jnp.where(is_sum, 1, factor_correction)
        exponent = 0.5 if self.one_sided or self.kl else 0.25
        return counted(
            self,
            shampoo,
            state,
            count=count,
            reads={"shift": functools.partial(shifts, self, params)},
            b3=self.b1 if self.b3 is None else self.b3,
            exponent=exponent if self.exponent is None else self.exponent,
            mu_left=mu_left,
            factor_correction=factor_correction,
            graft_correction=bias_correction(self.graft_b2, count),
            steps=count % every,
            is_start=count == start,
            is_on=count >= start,
        )


class Shampoo(AbstractMatrixRecipe):
    r"""Shampoo: both sides of a gradient, divided by roots of their second moments.

    !!! abstract "One step"

        For each matrix $G_t$ with $m$ outputs and $n$ inputs,

        $$\begin{aligned}
          L_t &= \beta_2 L_{t-1} + (1 - \beta_2)\, G_t G_t^* &
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, G_t \\
          R_t &= \beta_2 R_{t-1} + (1 - \beta_2)\, G_t^* G_t &
          \bar G_t &= \frac{\beta_3 \mu_{t-1} + (1 - \beta_3)\, G_t}
                           {1 - \beta_3 \beta_1^{t-1}}
        \end{aligned}$$

        $$U_t = \hat L_t^{-e}\, \bar G_t\, \hat R_t^{-e} \qquad
          u_t = \frac{\|A(\bar G_t)\|_F}{\|U_t\|_F}\, U_t$$

        where $\hat L_t = L_t / (1 - \beta_2^t) + \varepsilon I$, and $\hat R_t$ is
        defined in the same way. If $\beta_2 = 1$, the factors are plain sums, as in the
        paper. The roots are computed every $k$ steps. $A$ is the method whose step
        length is grafted onto the direction. It divides $\bar G_t$:

        - `"adam"`: by $\sqrt{\nu_t / (1 - \beta_g^t)} + \varepsilon_g$, with
            $\nu_t = \beta_g \nu_{t-1} + (1 - \beta_g)\, |G_t|^2$;
        - `"rmsprop"`: by $\sqrt{\nu_t} + \varepsilon_g$, with the same $\nu_t$;
        - `"adagrad"`: by $\sqrt{\nu_t} + \varepsilon_g$, with
            $\nu_t = \nu_{t-1} + |G_t|^2$;
        - `"sgd"`: by 1. With `None`, there is no graft, and $u_t = U_t$.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByShampoo`][].

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $L_0 = \mu_0 = R_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1`
        (0.9), $\beta_2$ is `b2` (0.999), $\beta_3$ is `b3`, $\varepsilon$ is `eps`
        (1e-12), $e$ is `exponent`, $\lambda$ is `weight_decay` (0.0), $k$ is
        `precondition_frequency` (10), $A$ is `graft` (`"adam"`), $\beta_g$ is
        `graft_b2` (0.999), $\varepsilon_g$ is `graft_eps` (1e-8). Parameters that are
        not matrices use `fallback`, by default [`eqopt.AdamW`][].

    With a graft, the steps are as long as the steps of Adam (or RMSprop, or AdaGrad),
    so the learning rate of that method also suits Shampoo. Derivatives through the step
    treat the eigenvalues and eigenvectors of both factors as constants.

    !!! warning

        Without a graft, roots that are several steps old make steps in new directions
        much too long. In that case, use a larger `eps`, such as 1e-6, or
        `precondition_frequency=1`.

    !!! example

        ```python
        opt = eqopt.Shampoo(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1]$, the decay of the factors. With 1, they are plain sums.
        Defaults to 0.999.
    - `b3`: $\beta_3 \in [0, 1)$. Defaults to `None`, which means $\beta_1$. Then
        $\bar G_t$ is $\mu_t$ with bias correction.
    - `eps`: $\varepsilon \ge 0$, added to the factors. With 0, directions without a
        gradient are omitted. Defaults to 1e-12.
    - `exponent`: $e \ge 0$. Defaults to `None`, which means 1/4, or 1/2 with
        `one_sided`.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `precondition_frequency`: $k$, an integer or an integer 0-d array. Defaults to 10.
    - `start_preconditioning_step`: the first step with roots, an integer of at least 1.
        Before it, the update is $A(\bar G_t)$, or $\bar G_t$ without a graft. Defaults
        to `None`, which means $k$, or 1 without a graft.
    - `graft`: $A$, `"adam"`, `"rmsprop"`, `"adagrad"`, `"sgd"` or `None` for no graft.
        Defaults to `"adam"`.
    - `graft_b2`: $\beta_g \in [0, 1)$. Defaults to 0.999.
    - `graft_eps`: $\varepsilon_g \ge 0$. Defaults to 1e-8.
    - `one_sided`: whether only the shorter side has a factor; of a square, the outputs.
        Defaults to `False`.
    - `block_size`: an integer of at least 1. Larger sides are split into equal blocks
        of at most this size, and each block is a separate matrix. `None` for whole
        matrices. Defaults to 1024.
    - `correct_bias`: whether to correct $\mu$ and the factors for their start at zero.
        Defaults to `True`.
    - `stagger`: whether matrices take turns, so that in each step about one in $k$ of
        them computes its roots. All matrices of a stack take the same turn. The first
        roots of all matrices are computed in one step. Defaults to `False`.
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

    **When to use it:** instead of an Adam that is already tuned. The learning rate
    remains valid, and the steps take the directions of Shampoo. Its authors report
    fewer steps to the same quality on image models, and it won the external tuning
    track of the AlgoPerf competition. Renewing the roots costs an eigendecomposition of
    each side of each block; `stagger` spreads them over the steps.

    ??? cite "References"

        ```bibtex
        @inproceedings{gupta2018shampoo,
            author = {Gupta, Vineet and Koren, Tomer and Singer, Yoram},
            title = {{Shampoo}: Preconditioned Stochastic Tensor Optimization},
            booktitle = {International Conference on Machine Learning},
            year = {2018},
        }

        @article{shi2023distributed,
            author = {Shi, Hao-Jun Michael and Lee, Tsung-Hsien and Iwasaki, Shintaro
                      and Gallego-Posada, Jose and Li, Zhijing and Rangadurai, Kaushik
                      and Mudigere, Dheevatsa and Rabbat, Michael},
            title = {A Distributed Data-Parallel {PyTorch} Implementation of the
                     Distributed {Shampoo} Optimizer for Training Neural Networks
                     At-Scale},
            journal = {arXiv:2309.06497},
            year = {2023},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: ClosedUnit = 0.999
    b3: Unit | None = None
    eps: ZeroOrMore = 1e-12
    exponent: ZeroOrMore | None = None
    weight_decay: WeightDecay = 0.0
    precondition_frequency: Count = 10
    start_preconditioning_step: Count | None = None
    graft: Graft | None = eqx.field(static=True, default="adam")
    graft_b2: Unit = 0.999
    graft_eps: ZeroOrMore = 1e-8
    one_sided: bool = static_choice(static=True, default=False)
    block_size: Size | None = static_choice(static=True, default=1024)
    correct_bias: bool = True
    stagger: bool = static_choice(static=True, default=False)
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    _part = ScaleByShampoo


class KLShampoo(AbstractOptimizer):
    r"""KL-Shampoo: the factors of Shampoo, each whitened by the other one.

    !!! abstract "One step"

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

        with eigenvalues of $L$ and $R$ of at least $\varepsilon$. $L_0$ and $R_0$ are
        the identity, times the root mean square of the first gradient that is not zero.
        One factor alone starts with the mean square. $u_t$ is the update of
        [`eqopt.ScaleByShampoo`][], with `kl=True`.

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9), $\beta_2$ is
        `b2` (0.95), $\varepsilon$ is `eps` (1e-12), $\lambda$ is `weight_decay` (0.01).
        Parameters that are not matrices use `fallback`, by default [`eqopt.AdamW`][].

    The product of both factors estimates the covariance of the gradients, so the steps
    have the right length without a graft. The eigenvectors are updated by one step of
    orthogonal iteration every $k$ steps, the eigenvalues in each. In it, each factor is
    shifted by $10^{-5}$ of its largest eigenvalue, so that directions without curvature
    stay where they are. With `block_size`, zeros that fill up the last block of a side
    count in $m$ and $n$.

    Derivatives through the step treat the eigenvectors as constants.

    !!! example

        ```python
        opt = eqopt.KLShampoo(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the factors. Defaults to 0.95.
    - `eps`: $\varepsilon > 0$, the smallest eigenvalue of a factor. Defaults to 1e-12.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.01.
    - `precondition_frequency`: $k$, an integer or an integer 0-d array. Defaults to 10.
    - `one_sided`: whether only the shorter side has a factor; of a square, the outputs.
        Defaults to `False`.
    - `block_size`: an integer of at least 1. Larger sides are split into equal blocks
        of at most this size, and each block is a separate matrix. Defaults to `None`,
        which means whole matrices.
    - `correct_bias`: whether to correct $\mu$ for its start at zero. Defaults to
        `True`.
    - `stagger`: whether matrices take turns, so that in each step about one in $k$ of
        them computes its roots. All matrices of a stack take the same turn. The first
        roots of all matrices are computed in one step. Defaults to `False`.
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

    **When to use it:** like Shampoo, without a second optimizer for the step length.
    Its authors report that it matches or exceeds SOAP on language models, with less
    memory than SOAP.

    ??? cite "References"

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

        ```bibtex
        @inproceedings{gupta2018shampoo,
            author = {Gupta, Vineet and Koren, Tomer and Singer, Yoram},
            title = {{Shampoo}: Preconditioned Stochastic Tensor Optimization},
            booktitle = {International Conference on Machine Learning},
            year = {2018},
        }

        @article{shi2023distributed,
            author = {Shi, Hao-Jun Michael and Lee, Tsung-Hsien and Iwasaki, Shintaro
                      and Gallego-Posada, Jose and Li, Zhijing and Rangadurai, Kaushik
                      and Mudigere, Dheevatsa and Rabbat, Michael},
            title = {A Distributed Data-Parallel {PyTorch} Implementation of the
                     Distributed {Shampoo} Optimizer for Training Neural Networks
                     At-Scale},
            journal = {arXiv:2309.06497},
            year = {2023},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.95
    eps: Positive = 1e-12
    weight_decay: WeightDecay = 0.01
    precondition_frequency: Count = 10
    one_sided: bool = static_choice(static=True, default=False)
    block_size: Size | None = static_choice(static=True, default=None)
    correct_bias: bool = True
    stagger: bool = static_choice(static=True, default=False)
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        part = self.part(ScaleByShampoo, graft=None, kl=True)
        return matrices_and_others(self, part)
