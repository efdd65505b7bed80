"""Momentum, made orthogonal: the heart of Muon."""

from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Inexact, Int

from ..._checks import check_choice, check_count, check_range, check_state
from ..._dimension_numbers import DimensionNumbers, resolve_dimension_numbers
from ..._equations import equation
from ..._explicit import on_automatic_axes, shardings_of
from ..._fields import static_choice
from ..._leaves import flatten_updates, is_leaf
from ..._pipeline import Leafwise, Pipeline
from ..._transformation import AbstractTransformation
from ..._types import Hyperparameter, Params, Updates
from ...numerics import at_least_float32, bias_correction, safe_increment
from ...tree import zeros_like
from .parts.coefficients import STANDARD, TABLES, given_rows
from .parts.newton_schulz import PRECONDITIONINGS, Weights, orthogonalize


Coefficients: TypeAlias = Literal["standard", "dion"] | tuple | Array | np.ndarray
Preconditioning: TypeAlias = Literal["frobenius", "spectral", "aol", "schatten"]

_PRESETS = {"standard": STANDARD, "dion": TABLES["dion"].rows}


class ScaleByMuonState(eqx.Module):
    """The momentum.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the mean of the gradients so far, a tree like the parameters, with `None`
        for parameters that are not matrices.
    """

    count: Int[Array, ""]
    mu: Updates


@equation
def momentum(
    g: Inexact[Array, "*leaf"],
    mu: Inexact[Array, "*leaf"],
    *,
    beta: Float[Array, ""],
) -> tuple[Inexact[Array, "*leaf"], Inexact[Array, "*leaf"]]:
    mu = beta * mu + (1 - beta) * g
    return mu, mu


