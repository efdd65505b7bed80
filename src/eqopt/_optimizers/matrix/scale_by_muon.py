"""Orthogonalized momentum: the main part of Muon."""

from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Inexact, Int

from ..._arguments.checks import check_fields
from ..._arguments.fields import static_choice
from ..._core import Leafwise, equation
from ..._errors import InputError
from ..._matrices import AbstractMatrixwise, DimensionNumbers, Rows
from ..._types import Params, Scalar, Size, Unit, Updates, ZeroOrMore
from ...numerics._numerics import bias_correction, safe_increment
from .parts.coefficients import STANDARD, TABLES, given_rows
from .parts.newton_schulz import Iteration


Coefficients: TypeAlias = Literal["standard", "dion"] | tuple | Array | np.ndarray
Preconditioning: TypeAlias = Literal["frobenius", "spectral", "aol", "schatten"]

_PRESETS = {"standard": STANDARD, "dion": TABLES["dion"].rows}


class ScaleByMuonState(eqx.Module):
    """The momentum.

    **Attributes:**

    - `count`: the number of steps so far, a 0-d int32 array.
    - `mu`: the mean of the gradients so far, a tree like the parameters, with `None`
        for parameters that are not matrices.
    """

    count: Int[Array, ""]
    mu: Updates


@equation
def muon(
    g: Inexact[Array, "m n"],
    mu: Inexact[Array, "m n"],
    *,
    iteration: Iteration,
    beta: Scalar,
    of_mu: Scalar,
    of_g: Scalar | None,
    eps: Scalar,
    adaptive: bool,
) -> tuple[Inexact[Array, "m n"], Inexact[Array, "m n"]]:
    mu = beta * mu + (1 - beta) * g
    mean = of_mu * mu if of_g is None else of_mu * mu + of_g * g
    u = iteration(mean, eps)
    if adaptive:
        u = u * jnp.sum((jnp.conj(mean) * u).real)
    return u, mu


