"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner; also made orthogonal."""

import functools
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Inexact

from ..._arguments.checks import check_needs
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractOptimizer, AbstractTransformation, Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers, Rows
from ..._trees.control import cond
from ..._types import (
    Count,
    Mask,
    Params,
    PerLeaf,
    ScalarOrSchedule,
    Size,
    SizeOrZero,
    Unit,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, bias_correction, safe_increment, safe_sqrt
from ..moments import AbstractMomentsState, counted, root_plus
from .orthogonalize import Orthogonalize
from .parts.eigenbasis import (
    Matrix,
    PerSide,
    RealMatrix,
    average,
    find_all,
    follow,
    from_basis,
    grams,
    identities,
    renew_if_due,
    start_or_follow,
    to_basis,
    whitened,
)
from .parts.newton_schulz import NS_EPS, STANDARD, Coefficients, Scale
from .parts.recipe import AbstractMatrixRecipe, WeightDecay, matrices_and_others
from .parts.stagger import Shift, shifts


class ScaleBySOAPState(AbstractMomentsState):
    r"""The preconditioner, and the moments in its eigenbasis.

    **Attributes:**

    - `count`: the number of calls so far, a 0-d int32 array.
    - `mu`: the mean of the gradients in the eigenbasis, a tree like the parameters, with
        `None` for parameters that are not matrices.
    - `nu`: the mean of the squared gradients in the eigenbasis.
    - `factors`: for each matrix, a pair of factors, with the axes of its stack first;
        `None` for a side without a factor. The pair is $(L, R^\top)$ for the layers
        of Equinox, and $(R^\top, L)$ for arrays whose inputs come first.
    - `basis`: $(Q_L^*, Q_R^\top)$ for each matrix, in the same form. Their rows are the
        eigenvectors.
    """

    factors: PerLeaf
    basis: PerLeaf


@equation
def soap(
    g: Matrix,
    mu: Matrix,
    nu: RealMatrix,
    factors: tuple[Inexact[Array, "m m"] | None, Inexact[Array, "n n"] | None],
    basis: tuple[Inexact[Array, "m m"] | None, Inexact[Array, "n n"] | None],
    shift: Shift,
    *,
    b1,
    b2,
    eps,
    shampoo_beta,
    step_size,
    since_refresh,
    precondition_frequency,
    is_first,
    skip_first,
    fresh,
    kl,
    least_share,
) -> tuple[Matrix, Any, Any, Any, Any]:
    if kl:
        seen, beta = _seen_by_kl(factors, basis, g, shampoo_beta, least_share)
    else:
        seen, beta = (g, g), shampoo_beta
    new_factors, counts = average(factors, seen, beta, 1 - beta)
    is_due = shift.is_due(since_refresh, precondition_frequency)
    if skip_first:
        is_due = is_due | is_first
        renew = functools.partial(start_or_follow, is_first)
    else:
        # The first gradient initializes the preconditioner, which is then applied to it.
        basis = renew_if_due(is_first, find_all, new_factors, basis)
        renew = follow
    if fresh:
        basis, mu = _refreshed(is_due, renew, new_factors, basis, mu)
    h = counts.astype(g.dtype) * to_basis(g, basis)
    new_mu = b1 * mu + (1 - b1) * h
    new_nu = b2 * nu + (1 - b2) * abs_sq(h)
    u = step_size * from_basis(new_mu / root_plus(new_nu, eps), basis)
    if skip_first:
        u, new_mu, new_nu = (
            jnp.where(is_first, old, new)
            for old, new in ((0, u), (mu, new_mu), (nu, new_nu))
        )
    if not fresh:
        basis, new_mu = _refreshed(is_due, renew, new_factors, basis, new_mu)
    return u, new_mu, new_nu, new_factors, basis


def _seen_by_kl(factors, basis, g, beta, least_share) -> tuple[list[Matrix], Any]:
    """What the factors average, and how: each side is whitened by the other one.

    For the first gradient that is not zero, all eigenvalues are its root mean square, and
    it is all of the first average.
    """
    is_start = sum(jnp.trace(x).real for x in factors if x is not None) == 0
    size = safe_sqrt(jnp.mean(abs_sq(g)))
    size = jnp.where(size > 0, size, 1)
    least = lambda values: jnp.where(is_start, size, least_share * jnp.mean(values))
    return whitened(factors, basis, g, least), jnp.where(is_start, 0, beta)


def _refreshed(
    is_due, renew, factors: PerSide, basis: PerSide, mu
) -> tuple[PerSide, Any]:
    """If due, the next basis, which `renew` computes for a side, and `mu` in it.

    One side after the other takes less memory than both at once, and so do columns
    before rows: XLA computes their factor together with the projected gradient.
    """
    new = list(basis)
    for side in (1, 0):
        factor = factors[side]
        if factor is not None:
            old = basis[side], mu
            refresh = functools.partial(_refresh, renew, side, factor, *old)
            new[side], mu = cond(is_due, refresh, lambda old=old: old)
    return tuple(new), mu


def _refresh(renew, side: int, factor: Any, v: Any, mu: Any) -> tuple[Any, Any]:
    new = renew(factor, v)
    old_pair, new_pair = ((None, x) if side else (x, None) for x in (v, new))
    return new, to_basis(from_basis(mu, old_pair), new_pair)


class ScaleBySOAP(AbstractMatrixwise):
    r"""Adam in the eigenbasis of Shampoo's preconditioner, for matrices.

    For each matrix $G_t$ with $m$ outputs and $n$ inputs,

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, Q_L^* G_t Q_R &
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |Q_L^* G_t Q_R|^2 \\
      L_t &= \beta L_{t-1} + (1 - \beta)\, G_t G_t^* &
      R_t &= \beta R_{t-1} + (1 - \beta)\, G_t^* G_t
    \end{aligned}$$

    $$u_t = \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\;
      Q_L \left( \frac{\mu_t}{\sqrt{\nu_t} + \varepsilon} \right) Q_R^*,$$

    where the columns of $Q_L$ and $Q_R$ are the eigenvectors of $L$ and $R$. They start
    as the eigenvectors for the first gradient. After every $k$ steps, they follow by a
    step of orthogonal iteration, in the order of their Rayleigh quotients, and $\mu$ is
    transformed to the new basis. In it, each factor is shifted by $10^{-5}$ of its
    largest eigenvalue, so that directions without curvature stay where they are. The
    first call only initializes the preconditioner: its updates are zero, and $t$ does not
    count it.

    In float32, the square of a norm above 1.8e19 overflows: such a gradient counts as
    zero; with `kl`, so does a whitened gradient. Parameters that are not matrices pass
    unchanged and have no state. Stacked matrices are transformed separately.
    For an $m \times n$ matrix, the state has $2mn + 2m^2 + 2n^2$ numbers. Derivatives
    through the step treat the bases $Q_L$ and $Q_R$ as constants.

    **Arguments:**

    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$. Default to 0.95.
    - `shampoo_beta`: $\beta \in [0, 1)$. Defaults to $\beta_2$.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `precondition_frequency`: $k$, an integer or an integer 0-d array. Defaults to 10.
    - `max_precond_dim`: the largest side with a factor. Without any factor, this is Adam.
        Defaults to 10000.
    - `one_sided`: whether only the shorter side of a matrix has a factor; of a square
        matrix, the outputs. Defaults to `False`.
    - `block_size`: larger sides are split into equal blocks of at most this size, and
        each block is a separate matrix. Defaults to `None`, for whole matrices.
    - `correct_bias`: whether to correct $\mu$ and $\nu$ for their start at zero.
        Defaults to `True`.
    - `skip_first`: whether the first call only initializes the preconditioner. If not,
        the first gradient initializes it before the first step. Defaults to `True`.
    - `kl`: whether each factor is whitened by the other one (KL-SOAP). With the
        eigenvalues $\lambda_R$ of $R$, $G_t G_t^*$ becomes
        $\frac{1}{n}\, G_t Q_R \operatorname{diag}(\lambda_R)^{-1} Q_R^* G_t^*$, and
        similarly for $R$, with eigenvalues of at least their mean times the larger of
        $1/t$ and $10^{-3}$. The first gradient that is not zero is divided by the root of
        its root mean square instead, and is all of the first $L$ and $R$. (The authors
        whiten it, too, with eigenvalues of at least $10^{-8}$: then the basis stays as it
        is for about 200 steps.) Defaults to `False`.
    - `stagger`: whether matrices take turns: in each step, about one in $k$ refreshes
        its eigenvectors. A stack has one turn. The first refresh is in the same step.
        Defaults to `False`.
    - `mu_dtype`: the dtype of $\mu$. Defaults to the parameter's, at least float32.
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
    - `fresh`: whether the bases are refreshed with a gradient before it is projected, not
        after the step, as in NVIDIA's code. Needs `skip_first`: without it, the first
        second moments are of one diagonal matrix, and later updates explode. Defaults to
        `False`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "References"

        ```bibtex
        @inproceedings{vyas2025soap,
            author = {Vyas, Nikhil and Morwani, Depen and Zhao, Rosie and Kwun, Mujin and
                      Shapira, Itai and Brandfonbrener, David and Janson, Lucas and
                      Kakade, Sham},
            title = {{SOAP}: Improving and Stabilizing {Shampoo} using {Adam}},
            booktitle = {International Conference on Learning Representations},
            year = {2025},
        }

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

    _stays: ClassVar[bool] = True
    _sized = (("factors", "_grams"),)
    _work = "QR"

    b1: Unit = 0.95
    b2: Unit = 0.95
    shampoo_beta: Unit | None = None
    eps: ZeroOrMore = 1e-8
    precondition_frequency: Count = 10
    max_precond_dim: SizeOrZero = static_choice(static=True, default=10_000)
    one_sided: bool = static_choice(static=True, default=False)
    block_size: Size | None = static_choice(static=True, default=None)
    correct_bias: bool = True
    skip_first: bool = True
    kl: bool = False
    stagger: bool = static_choice(static=True, default=False)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fresh: bool = False

    def __check_init__(self) -> None:
        is_met = self.skip_first or not self.fresh
        check_needs("fresh=True", "skip_first=True", is_met)

    @property
    def _rows(self) -> Rows:
        return "outputs" if self.one_sided else "first"  # if so, sides are not alike

    def init(self, params: Params) -> ScaleBySOAPState:
        return ScaleBySOAPState(
            jnp.zeros((), jnp.int32),
            mu=self.for_matrices(params, lambda x: x, self.mu_dtype),
            nu=self.for_matrices(params, abs_sq),
            factors=self.for_matrices(params, self._grams),
            basis=self.for_matrices(params, lambda x: identities(self._grams(x))),
        )

    def _grams(self, x: Any) -> PerSide:
        return grams(x, self.max_precond_dim, self.one_sided)

    def matrixwise(
        self, state: ScaleBySOAPState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        steps = state.count if self.skip_first else count
        step_size: Any = 1.0
        if self.correct_bias:
            t = jnp.maximum(steps, 1)
            step_size = jnp.sqrt(bias_correction(self.b2, t))
            step_size = step_size / bias_correction(self.b1, t)
        return counted(
            self,
            soap,
            state,
            count=count,
            reads={"shift": functools.partial(shifts, self, params)},
            shampoo_beta=self.b2 if self.shampoo_beta is None else self.shampoo_beta,
            step_size=step_size,
            since_refresh=steps % jnp.int32(self.precondition_frequency),
            is_first=state.count == 0,
            least_share=jnp.maximum(1 / count.astype(float), 1e-3),
        )


class SOAP(AbstractMatrixRecipe):
    r"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner.

    !!! abstract "One step"

        For each matrix $G_t$ with $m$ outputs and $n$ inputs,

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, Q_L^* G_t Q_R &
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |Q_L^* G_t Q_R|^2 \\
          L_t &= \beta L_{t-1} + (1 - \beta)\, G_t G_t^* &
          R_t &= \beta R_{t-1} + (1 - \beta)\, G_t^* G_t
        \end{aligned}$$

        $$u_t = \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\;
          Q_L \left( \frac{\mu_t}{\sqrt{\nu_t} + \varepsilon} \right) Q_R^*,$$

        where the columns of $Q_L$ and $Q_R$ are the eigenvectors of $L$ and $R$. They
        start as the eigenvectors for the first gradient. After every $k$ steps, they
        follow by a step of orthogonal iteration, in the order of their Rayleigh
        quotients, and $\mu$ is transformed to the new basis. In it, each factor is
        shifted by $10^{-5}$ of its largest eigenvalue, so that directions without
        curvature stay where they are. The first call only initializes the preconditioner:
        its updates are zero, and $t$ does not count it.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleBySOAP`][].

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = L_0 = R_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1`
        (0.95), $\beta_2$ is `b2` (0.95), $\beta$ is `shampoo_beta`, $\varepsilon$ is
        `eps` (1e-8), $\lambda$ is `weight_decay` (0.01), $k$ is
        `precondition_frequency` (10). Parameters that are not matrices use `fallback`,
        by default [`eqopt.AdamW`][].

    (The authors apply weight decay to the parameters after the step.) Derivatives
    through the step treat the bases as constants.

    !!! example

        ```python
        opt = eqopt.SOAP(3e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use
        0.003 with a warm-up.
    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$. Default to 0.95.
    - `shampoo_beta`: $\beta \in [0, 1)$. Defaults to `None`, which means $\beta_2$.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.01.
    - `precondition_frequency`: $k$, an integer or an integer 0-d array. Defaults to 10.
    - `max_precond_dim`: the largest side with a factor. Without any factor, this is
        Adam. Defaults to 10000.
    - `one_sided`: whether only the shorter side of a matrix has a factor; of a square
        matrix, the outputs. Defaults to `False`.
    - `block_size`: larger sides are split into equal blocks of at most this size, and
        each block is a separate matrix. Defaults to `None`, for whole matrices.
    - `correct_bias`: whether to correct $\mu$ and $\nu$ for their start at zero.
        Defaults to `True`.
    - `skip_first`: whether the first call only initializes the preconditioner. If not,
        the first gradient initializes it before the first step. Defaults to `True`.
    - `kl`: whether each factor is whitened by the other one (KL-SOAP). With the
        eigenvalues $\lambda_R$ of $R$, $G_t G_t^*$ becomes
        $\frac{1}{n}\, G_t Q_R \operatorname{diag}(\lambda_R)^{-1} Q_R^* G_t^*$, and
        similarly for $R$, with eigenvalues of at least their mean times the larger of
        $1/t$ and $10^{-3}$. The first gradient that is not zero is divided by the root of
        its root mean square instead, and is all of the first $L$ and $R$. (The authors
        whiten it, too, with eigenvalues of at least $10^{-8}$: then the basis stays as it
        is for about 200 steps.) Defaults to `False`.
    - `stagger`: whether matrices take turns: in each step, about one in $k$ refreshes
        its eigenvectors. A stack has one turn. The first refresh is in the same step.
        Defaults to `False`.
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
    - `fresh`: whether the bases are refreshed with a gradient before it is projected, not
        after the step, as in NVIDIA's code. Needs `skip_first`: without it, the first
        second moments are of one diagonal matrix, and later updates explode. Defaults to
        `False`.

    **When to use it:** if a gradient is expensive relative to the optimizer: large
    batches, full batches, long sequences. Its authors report fewer steps than AdamW,
    and less time, on language models. It takes three times the state, and a QR
    decomposition of each side of each matrix every few steps.

    ??? cite "References"

        ```bibtex
        @inproceedings{vyas2025soap,
            author = {Vyas, Nikhil and Morwani, Depen and Zhao, Rosie and Kwun, Mujin
                      and Shapira, Itai and Brandfonbrener, David and Janson, Lucas and
                      Kakade, Sham},
            title = {{SOAP}: Improving and Stabilizing {Shampoo} using {Adam}},
            booktitle = {International Conference on Learning Representations},
            year = {2025},
        }

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
    b1: Unit = 0.95
    b2: Unit = 0.95
    shampoo_beta: Unit | None = None
    eps: ZeroOrMore = 1e-8
    weight_decay: WeightDecay = 0.01
    precondition_frequency: Count = 10
    max_precond_dim: SizeOrZero = static_choice(static=True, default=10_000)
    one_sided: bool = static_choice(static=True, default=False)
    block_size: Size | None = static_choice(static=True, default=None)
    correct_bias: bool = True
    skip_first: bool = True
    kl: bool = False
    stagger: bool = static_choice(static=True, default=False)
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None
    fresh: bool = False

    _part = ScaleBySOAP


# The five steps of Muon, then two steps that converge.
_ROWS = (STANDARD,) * 5 + ((1.5, -0.5, 0.0),) * 2


class SOAPMuon(AbstractOptimizer):
    r"""SOAP-Muon: orthogonalizes the update of SOAP for each matrix.

    !!! abstract "One step"

        For each matrix $G_t$ with $m$ outputs and $n$ inputs,

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, Q_L^* G_t Q_R &
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |Q_L^* G_t Q_R|^2 \\
          L_t &= \beta L_{t-1} + (1 - \beta)\, G_t G_t^* &
          R_t &= \beta R_{t-1} + (1 - \beta)\, G_t^* G_t
        \end{aligned}$$

        $$u_t = \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\;
          Q_L \left( \frac{\mu_t}{\sqrt{\nu_t} + \varepsilon} \right) Q_R^*,$$

        where the columns of $Q_L$ and $Q_R$ are the eigenvectors of $L$ and $R$. They
        start as the eigenvectors for the first gradient. After every $k$ steps, they
        follow by a step of orthogonal iteration, in the order of their Rayleigh
        quotients, and $\mu$ is transformed to the new basis. In it, each factor is
        shifted by $10^{-5}$ of its largest eigenvalue, so that directions without
        curvature stay where they are. The first call only initializes the preconditioner:
        its updates are zero, and $t$ does not count it.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $$p_t = p_{t-1} - \eta_t\, \big(s \operatorname{NS}(v_t) + \lambda p_{t-1}\big),
          \qquad v_t = Q_L \left( \frac{\mu_t}{\sqrt{\nu_t} +
              \varepsilon} \right) Q_R^*,$$

        with $\mu_t$, $\nu_t$, $Q_L$ and $Q_R$ of [`eqopt.ScaleBySOAP`][], and
        $\operatorname{NS}$ and $s$ of [`eqopt.Orthogonalize`][]. $\operatorname{NS}$
        has its own $\varepsilon$, $10^{-7}$.

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = L_0 = R_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1`
        (0.95), $\beta_2$ is `b2` (0.98), $\beta$ is `shampoo_beta`, $\varepsilon$ is
        `eps` (1e-15), $s$ is `scale` (`"shape"`), $\lambda$ is `weight_decay` (0.0),
        $k$ is `precondition_frequency` (10). Parameters that are not matrices use
        `fallback`, by default [`eqopt.AdamW`][].

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
    first. $\nu$ is the mean of the squared projected momentum, with $\beta_2 = 0.9$,
    and is at least $\varepsilon^2$. $Q$ is recomputed in each step, and $v_t$ is
    rescaled to the norm of the momentum. $\operatorname{NS}$ has 12 steps of
    $(2, -\frac32, \frac12)$, here `coefficients="simple"`. The first step is a Muon
    step.

    Derivatives through the step treat the bases $Q_L$ and $Q_R$ as constants.

    !!! example

        ```python
        opt = eqopt.SOAPMuon(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use
        0.001.
    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$. Default to 0.95 and 0.98.
    - `shampoo_beta`: $\beta \in [0, 1)$. Defaults to `None`, which means $\beta_2$.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-15.
    - `coefficients`: $(a, b, c)$ for all steps, or one row for each step, as a tuple or
        an array; or the name of a published set: `"standard"` (the set of Muon),
        `"dion"`, `"polar_express"` (5 steps), `"polar_express_8"`, `"cans"`, `"aol"`,
        `"cubic"`, `"deepseek"` or `"simple"` ($2, -\frac32, \frac12$, 12 steps). The
        name also determines the factor $c$ of the norm, which is otherwise 1. Defaults
        to the five quintic steps of Muon and two steps of $(\frac32, -\frac12, 0)$.
    - `steps`: the number of steps. Defaults to `None`, which means the number of rows,
        or 5 for a single row. If there are more steps than rows, the rows start again;
        Polar Express, CANS and DeepSeek repeat the last row.
    - `scale`: $s$, for $m$ outputs and $n$ inputs: `"none"`, 1; `"shape"`,
        $\sqrt{\max(1, m / n)}$; `"spectral"`, $\sqrt{\max(m, n)}$; `"unit_rms"`,
        $\sqrt{m / n}$; `"match_rms"`, $0.2 \sqrt{\max(m, n)}$, about the size of the
        updates of Adam. Defaults to `"shape"`.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `precondition_frequency`: $k$, an integer or an integer 0-d array. Defaults to 10.
    - `max_precond_dim`: the largest side with a factor. Without any factor, this is
        Adam. Defaults to 10000.
    - `one_sided`: whether only the shorter side of a matrix has a factor; of a square
        matrix, the outputs. Defaults to `False`.
    - `block_size`: larger sides are split into equal blocks of at most this size, and
        each block is a separate matrix. Defaults to `None`, for whole matrices.
    - `kl`: whether each factor is whitened by the other one (KL-SOAP). With the
        eigenvalues $\lambda_R$ of $R$, $G_t G_t^*$ becomes
        $\frac{1}{n}\, G_t Q_R \operatorname{diag}(\lambda_R)^{-1} Q_R^* G_t^*$, and
        similarly for $R$, with eigenvalues of at least their mean times the larger of
        $1/t$ and $10^{-3}$. The first gradient that is not zero is divided by the root of
        its root mean square instead, and is all of the first $L$ and $R$. (The authors
        whiten it, too, with eigenvalues of at least $10^{-8}$: then the basis stays as it
        is for about 200 steps.) Defaults to `False`.
    - `stagger`: whether matrices take turns: in each step, about one in $k$ refreshes
        its eigenvectors. A stack has one turn. The first refresh is in the same step.
        Defaults to `False`.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `ns_dtype`: the dtype of the iteration. Defaults to `None`: with the default
        coefficients, the matrix then keeps its dtype on all platforms. If you name a
        set of coefficients, accelerators iterate in bfloat16 with `"standard"`,
        `"dion"`, `"polar_express"`, `"aol"`, `"deepseek"` and `"simple"`.
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

    **When to use it:** like SOAP, where Muon also trains well. It takes the state and
    the time of both. The shortest runs of the modded-nanogpt benchmark of optimizers
    (track 3, in 2026) used variants of it. On eqopt's small workloads, it takes more
    steps than SOAP and Muon.

    ??? cite "References"

        ```bibtex
        @misc{vyas2025soapmuon,
            author = {Vyas, Nikhil and others},
            title = {{SOAP-Muon}},
            url = {https://github.com/nikhilvyas/SOAP_MUON},
            year = {2025},
        }
        ```

        ```bibtex
        @inproceedings{vyas2025soap,
            author = {Vyas, Nikhil and Morwani, Depen and Zhao, Rosie and Kwun, Mujin
                      and Shapira, Itai and Brandfonbrener, David and Janson, Lucas and
                      Kakade, Sham},
            title = {{SOAP}: Improving and Stabilizing {Shampoo} using {Adam}},
            booktitle = {International Conference on Learning Representations},
            year = {2025},
        }

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
    b1: Unit = 0.95
    b2: Unit = 0.98
    shampoo_beta: Unit | None = None
    eps: ZeroOrMore = 1e-15
    coefficients: Coefficients = _ROWS
    steps: Size | None = static_choice(static=True, default=None)
    scale: Scale = eqx.field(static=True, default="shape")
    weight_decay: WeightDecay = 0.0
    precondition_frequency: Count = 10
    max_precond_dim: SizeOrZero = static_choice(static=True, default=10_000)
    one_sided: bool = static_choice(static=True, default=False)
    block_size: Size | None = static_choice(static=True, default=None)
    kl: bool = False
    stagger: bool = static_choice(static=True, default=False)
    mask: Mask | None = static_choice(default=None)
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None

    @property
    def chain(self) -> Chain:
        soap = self.part(ScaleBySOAP, correct_bias=False)
        # `eps` of this recipe is SOAP's.
        orthogonalize = self.part(Orthogonalize, eps=NS_EPS, dtype=self.ns_dtype)
        return matrices_and_others(self, soap, orthogonalize)