class ScaleByMuon(AbstractTransformation):
    r"""Replaces the momentum of each matrix by a nearly orthogonal matrix close to it.

    $$\mu_t = \beta \mu_{t-1} + (1 - \beta)\, g_t, \qquad
      \hat\mu_t = \mu_t / (1 - \beta^t), \qquad
      u_t = \operatorname{NS}(\hat\mu_t),$$

    or, with Nesterov momentum,
    $\hat\mu_t = \beta \mu_t / (1 - \beta^{t+1}) + (1 - \beta)\, g_t / (1 - \beta^t)$. The
    Newton-Schulz iteration is

    $$\operatorname{NS}(X) = X_n, \qquad X_0 = X / (\|X\|_F + \varepsilon), \qquad
      X_k = \big(a_k I + b_k A_k + c_k A_k^2\big) X_{k-1}, \quad
      A_k = X_{k-1} X_{k-1}^*.$$

    Where $X = U \Sigma V^*$, this is $U \Sigma' V^*$ with singular values near one:
    between about 0.7 and 1.2 for the default coefficients. The updates of zero matrices
    are zero. Stacked matrices, as in layers made with `eqx.filter_vmap`, are
    transformed separately. Parameters that are not matrices pass unchanged and have no
    state.

    The iteration runs in at least float32. On a CPU, it processes two leaves at a time,
    so that a step with many leaves needs memory for few. Elsewhere, matrices of one
    shape are processed together.

    **Arguments:**

    - `ns_coeffs`: $(a, b, c)$ for all steps, or a tuple of such rows, one for each
        step, or an array of either. `"standard"` and `"dion"` stand for published ones.
        Defaults to `"standard"`, $(3.4445, -4.775, 2.0315)$.
    - `ns_steps`: how many steps, if `ns_coeffs` is one row; else it is of no effect.
    - `beta`: $\beta \in [0, 1)$, the decay of the momentum.
    - `eps`: $\varepsilon \ge 0$.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter.
    - `nesterov`: whether to use Nesterov momentum.
    - `adaptive`: whether to multiply the update of each matrix by
        $\langle \hat\mu_t, u_t \rangle$, about the sum of the singular values of
        $\hat\mu_t$: steps then shrink as gradients do.
    - `preconditioning`: what $X_0$ is divided by once more, besides the Frobenius norm:
        `"spectral"` for the largest singular value, at the price of an eigenvalue
        problem; `"schatten"` for $\|A_0\|_F^{1/2}$; `"aol"` for the root of
        $\sum_j |A_{0, ij}|$, row by row. The nearer to one the singular values
        start, the fewer steps are needed.
    - `weight_dimension_numbers`: which parameters are matrices, and which of their axes
        are which: a tree of [`eqopt.MatrixDimensionNumbers`][] and `None` like the
        parameters or a prefix of it, or a function of the parameters that returns one.
        One alone is for all arrays of two axes or more. Defaults to the weights of
        Equinox's linear, convolution and recurrent layers, and to arrays of two axes
        (inputs first) that are in no layer of `equinox.nn`. Embeddings are not
        matrices.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, or if `ns_coeffs` is not of
    shape `(3,)` or `(steps, 3)`; in `init` and `update`, one that names the key path if
    the dimension numbers do not fit the parameters.

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
    ns_steps: int = static_choice(static=True, default=5)
    beta: Hyperparameter = 0.95
    eps: Hyperparameter = 1e-8
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = True
    adaptive: bool = False
    preconditioning: Preconditioning = eqx.field(static=True, default="frobenius")
    weight_dimension_numbers: DimensionNumbers | None = None

    def __check_init__(self):
        check_count(self, "ns_steps")
        check_range(self, "beta", 0, 1)
        check_range(self, "eps", 0)
        # Without arrays: they would start JAX, which `jax.distributed` has to do first.
        jax.eval_shape(self._coefficients)
        check_choice(self, "preconditioning", PRECONDITIONINGS)

    def _coefficients(self) -> Float[Array, "*steps 3"]:
        coefficients = self.ns_coeffs
        if isinstance(coefficients, str):
            if coefficients not in _PRESETS:
                raise ValueError(
                    f"ScaleByMuon: `ns_coeffs` must be one of {[*_PRESETS]}, or numbers, "
                    f"but is {coefficients!r}."
                )
            coefficients = _PRESETS[coefficients]
        return given_rows("ScaleByMuon", "ns_coeffs", coefficients)

    def init(self, params: Params) -> ScaleByMuonState:
        matrices = _only_matrices(self.weight_dimension_numbers, params)
        return ScaleByMuonState(
            jnp.zeros((), jnp.int32), zeros_like(matrices, self.mu_dtype)
        )

    def update(
        self,
        updates: Updates,
        state: ScaleByMuonState,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, ScaleByMuonState]:
        check_state(self, state)
        shardings = shardings_of((updates, state))
        return on_automatic_axes(
            ScaleByMuon._update, self, updates, state, params, shardings=shardings
        )

    def _update(
        self, updates: Updates, state: ScaleByMuonState, params: Params | None
    ) -> tuple[Updates, ScaleByMuonState]:
        leaves, treedef = flatten_updates(updates)
        axes = resolve_dimension_numbers(self.weight_dimension_numbers, updates, params)
        # In float32 from here to the end, also where the gradients are in bfloat16.
        wide = [
            None if a is None else at_least_float32(g)
            for g, a in zip(leaves, axes, strict=True)
        ]
        pipeline = Pipeline(treedef.unflatten(wide), None, {})
        count = safe_increment(state.count)
        new_state = ScaleByMuonState(count, state.mu)
        leafwise = Leafwise(momentum, new_state, {"beta": self.beta})
        promise = pipeline.push("ScaleByMuon", leafwise)
        mu = treedef.flatten_up_to(pipeline.flush())
        short = {
            i: a.short_side_first(leaves[i].shape)
            for i, a in enumerate(axes)
            if a is not None and leaves[i].size > 0
        }
        orthogonal = orthogonalize(
            tuple(short.values()),
            [wide[i] for i in short],
            [mu[i] for i in short],
            self._weights(count),
            count,
            coefficients=self._coefficients(),
            steps=self.ns_steps,
            eps=jnp.asarray(self.eps, float),
            preconditioning=self.preconditioning,
            adaptive=self.adaptive,
        )
        for i, x in zip(short, orthogonal, strict=True):
            leaves[i] = x.astype(leaves[i].dtype)
        return treedef.unflatten(leaves), promise()

    def _weights(self, count: Int[Array, ""]) -> Weights:
        r"""The weights of $\mu_t$ and, with Nesterov momentum, $g_t$ in $\hat\mu_t$."""
        beta = jnp.asarray(self.beta, float)
        if not self.nesterov:
            return (1 / bias_correction(beta, count),)
        of_mu = beta / bias_correction(beta, safe_increment(count))
        return of_mu, (1 - beta) / bias_correction(beta, count)


def _only_matrices(numbers: DimensionNumbers | None, params: Params) -> Params:
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
    axes = resolve_dimension_numbers(numbers, params, None)
    return treedef.unflatten(
        None if a is None else x for x, a in zip(leaves, axes, strict=True)
    )