class ScaleByMuon(AbstractMatrixwise):
    r"""Replaces the momentum of each matrix by a nearly orthogonal matrix close to it.

    !!! abstract "One step"

        $$\mu_t = \beta \mu_{t-1} + (1 - \beta)\, g_t, \qquad
          \hat\mu_t = \mu_t / (1 - \beta^t), \qquad
          u_t = \operatorname{NS}(\hat\mu_t),$$

        where $\operatorname{NS}$ is the Newton-Schulz iteration of
        [`eqopt.Orthogonalize`][], with the coefficients `ns_coeffs`.

        With `nesterov`, $\hat\mu_t$ is replaced by
        $\beta \mu_t / (1 - \beta^{t+1}) + (1 - \beta)\, g_t / (1 - \beta^t)$.

        $$\begin{aligned}
          \operatorname{NS}(X) &= X_N, & X_0 &= X / (c\, \|X\|_F + \varepsilon), \\
          X_k &= \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, &
          A_k &= X_{k-1} X_{k-1}^*
        \end{aligned}$$

        with coefficients $(a_k, b_k, c_k)$ for each of the $N$ steps, and a factor $c$
        that belongs to them, usually 1.

        $g_t$ is the gradient. At the start, $\mu_0 = 0$. $\beta$ is `beta` (0.95),
        $\varepsilon$ is `eps` (1e-8). By default, `nesterov` is `True`.

    For $X = U \Sigma V^*$, the result is $U \Sigma' V^*$ with singular values near one:
    between about 0.7 and 1.2 for the default coefficients. The updates of zero matrices
    are zero. Stacked matrices, for example in layers made with `eqx.filter_vmap`, are
    transformed separately. Parameters that are not matrices pass unchanged and have no
    state.

    With all methods for matrices, a CPU processes one leaf after the other, or two small
    leaves in one loop. So a step with many leaves needs memory for only one or two.
    Accelerators process matrices of equal shape in batches, except with methods that
    refresh their factors in turn.

    **Arguments:**

    - `ns_coeffs`: $(a, b, c)$ for all steps, a tuple of such rows with one for each step,
        or an array of either form. `"standard"` and `"dion"` are names of published
        coefficients. Defaults to `"standard"`, $(3.4445, -4.775, 2.0315)$.
    - `ns_steps`: the number of steps if `ns_coeffs` is a single row. Otherwise, it has no
        effect. Defaults to 5.
    - `beta`: $\beta \in [0, 1)$, the decay of the momentum. Defaults to 0.95.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `nesterov`: whether to use Nesterov momentum. Defaults to `True`.
    - `adaptive`: whether to multiply the update of each matrix by
        $\langle \hat\mu_t, u_t \rangle$, about the sum of the singular values of
        $\hat\mu_t$. Then the steps become smaller when the gradients do. Defaults to
        `False`.
    - `preconditioning`: a second divisor of $X_0$, in addition to the Frobenius norm:
        `"frobenius"` for none; `"spectral"` for the largest singular value, at the cost
        of an eigenvalue problem; `"schatten"` for $\|A_0\|_F^{1/2}$; `"aol"` for the root
        of $\sum_j |A_{0, ij}|$, row by row. If the singular values start closer to one,
        fewer steps are needed. Defaults to `"frobenius"`.
    - `ns_dtype`: the dtype of the iteration, except for complex matrices. The authors use
        `jnp.bfloat16` on accelerators. Defaults to float32, or to the dtype of the
        gradient if that is more precise.
    - `weight_dimension_numbers`: which parameters are matrices, and which of their axes
        are outputs and inputs. It is a tree of [`eqopt.MatrixDimensionNumbers`][] and
        `None` with the structure of the parameters or a prefix of it, or a function of
        the parameters that returns one. A single `MatrixDimensionNumbers` applies to all
        arrays with at least two axes. Defaults to [`eqopt.groups.layer_matrices`][]: the
        weights of Equinox's linear, convolution and recurrent layers, and arrays with
        two axes (inputs first) outside the layers of `equinox.nn`. Embeddings are not
        matrices. Other arrays with three or more axes outside these layers, such as
        your own stack of matrices, are then an error. Describe them with
        [`eqopt.groups.matrices`][] and [`eqopt.groups.stacked`][].

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, or if `ns_coeffs` is not of
    shape `(3,)` or `(steps, 3)`. In `init` and `update`, a `ValueError` with the key
    path if the dimension numbers do not fit the parameters, or if they are needed but not
    given.

    ??? cite "References"

        ```bibtex
        @misc{jordan2024muon,
            author = {Jordan, Keller and Jin, Yuchen and Boza, Vlado and You, Jiacheng and
                      Cesista, Franz and Newhouse, Laker and Bernstein, Jeremy},
            title = {Muon: An Optimizer for Hidden Layers in Neural Networks},
            url = {https://kellerjordan.github.io/posts/muon/},
            year = {2024},
        }

        @article{bernstein2024old,
            author = {Bernstein, Jeremy and Newhouse, Laker},
            title = {Old Optimizer, New Norm: An Anthology},
            journal = {arXiv:2409.20325},
            year = {2024},
        }

        @article{ahn2025dion,
            author = {Ahn, Kwangjun and Xu, Byron and Abreu, Natalie and Fan, Ying and
                      Magakyan, Gagik and Sharma, Pratyusha and Zhan, Zheng and
                      Langford, John},
            title = {Dion: Distributed Orthonormalized Updates},
            journal = {arXiv:2504.05295},
            year = {2025},
        }
        ```
    """

    ns_coeffs: Coefficients = STANDARD
    ns_steps: Size = static_choice(static=True, default=5)
    beta: Unit = 0.95
    eps: ZeroOrMore = 1e-8
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = True
    adaptive: bool = False
    preconditioning: Preconditioning = eqx.field(static=True, default="frobenius")
    ns_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    @property
    def _rows(self) -> Rows:
        return "first"

    def __check_init__(self) -> None:
        check_fields(self)
        # This creates no arrays: they would start JAX before `jax.distributed` does.
        jax.eval_shape(self._coefficients)

    def _coefficients(self) -> Float[Array, "*steps 3"]:
        coefficients = self.ns_coeffs
        if isinstance(coefficients, str):
            if coefficients not in _PRESETS:
                raise InputError(
                    "ScaleByMuon",
                    f"`ns_coeffs` must be one of {[*_PRESETS]}, or numbers, "
                    f"but is {coefficients!r}.",
                )
            coefficients = _PRESETS[coefficients]
        return given_rows("ScaleByMuon", "ns_coeffs", coefficients)

    def init(self, params: Params) -> ScaleByMuonState:
        mu = self.for_matrices(params, lambda x: x, self.mu_dtype)
        return ScaleByMuonState(jnp.zeros((), jnp.int32), mu)

    def matrixwise(
        self, state: ScaleByMuonState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        beta = jnp.asarray(self.beta, float)
        if self.nesterov:
            of_mu = beta / bias_correction(beta, safe_increment(count))
            of_g = (1 - beta) / bias_correction(beta, count)
        else:
            of_mu, of_g = 1 / bias_correction(beta, count), None
        iteration = Iteration(
            rows=self._coefficients(),
            steps=self.ns_steps,
            preconditioning=self.preconditioning,
            ns_dtype=self.ns_dtype,
        )
        return Leafwise(
            muon,
            ScaleByMuonState(count, state.mu),
            {"iteration": iteration, "of_mu": of_mu, "of_g": of_g},
        )
