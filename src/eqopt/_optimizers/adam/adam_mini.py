"""Adam-mini: Adam with one second moment for each block of parameters."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, Float

from ..._arguments.fields import static_choice
from ..._core import AbstractLeafwise, Leafwise, equation
from ..._trees.leaves import is_leaf, parameters
from ..._trees.sharding import unsharded
from ..._types import Leaf, Mask, Params, RealLeaf, ScalarOrSchedule, Unit, ZeroOrMore
from ...groups._blocks import Blocks, block_shapes, layer_blocks
from ...numerics._numerics import abs_sq, safe_sqrt
from ...tree._like import real_full_like_leaf, wide_zeros_like
from ..moments import AbstractMomentsState, counted
from ..recipe import AbstractRecipe, AddDecayedWeights, ScaleByLearningRate, WeightDecay


class ScaleByAdamMiniState(AbstractMomentsState):
    """The moments so far.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `mu`: the mean of the gradients, a tree like the parameters.
    - `nu`: the second moments of blocks, real also for complex parameters. Each array has
        the axes of its parameter, with one entry for each block along an axis.
    """


OfBlocks: TypeAlias = Float[Array, "*blocks"]


@equation
def adam_mini(
    g: Leaf, mu: Leaf, nu: OfBlocks, *, b1, b2, eps, mu_correction, nu_correction
) -> tuple[Leaf, Leaf, OfBlocks]:
    nu = (1 - b2) * _block_means(abs_sq(g), nu.shape) + b2 * nu
    root = safe_sqrt(nu / nu_correction) + eps
    root = _spread(jnp.where(root == 0, 1, root), g.shape)
    mu = (1 - b1) * g + b1 * mu
    return mu / mu_correction / root, mu, nu


def _block_means(x: RealLeaf, shape: Sequence[int]) -> OfBlocks:
    """The means of blocks; `shape` gives the number of blocks along each axis."""
    pairs = list(zip(x.shape, shape, strict=True))
    # The mean of an empty block is zero.
    size = math.prod(n // m for n, m in pairs if m)
    whole = [axis for axis, m in enumerate(shape) if m == 1]
    sums = jnp.sum(x, whole, keepdims=True)
    for axis, (n, m) in enumerate(pairs):
        if m not in (1, n):
            parts = (*sums.shape[:axis], m, n // m, *sums.shape[axis + 1 :])
            # A group may be on several devices, or several groups on one device.
            sums = jnp.sum(jnp.reshape(unsharded(sums), parts), axis + 1)
    return sums / max(size, 1)


def _spread(x: OfBlocks, shape: Sequence[int]) -> Float[Array, "..."]:
    """`x` with entries repeated so that it can be broadcast to `shape`."""
    for axis, n in enumerate(shape):
        if x.shape[axis] not in (1, n):
            x = jnp.repeat(x, n // x.shape[axis], axis)
    return x


class ScaleByAdamMini(AbstractLeafwise):
    r"""Divides the mean of the gradients by one root mean square per block.

    $$\begin{aligned}
      \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t \\
      \nu_t(b) &= \beta_2 \nu_{t-1}(b) + (1 - \beta_2)
        \operatorname{mean}_{i \in b} |g_t(i)|^2 \\
      u_t(i) &= \frac{\mu_t(i)}{1 - \beta_1^t} \bigg/
        \bigg(\sqrt{\frac{\nu_t(b)}{1 - \beta_2^t}} + \varepsilon\bigg)
        \quad\text{for } i \in b
    \end{aligned}$$

    With blocks of one element, this is [`eqopt.ScaleByAdam`][].

    !!! example

        ```python
        from eqopt.groups import BlockAxes

        def blocks(params):
            found = eqopt.groups.layer_blocks(params)
            # A custom attention layer, with 8 heads in the rows of a matrix:
            heads = BlockAxes((0, 1), 8)
            return eqx.tree_at(lambda m: m.attention.query, found, heads)

        opt = eqopt.AdamMini(1e-3, block_axes=blocks)
        ```

    **Arguments:**

    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moments. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `block_axes`: [`eqopt.groups.BlockAxes`][] for each parameter: a tree like the
        parameters or a prefix of it, or a function of the parameters that returns one.
        Defaults to [`eqopt.groups.layer_blocks`][], which knows the layers of Equinox
        and treats any other array as one block. An [`eqopt.MatrixDimensionNumbers`][]
        means a block for each output, or for each of its `output_blocks`, such as heads.
        An [`eqopt.groups.MatrixRules`][] says so for some arrays, and leaves the rest to
        the default. It is used only in `init`.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to the dtype of each
        parameter, at least float32.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to float32, or the
        precision of the parameter if that is higher: there are few blocks.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `init` a `ValueError`
    or `TypeError` that names the key path if `block_axes` does not fit the parameters.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhang2025adammini,
            author = {Zhang, Yushun and Chen, Congliang and Li, Ziniu and Ding, Tian and
                      Wu, Chenwei and Kingma, Diederik P. and Ye, Yinyu and Luo,
                      Zhi-Quan and Sun, Ruoyu},
            title = {{A}dam-mini: Use Fewer Learning Rates To Gain More},
            booktitle = {International Conference on Learning Representations},
            year = {2025},
        }
        ```
    """

    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    block_axes: Blocks = layer_blocks
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ScaleByAdamMiniState:
        def zeros(x, shape):  # sharded like the remaining axes
            return _block_means(real_full_like_leaf(x, 0, self.nu_dtype), shape)

        leaves, treedef = jtu.tree_flatten(parameters(params), is_leaf=is_leaf)
        shapes = block_shapes(self.block_axes, params)
        pairs = zip(leaves, shapes, strict=True)
        nu = [None if shape is None else zeros(x, shape) for x, shape in pairs]
        return ScaleByAdamMiniState(
            count=jnp.zeros((), jnp.int32),
            mu=wide_zeros_like(params, self.mu_dtype),
            nu=treedef.unflatten(nu),
        )

    def leafwise(
        self, state: ScaleByAdamMiniState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return counted(self, adam_mini, state)


class AdamMini(AbstractRecipe):
    r"""Adam-mini: AdamW with half the memory, with decoupled weight decay.

    !!! abstract "One step"

        $$\begin{aligned}
          \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1)\, g_t \\
          \nu_t(b) &= \beta_2 \nu_{t-1}(b) + (1 - \beta_2)
            \operatorname{mean}_{i \in b} |g_t(i)|^2 \\
          u_t(i) &= \frac{\mu_t(i)}{1 - \beta_1^t} \bigg/
            \bigg(\sqrt{\frac{\nu_t(b)}{1 - \beta_2^t}} + \varepsilon\bigg)
            \quad\text{for } i \in b
        \end{aligned}$$

        $$p_t = p_{t-1} - \eta_t\, (u_t + \lambda p_{t-1}),$$

        where $u_t$ is the update of [`eqopt.ScaleByAdamMini`][].

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $\mu_0 = \nu_0 = 0$. $\eta$ is `learning_rate`, $\beta_1$ is `b1` (0.9),
        $\beta_2$ is `b2` (0.999), $\varepsilon$ is `eps` (1e-8), $\lambda$ is
        `weight_decay` (0.0).

    The authors apply no decay to norms and biases.

    !!! example

        ```python
        opt = eqopt.AdamMini(1e-3)
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `b1`: $\beta_1 \in [0, 1)$, the decay of the mean. Defaults to 0.9.
    - `b2`: $\beta_2 \in [0, 1)$, the decay of the second moments. Defaults to 0.999.
    - `eps`: $\varepsilon \ge 0$, outside the root. Defaults to 1e-8.
    - `block_axes`: [`eqopt.groups.BlockAxes`][] for each parameter: a tree like the
        parameters or a prefix of it, or a function of the parameters that returns one.
        Defaults to [`eqopt.groups.layer_blocks`][], which knows the layers of Equinox
        and treats any other array as one block. An [`eqopt.MatrixDimensionNumbers`][]
        means a block for each output, or for each of its `output_blocks`, such as
        heads. An [`eqopt.groups.MatrixRules`][] says so for some arrays, and leaves the
        rest to the default. It is used only in `init`.
    - `weight_decay`: $\lambda$, a number, a 0-d array, a schedule, or an
        [`eqopt.AddDecayedWeights`][] for more options. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.
    - `mu_dtype`: the dtype in which $\mu$ is stored. Defaults to `None`, which means
        the dtype of each parameter, at least float32.
    - `nu_dtype`: the dtype in which $\nu$ is stored. Defaults to `None`, which means
        float32, or the precision of the parameter if that is higher: there are few
        blocks.

    **When to use it:** instead of AdamW for transformers, if memory is short. It stores
    half as much, and its authors report the same loss with the same hyperparameters.
    Print `eqopt.groups.table(eqopt.groups.layer_blocks, model)` first: by default,
    arrays outside Equinox's layers are one block each, unless you set `block_axes`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zhang2025adammini,
            author = {Zhang, Yushun and Chen, Congliang and Li, Ziniu and Ding, Tian and
                      Wu, Chenwei and Kingma, Diederik P. and Ye, Yinyu and Luo,
                      Zhi-Quan and Sun, Ruoyu},
            title = {{A}dam-mini: Use Fewer Learning Rates To Gain More},
            booktitle = {International Conference on Learning Representations},
            year = {2025},
        }
        ```
    """

    learning_rate: ScalarOrSchedule
    b1: Unit = 0.9
    b2: Unit = 0.999
    eps: ZeroOrMore = 1e-8
    block_axes: Blocks = layer_blocks
    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    _parts = ScaleByAdamMini, AddDecayedWeights, ScaleByLearningRate
