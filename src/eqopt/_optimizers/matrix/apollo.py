"""APOLLO: gradients, scaled like the updates of Adam in a subspace."""

import functools
from typing import Annotated, Any, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Inexact

from ..._arguments.fields import static_choice
from ..._core import AbstractTransformation, Leafwise, equation
from ..._matrices import AbstractMatrixwise, DimensionNumbers, Pieces, map_layouts
from ..._trees.control import cond
from ..._trees.keys import as_key
from ..._trees.leaves import places
from ..._types import (
    Count,
    Hyperparameter,
    Interval,
    Key,
    Mask,
    Nonnegative,
    Params,
    PerLeaf,
    ScalarOrSchedule,
    Size,
    Unit,
    Updates,
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
from .galore import leading
from .parts.eigenbasis import Matrix
from .parts.recipe import AbstractMatrixRecipe, WeightDecay


ScaleType: TypeAlias = Literal["channel", "tensor"]
Projection: TypeAlias = Literal["random", "svd"]
Low: TypeAlias = Inexact[Array, "r long"]

# This is added to norms before something is divided by them.
_EPS = 1e-8


class ScaleByAPOLLOState(AbstractMomentsState):
    r"""The moments in a subspace for each matrix, and the norm for the growth limit.

    **Attributes:**

    - `count`: the number of steps so far, a 0-d int32 array.
    - `mu`: the mean of the projected gradients: for each matrix, a tuple of one array of
        shape (stack, rank, long side); `None` elsewhere.
    - `nu`: the mean of the squares of the projected gradients, in the same form.
    - `projector`: with `proj="svd"`, for each matrix a tuple of $P$, of shape (stack,
        short side, rank); otherwise a tuple of `None`.
    - `norm`: $\|\hat u\|_F$ of the last step. It has the axes of the parameter. All of
        them have size 1 except the axes of the stack.
    """

    projector: PerLeaf
    norm: Nonnegative


@equation
def apollo(
    g: Matrix,
    mu: tuple[Low],
    nu: tuple[Float[Array, "r long"]],
    projector: tuple[Inexact[Array, "short r"] | None],
    norm: Float[Array, "1 1"],
    key: tuple[Any],
    *,
    b1,
    b2,
    eps,
    step_size,
    is_due,
    scale,
    max_growth,
    scale_type,
    scale_front,
) -> tuple[Matrix, Any, Any, Any, Float[Array, "1 1"]]:
    x, (old,) = _wide(g), projector
    if old is None:
        # In float32, the random numbers are the same for any precision of the state.
        p = jr.normal(key[0], (len(x), len(mu[0])), jnp.float32).astype(norm.dtype)
        p = p / len(mu[0]) ** 0.5
    else:
        p = cond(is_due, lambda: leading(x, old.shape[1]), lambda: old)
        projector = (p,)
    r = jnp.conj(p.T).astype(g.dtype) @ x
    new_mu = b1 * mu[0] + (1 - b1) * r
    new_nu = b2 * nu[0] + (1 - b2) * abs_sq(r)
    adapted = new_mu / root_plus(new_nu, eps)
    axis = 0 if scale_type == "channel" else (0, 1)
    lengths = (safe_norm(x, 0, axis=axis, keepdims=True) for x in (adapted, r))
    u = x * (next(lengths) / (next(lengths) + _EPS))
    root = safe_sqrt(scale)
    u = root * u if scale_front else u
    new_norm = safe_norm(u, 0, axis=(0, 1), keepdims=True)
    if max_growth is not None:
        growth = jnp.maximum(new_norm / (norm + _EPS), max_growth) / max_growth
        # There is no limit after an update of zero, nor for the first update.
        limited = jnp.where(norm > 0, 1 / growth, 1)
        u, new_norm = u * limited, new_norm * limited
    u = step_size * u if scale_front else step_size * root * u
    u = u if x is g else u.T
    return u, (new_mu,), (new_nu,), projector, new_norm


def _wide(x: Any) -> Any:
    """`x` with the short side as rows; if both sides are equal, with the inputs."""
    return x if x.shape[0] < x.shape[1] else x.T


class ScaleByAPOLLO(AbstractMatrixwise):
    r"""Scales gradients like the updates of Adam in a low-rank subspace.

    Let $G_t$ be a matrix with $m$ rows and $n$ columns, transposed if necessary so that
    $m \le n$. (If both sides are equal, the inputs are its rows.) Then

    $$\begin{aligned}
      R_t &= P^* G_t &
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, R_t \\
      \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |R_t|^2 &
      \tilde R_t &= \mu_t / (\sqrt{\nu_t} + \varepsilon) \\
      s_{t, j} &= \|\tilde R_{t, :j}\| \,/\, (\|R_{t, :j}\| + 10^{-8}) &
      \tilde u_t &= G_t \operatorname{diag}(s_t)
    \end{aligned}$$

    $$\hat u_t = \tilde u_t\, \frac{\gamma}{\max\big(\gamma,
      \|\tilde u_t\|_F / (\|\hat u_{t-1}\|_F + 10^{-8})\big)}, \qquad
      u_t = \sqrt{\alpha}\; \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\; \hat u_t,$$

    where $P$ has $r$ columns and is recomputed after every $T$ steps.

    The moments are kept. The growth limit $\gamma$ does not apply to the first update,
    nor to an update that follows an update of zero. Parameters that are not matrices
    pass unchanged and have no state.

    The state has $2 r n$ numbers for each matrix; `proj="svd"` adds $m r$. For
    APOLLO-Mini, use `rank=1`, `scale_type="tensor"` and `scale=128`. It has about as
    little state as SGD. With `proj="svd"`, derivatives through the step treat $P$ as a
    constant.

    **Arguments:**

    - `rank`: $r$, an integer of at least 1. Smaller matrices keep their full rank.
        Defaults to 256.
    - `scale`: $\alpha \ge 0$; its root is a factor of the update. If the rank is a
        quarter of the width, the authors use 1. Defaults to 1.0.
    - `scale_type`: `"channel"` for one $s_{t, j}$ per column, or `"tensor"` for a single
        $s_t$, from the norms of whole matrices. Defaults to `"channel"`.
    - `update_proj_gap`: $T$, an integer or an integer 0-d array. Defaults to 200.
    - `proj`: `"random"` for normal numbers of variance $1 / r$, which are not stored; or
        `"svd"` for the leading left singular vectors of the gradient. Defaults to
        `"random"`.
    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$. Default to 0.9 and 0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-6.
    - `max_growth`: $\gamma \ge 1$, or `None` for no limit. Defaults to 1.01.
    - `key`: a seed or a random key, for `proj="random"`. $P$ is drawn with
        `jax.random.fold_in(jax.random.fold_in(key, t // T), i)`, where $t$ counts steps
        from 0 and $i$ counts the leaves of the parameters. For a stack, this key is
        split. Defaults to 0.
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
    - `scale_front`: whether to multiply by $\sqrt\alpha$ before the growth is limited.
        Then the limit also applies to the growth of a scheduled $\alpha$. With a constant
        $\alpha$, the updates are the same either way, up to the $10^{-8}$ above.
        Defaults to `False`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range. In `init` and `update`, a
    `ValueError` with the key path if the dimension numbers do not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhu2025apollo,
            author = {Zhu, Hanqing and Zhang, Zhenyu and Cong, Wenyan and Liu, Xi and
                      Park, Sem and Chandra, Vikas and Long, Bo and Pan, David Z. and
                      Wang, Zhangyang and Lee, Jinwon},
            title = {{APOLLO}: {SGD}-like Memory, {AdamW}-level Performance},
            booktitle = {Conference on Machine Learning and Systems},
            year = {2025},
        }
        ```
    """

    rank: Size = static_choice(static=True, default=256)
    scale: ZeroOrMore = 1.0
    scale_type: ScaleType = eqx.field(static=True, default="channel")
    update_proj_gap: Count = 200
    proj: Projection = eqx.field(static=True, default="random")
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-6
    max_growth: Annotated[Hyperparameter, Interval(1)] | None = 1.01
    key: Key = 0
    weight_dimension_numbers: DimensionNumbers | None = None
    scale_front: bool = False

    _sized = (("mu", "_low"), ("projector", "_projector"))
    _work = "decompositions"

    def init(self, params: Params) -> ScaleByAPOLLOState:
        return ScaleByAPOLLOState(
            jnp.zeros((), jnp.int32),
            mu=self.for_matrices(params, self._low),
            nu=self.for_matrices(params, lambda x: (abs_sq(*self._low(x)),)),
            projector=self.for_matrices(params, self._projector),
            norm=self.for_matrices(params, lambda x: jnp.sum(abs_sq(x), keepdims=True)),
        )

    def _low(self, x: Any) -> tuple[Any]:
        return (_wide(x)[: self.rank],)

    def _projector(self, x: Any) -> tuple[Any]:
        (low,) = self._low(x)
        return (_wide(x) @ jnp.conj(low.T) if self.proj == "svd" else None,)

    def matrixwise(
        self, state: ScaleByAPOLLOState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        every = jnp.asarray(self.update_proj_gap, jnp.int32)
        root = jnp.sqrt(bias_correction(self.b2, count))
        return counted(
            self,
            apollo,
            state,
            count=count,
            reads={"key": functools.partial(self._keys, state.count // every, params)},
            step_size=root / bias_correction(self.b1, count),
            is_due=state.count % every == 0,
        )

    def _keys(self, epoch: Any, params: Params | None, updates: Updates) -> Updates:
        """A tuple for each matrix, of keys with the axes of the stack."""
        is_random = self.proj != "svd"
        key = jr.fold_in(as_key(self.key), epoch) if is_random else None
        of_leaf = lambda i: None if key is None else jr.fold_in(key, i)
        of_one = lambda layout, x, i: _keys(layout, x.shape, of_leaf(i))
        layouts = self._layouts(updates, params)
        return map_layouts(of_one, layouts, updates, places(updates))


def _keys(layout, shape: tuple[int, ...], key: Any) -> tuple:
    if isinstance(layout, Pieces):
        pieces = zip(layout.layouts, layout.shapes(shape), strict=True)
        of_piece = lambda k: None if key is None else jr.fold_in(key, k)
        return tuple(_keys(*x, of_piece(k)) for k, x in enumerate(pieces))
    if key is None:
        return (None,)
    stack = layout.stack(shape)
    return (jr.split(key, stack) if stack else key,)


class APOLLO(AbstractMatrixRecipe):
    r"""APOLLO: gradients of matrices, scaled like the updates of Adam in a subspace.

    !!! abstract "One step"

        Let $G_t$ be a matrix with $m$ rows and $n$ columns, transposed if necessary so
        that $m \le n$. (If both sides are equal, the inputs are its rows.) Then

        $$\begin{aligned}
          R_t &= P^* G_t &
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, R_t \\
          \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2)\, |R_t|^2 &
          \tilde R_t &= \mu_t / (\sqrt{\nu_t} + \varepsilon) \\
          s_{t, j} &= \|\tilde R_{t, :j}\| \,/\, (\|R_{t, :j}\| + 10^{-8}) &
          \tilde u_t &= G_t \operatorname{diag}(s_t)
        \end{aligned}$$

        $$\hat u_t = \tilde u_t\, \frac{\gamma}{\max\big(\gamma,
          \|\tilde u_t\|_F / (\|\hat u_{t-1}\|_F + 10^{-8})\big)}, \qquad
          u_t = \sqrt{\alpha}\; \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\; \hat u_t,$$

        where $P$ has $r$ columns and is recomputed after every $T$ steps.

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByAPOLLO`][].

        $G_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $r$ is `rank` (256), $\alpha$ is
        `scale` (1.0), $T$ is `update_proj_gap` (200), $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-6), $\gamma$ is
        `max_growth` (1.01), $\lambda$ is `weight_decay` (0.0). Parameters that are not
        matrices use `fallback`, by default [`eqopt.AdamW`][].

    (The authors' code applies weight decay to the parameters after the step.) For
    APOLLO-Mini, use `APOLLO(1e-2, 1, 128.0, "tensor")`. With `proj="svd"`, derivatives
    through the step treat the projection as a constant.

    !!! example

        ```python
        opt = eqopt.APOLLO(0.01)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. The authors use
        0.01.
    - `rank`: $r$, an integer of at least 1. Smaller matrices keep their full rank.
        Defaults to 256.
    - `scale`: $\alpha \ge 0$; its root is a factor of the update. If the rank is a
        quarter of the width, the authors use 1. Defaults to 1.0.
    - `scale_type`: `"channel"` for one $s_{t, j}$ per column, or `"tensor"` for a
        single $s_t$, from the norms of whole matrices. Defaults to `"channel"`.
    - `update_proj_gap`: $T$, an integer or an integer 0-d array. Defaults to 200.
    - `proj`: `"random"` for normal numbers of variance $1 / r$, which are not stored;
        or `"svd"` for the leading left singular vectors of the gradient. Defaults to
        `"random"`.
    - `b1`, `b2`: $\beta_1, \beta_2 \in [0, 1)$. Default to 0.9 and 0.999.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-6.
    - `max_growth`: $\gamma \ge 1$, or `None` for no limit. Defaults to 1.01.
    - `weight_decay`: $\lambda$, for all parameters: a number, a 0-d array, a schedule,
        or an [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `key`: a seed or a random key, for `proj="random"`. $P$ is drawn with
        `jax.random.fold_in(jax.random.fold_in(key, t // T), i)`, where $t$ counts steps
        from 0 and $i$ counts the leaves of the parameters. For a stack, this key is
        split. Defaults to 0.
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
    - `scale_front`: whether to multiply by $\sqrt\alpha$ before the growth is limited.
        Then the limit also applies to the growth of a scheduled $\alpha$. With a
        constant $\alpha$, the updates are the same either way, up to the $10^{-8}$
        above. Defaults to `False`.

    **When to use it:** if the state of Adam does not fit into memory, instead of
    GaLore: it uses all of the gradient and needs no decomposition of matrices. Its
    authors report losses like AdamW's in the pretraining of language models. With
    `rank=1`, `scale_type="tensor"` and `scale=128.0` (APOLLO-Mini), they report this
    with about as little state as SGD.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhu2025apollo,
            author = {Zhu, Hanqing and Zhang, Zhenyu and Cong, Wenyan and Liu, Xi and
                      Park, Sem and Chandra, Vikas and Long, Bo and Pan, David Z. and
                      Wang, Zhangyang and Lee, Jinwon},
            title = {{APOLLO}: {SGD}-like Memory, {AdamW}-level Performance},
            booktitle = {Conference on Machine Learning and Systems},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    rank: Size = static_choice(static=True, default=256)
    scale: ZeroOrMore = 1.0
    scale_type: ScaleType = eqx.field(static=True, default="channel")
    update_proj_gap: Count = 200
    proj: Projection = eqx.field(static=True, default="random")
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-6
    max_growth: Annotated[Hyperparameter, Interval(1)] | None = 1.01
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    key: Key = 0
    weight_dimension_numbers: DimensionNumbers | None = None
    fallback: AbstractTransformation | None = None
    scale_front: bool = False

    _part = ScaleByAPOLLO
