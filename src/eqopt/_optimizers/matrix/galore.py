"""GaLore: an optimizer whose state is for gradients projected to a low rank."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Bool, Inexact, Int

from ..._arguments.extra import without_norm
from ..._arguments.fields import static_choice
from ..._core import (
    AbstractTransformation,
    Equation,
    ShapeMismatch,
    check_real,
    leafwise,
    rounded_like,
    widened,
)
from ..._matrices import (
    AbstractContracting,
    DimensionNumbers,
    Layout,
    map_layouts,
    mask_matrices,
)
from ..._trees.control import filter_cond
from ..._trees.leaves import parameters, restrict
from ..._trees.routes import Report
from ..._trees.sharding import unsharded
from ..._trees.states import check_size
from ..._trees.stored import load, shapes_if_stored
from ..._types import (
    Count,
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    PerLeaf,
    Scalar,
    ScalarOrSchedule,
    Size,
    State,
    Updates,
)
from ...numerics._numerics import safe_increment
from ...tree._like import wide_zeros_like
from ..adam.adam import ScaleByAdam
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay
from .parts.eigenbasis import adjoint, orthonormal, times


class ScaleByGaLoreState(eqx.Module):
    """The subspaces, and the state of the inner optimizer in them.

    **Attributes:**

    - `count`: the number of steps so far, a 0-d int32 array.
    - `inner_state`: the state of the inner optimizer, for projected matrices.
    - `projector`: $P$ for each matrix, with the axes (stack, short side, rank). A stack
        may have any number of axes. `None` for parameters that are not matrices.
    """

    count: Int[Array, ""]
    inner_state: State
    projector: PerLeaf


# The iteration has half as many vectors again as are wanted, and this many steps. With
# singular values that fall like the inverse root of their number, the leading ones then
# hold 0.9998 of what an exact decomposition holds.
_STEPS = 5


def leading(
    matrices: Inexact[Array, "*stack short long"], rank: int
) -> Inexact[Array, "*stack short rank"]:
    r"""The leading left singular vectors: the leading eigenvectors of $G G^*$.

    A subspace is multiplied by $G G^*$ and made orthonormal, several times, and the
    eigenvectors are computed in it. If it is the whole space, they are exact. A singular
    value decomposition of large matrices takes many minutes to compile for a TPU.
    """
    # The derivative is stopped, because it is infinite if singular values are equal.
    matrices = lax.stop_gradient(matrices)
    largest = jnp.max(jnp.abs(matrices), (-2, -1), keepdims=True)
    # So that no square is too large or too small.
    matrices = matrices / jnp.where(largest > 0, largest, 1).astype(matrices.dtype)
    square = times(matrices, adjoint(matrices), "highest")
    short = square.shape[-1]
    width = min(short, rank + max(rank // 2, 8))
    if width == short:
        return _leading_of(square, rank)
    start = jax.random.normal(jax.random.key(0), (short, width), square.dtype)
    start = jnp.broadcast_to(start, (*square.shape[:-1], width))
    step = lambda _, basis: orthonormal(times(square, basis, "highest"))
    basis = lax.fori_loop(0, _STEPS, step, start)
    small = times(adjoint(basis), times(square, basis, "highest"), "highest")
    return times(basis, _leading_of(small, rank), "highest")


def _leading_of(square: Inexact[Array, "*stack n n"], rank: int) -> Any:
    """The eigenvectors of the largest eigenvalues, the largest one first."""
    return jnp.linalg.eigh(square)[1][..., ::-1][..., :rank]


def projected(
    projector: Inexact[Array, "*stack short rank"],
    matrices: Inexact[Array, "*stack short long"],
) -> Inexact[Array, "*stack rank long"]:
    return adjoint(projector).astype(matrices.dtype) @ matrices


class _Reshaping(Equation):
    """An equation whose result has another shape than its update.

    Equal matrices are not computed in batches: compiled for an H100, 12 matrices of 1024
    x 1024 would take 4.1 of their sizes in temporary memory.
    """

    keeps_shape = False


@_Reshaping
def subspace(
    g: Leaf,
    projector: Inexact[Array, "*stack short rank"],
    layout: Layout,
    *,
    is_due,
    some_missing,
) -> tuple[Scalar, Inexact[Array, "*stack short rank"]]:
    """Renews a projector that is due or missing.

    There is no update: an array would be copied.
    """
    is_of_others = jnp.iscomplexobj(g) != jnp.iscomplexobj(projector)
    shape = jax.eval_shape(layout.split, g).shape
    if is_of_others or shape[:-1] != projector.shape[:-1]:
        raise ShapeMismatch("a projector of other matrices")
    # Splits in the branch: outside, XLA on a CPU would transpose all leaves first.
    leading_now = lambda: leading(layout.split(g), projector.shape[-1])
    renewed = lambda: jnp.where(
        is_due | is_missing(projector), leading_now(), projector
    )
    new = filter_cond(is_due | some_missing, renewed, lambda: projector)
    return jnp.zeros((), new.real.dtype), new


def is_missing(projector: Inexact[Array, "*stack short rank"]) -> Bool[Array, ""]:
    """Tells whether a leaf had no gradient yet: its singular vectors are zero."""
    return jnp.all(projector[..., 0] == 0)


@_Reshaping
def project(
    g: Leaf, projector: Inexact[Array, "*stack short rank"], layout: Layout
) -> Inexact[Array, "*stack rank long"]:
    return projected(projector, layout.split(g))


@_Reshaping
def restore(
    g: Inexact[Array, "*stack rank long"],
    full: Leaf,
    projector: Inexact[Array, "*stack short rank"],
    layout: Layout,
    *,
    scale,
) -> Leaf:
    return layout.merge(scale * (projector @ g), full.shape)


class ScaleByGaLore(AbstractContracting):
    r"""Runs an optimizer on gradients that are projected to a low rank.

    !!! abstract "One step"

        Let each matrix $G_t$ have the shape $m \times n$, transposed if necessary so
        that $m \le n$. Then

        $$R_t = P^* G_t, \qquad u_t = s\, P\, \operatorname{inner}(R_t),$$

        where $P$ holds the $r$ leading left singular vectors of $G_t$ from the last
        step $t$, counted from 0, that was a multiple of $T$, and $\operatorname{inner}$
        is by default the update of [`eqopt.ScaleByAdam`][], with $R_t$ instead of
        $g_t$, $\beta_1 = 0.9$, $\beta_2 = 0.999$, $\varepsilon = 10^{-8}$ and
        $\bar\varepsilon = 0$.

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} +
              \varepsilon\big)
        \end{aligned}$$

        $g_t$ is the gradient. At the start, $\mu_0 = \nu_0 = 0$. $r$ is `rank` (128),
        $T$ is `update_proj_gap` (200), $s$ is `scale` (1.0).

    The inner state is for $r \times n$ matrices. Parameters that are not matrices go to
    the inner optimizer unchanged. Matrices in a stack are projected separately.

    Derivatives through the step treat the projector as a constant.

    **Arguments:**

    - `rank`: $r$, an integer of at least 1. Smaller matrices keep their full rank.
        Defaults to 128.
    - `update_proj_gap`: $T$, an integer or an integer 0-d array. A new subspace does not
        change the inner state. A matrix whose first gradient comes later than in step 0
        gets its projector from that gradient. Defaults to 200.
    - `scale`: $s$, a number or a 0-d array. The experiments in the paper use 0.25.
        Defaults to 1.0.
    - `inner`: the optimizer in the subspace, such as [`eqopt.ScaleByAdam`][] or
        [`eqopt.ScaleByLion`][]. It does not see the parameters, so add weight decay
        outside. Defaults to `eqopt.ScaleByAdam()`.
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

    A `ValueError` if `rank` or `update_proj_gap` is not an integer of at least 1; in
    `init` and `update`, one that names the key path if the dimension numbers do not fit
    the parameters.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhao2024galore,
            author = {Zhao, Jiawei and Zhang, Zhenyu and Chen, Beidi and Wang, Zhangyang
                      and Anandkumar, Anima and Tian, Yuandong},
            title = {{GaLore}: Memory-Efficient {LLM} Training by Gradient Low-Rank
                     Projection},
            booktitle = {International Conference on Machine Learning},
            year = {2024},
        }
        ```
    """

    rank: Size = static_choice(static=True, default=128)
    update_proj_gap: Count = 200
    scale: Hyperparameter = 1.0
    inner: AbstractTransformation = ScaleByAdam()
    weight_dimension_numbers: DimensionNumbers | None = None

    _takes_blocks = False

    # Differs from Optax: this projects the short side, like the paper and its code. Optax
    # projects the long side.
    _rows = "shorter"

    def _route(self, report: Report, params: Params) -> None:
        super()._route(report, params)
        self.inner._route(report, params)

    def init(self, params: Params) -> ScaleByGaLoreState:
        params = parameters(params)
        zeros, layouts = wide_zeros_like(params), self._layouts(params, params)

        def projector(layout, x):
            matrices = layout.split(unsharded(x))
            return matrices[..., : min(self.rank, matrices.shape[-2])]

        # Computed from zeros, so that they are sharded like the parameter.
        projectors = map_layouts(projector, layouts, zeros)
        low = lambda layout, x, p, zeros: projected(p, layout.split(zeros))
        low = map_layouts(
            low, layouts, params, projectors, zeros, otherwise=lambda x, *_: x
        )
        inner_state = self.inner.init(low)
        return ScaleByGaLoreState(jnp.zeros((), jnp.int32), inner_state, projectors)

    def _update(
        self, updates: Updates, state: State, params: Params | None, extra: Any
    ) -> tuple[Updates, ScaleByGaLoreState]:
        given, updates = updates, widened(updates)
        layouts = self._layouts(updates, params)
        matrices = mask_matrices(layouts)
        projectors = self._projectors(updates, state, layouts, matrices)
        reads = {"projector": projectors, "layout": layouts}
        low = leafwise(project, updates, reads=reads, mask=matrices)
        extra = without_norm(extra)
        low, inner_state = self.inner.update(low, state.inner_state, None, **extra)
        reads = {"full": updates, **reads}
        new = leafwise(restore, low, reads=reads, mask=matrices, scale=self.scale)
        count = safe_increment(state.count)
        new = rounded_like(new, given)
        return new, ScaleByGaLoreState(count, inner_state, projectors)

    def _projectors(self, updates, state, layouts, matrices) -> Updates:
        """The projectors of this step."""
        check_real(updates, state.projector, "state.projector")
        for p in jtu.tree_leaves(shapes_if_stored(state.projector)):
            check_size(self, "rank", p.shape[-1], p.shape[-2])
        is_due = state.count % jnp.asarray(self.update_proj_gap, jnp.int32) == 0
        # One condition for all: XLA then has one branch, not one for each leaf.
        here = load(restrict(state.projector, updates, "state.projector"))
        missing = [is_missing(p) for p in jtu.tree_leaves(here)]
        some_missing = functools.reduce(jnp.logical_or, missing, jnp.bool_(False))
        _, projectors = leafwise(
            subspace,
            updates,
            state.projector,
            reads={"layout": layouts},
            mask=matrices,
            is_due=is_due,
            some_missing=some_missing,
        )
        return projectors


class GaLore(AbstractRecipe):
    r"""GaLore: trains all parameters with as little state as a low-rank adapter.

    !!! abstract "One step"

        Let each matrix $G_t$ have the shape $m \times n$, transposed if necessary so
        that $m \le n$. Then

        $$R_t = P^* G_t, \qquad u_t = s\, P\, \operatorname{inner}(R_t),$$

        where $P$ holds the $r$ leading left singular vectors of $G_t$ from the last
        step $t$, counted from 0, that was a multiple of $T$. By default,
        $\operatorname{inner}$ is the update of [`eqopt.ScaleByAdam`][], with $R_t$
        instead of $g_t$, $\beta_1 = 0.9$, $\beta_2 = 0.999$, $\varepsilon = 10^{-8}$
        and $\bar\varepsilon = 0$:

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t &
          \hat\mu_t &= \mu_t / (1 - \beta_1^t) \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |g_t|^2 &
          \hat\nu_t &= \nu_t / (1 - \beta_2^t) \\
          u_t &= \hat\mu_t \big/ \big(\sqrt{\hat\nu_t + \bar\varepsilon} +
              \varepsilon\big)
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByGaLore`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $r$ is `rank` (128), $T$ is
        `update_proj_gap` (200), $s$ is `scale` (1.0), $\lambda$ is `weight_decay`
        (0.0).

    For an $m \times n$ matrix with $m \le n$, the state with Adam has $m r + 2 r n$
    numbers instead of $2 m n$. Derivatives through the step treat the projector as a
    constant.

    !!! example

        ```python
        opt = eqopt.GaLore(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `rank`: $r$, an integer of at least 1. Smaller matrices keep their full rank.
        Defaults to 128.
    - `update_proj_gap`: $T$, an integer or an integer 0-d array. A new subspace does
        not change the inner state. A matrix whose first gradient comes later than in
        step 0 gets its projector from that gradient. Defaults to 200.
    - `scale`: $s$, a number or a 0-d array. The experiments in the paper use 0.25.
        Defaults to 1.0.
    - `inner`: the optimizer in the subspace, such as [`eqopt.ScaleByAdam`][] or
        [`eqopt.ScaleByLion`][]. It does not see the parameters, so add weight decay
        outside. Defaults to `eqopt.ScaleByAdam()`.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
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

    **When to use it:** if the state of Adam does not fit into memory. Otherwise,
    [`eqopt.AdamW`][] is the better optimizer, because it uses all of the gradient. In
    eqopt's small workloads, the short side of each matrix is below the default `rank`,
    so nothing is lost there. The step that renews the subspaces needs eigenvectors for
    each matrix.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhao2024galore,
            author = {Zhao, Jiawei and Zhang, Zhenyu and Chen, Beidi and Wang, Zhangyang
                      and Anandkumar, Anima and Tian, Yuandong},
            title = {{GaLore}: Memory-Efficient {LLM} Training by Gradient Low-Rank
                     Projection},
            booktitle = {International Conference on Machine Learning},
            year = {2024},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    rank: Size = static_choice(static=True, default=128)
    update_proj_gap: Count = 200
    scale: Hyperparameter = 1.0
    inner: AbstractTransformation = ScaleByAdam()
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    weight_dimension_numbers: DimensionNumbers | None = None

    _parts = ScaleByGaLore, AddDecayedWeights, ScaleByLearningRate
