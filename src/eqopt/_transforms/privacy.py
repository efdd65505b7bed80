"""Means of per-example gradients that reveal little about any single example."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax
from jaxtyping import Array, Float, Inexact, Int, PRNGKeyArray, UInt32

from .._arguments.checks import check_interval, check_needs
from .._core import AbstractTransformation, check_shapes
from .._errors import InputError
from .._platforms import compute_once
from .._trees.keys import key_data, next_key, split_like
from .._trees.leaves import align, flatten_updates, keystr
from .._trees.states import check_state
from .._types import (
    Key,
    Leaf,
    Params,
    Positive,
    PyTree,
    RealScalarLike,
    State,
    Updates,
    ZeroOrMore,
)
from ..microbatching._ghost.factors import clip_factors
from ..numerics._numerics import (
    abs_sq,
    as_float,
    at_least_float32,
    common_dtype,
    safe_sqrt,
    wide_dtype,
)


def per_example_global_norm_clip(
    grads: Updates, l2_norm_clip: RealScalarLike
) -> tuple[Updates, Int[Array, ""]]:
    r"""Clips the gradient of each example by its global norm, and adds them up.

    $$\sum_i g_i \cdot \min\left(1, \frac{C}{\|g_i\|_2}\right)$$

    **Arguments:**

    - `grads`: per-example gradients: a tree with arrays whose first axis is the axis of
        the examples, or `None`.
    - `l2_norm_clip`: $C \ge 0$.

    **Returns:**

    The sum, a tree of arrays without that axis, and the number of clipped examples, a
    0-d int32 array. The sum is in at least float32, so that noise is added before any
    rounding.

    **Raises:**

    A `ValueError` that names the key path if an array has no first axis, or another
    number of examples than the others; also if `l2_norm_clip` is negative or NaN.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{abadi2016deep,
            author = {Abadi, Martin and Chu, Andy and Goodfellow, Ian and McMahan, H.
                      Brendan and Mironov, Ilya and Talwar, Kunal and Zhang, Li},
            title = {Deep Learning with Differential Privacy},
            booktitle = {ACM SIGSAC Conference on Computer and Communications Security},
            year = {2016},
        }
        ```
    """
    check_interval("l2_norm_clip", l2_norm_clip, 0)
    leaves, treedef = flatten_updates(grads)
    batch = batch_size(grads)
    factors = factors_of(leaves, l2_norm_clip, batch)
    sums = [None if g is None else weighted_sum(factors, g) for g in leaves]
    return treedef.unflatten(sums), _number_clipped(factors)


def per_example_layer_norm_clip(
    grads: Updates, global_l2_norm_clip: RealScalarLike, uniform: bool = True
) -> tuple[Updates, PyTree[Int[Array, ""]]]:
    r"""Clips the gradient of each example by its norm in each leaf, and adds them up.

    $$\sum_i g_i \cdot \min\left(1, \frac{C_l}{\|g_i\|_2}\right) \quad
      \text{in the leaf } l, \qquad \sum_l C_l^2 = C^2.$$

    So the global norm of the contribution of an example is at most $C$.

    **Arguments:**

    - `grads`: per-example gradients: a tree with arrays whose first axis is the axis of
        the examples, or `None`.
    - `global_l2_norm_clip`: $C \ge 0$.
    - `uniform`: whether $C_l^2 = C^2 / L$, for $L$ leaves. Otherwise $C_l^2$ is
        proportional to the number of parameters in the leaf.

    **Returns:**

    The sum, a tree of arrays without the first axis in at least float32, and a tree
    with the same structure that has the number of clipped examples for each leaf, 0-d
    int32 arrays.

    **Raises:**

    A `ValueError` that names the key path if an array has no first axis, or another
    number of examples than the others; also if `global_l2_norm_clip` is negative or NaN.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{mcmahan2018learning,
            author = {McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang,
                      Li},
            title = {Learning Differentially Private Recurrent Language Models},
            booktitle = {International Conference on Learning Representations},
            year = {2018},
        }
        ```
    """
    check_interval("global_l2_norm_clip", global_l2_norm_clip, 0)
    leaves, treedef = flatten_updates(grads)
    batch = batch_size(grads)
    size_of = lambda g: 1 if uniform else math.prod(g.shape[1:])
    total = sum(size_of(g) for g in leaves if g is not None)
    sums, numbers = list(leaves), list(leaves)
    for i, g in enumerate(leaves):
        if g is not None:
            share = math.sqrt(size_of(g) / max(1, total))
            factors = factors_of([g], global_l2_norm_clip, batch, share)
            sums[i], numbers[i] = weighted_sum(factors, g), _number_clipped(factors)
    return treedef.unflatten(sums), treedef.unflatten(numbers)


def batch_size(grads, params=None, axes: tuple[int, ...] = (0,), hint="") -> int:
    """The number of examples in `grads`; raises a `ValueError` unless all leaves agree.

    `axes` are the axes of the examples; all other axes are the axes of the parameters.
    The number is 1 if there are no leaves. `hint` is added to the error for a wrong
    shape.
    """
    leaves, treedef = flatten_updates(grads)
    ps = leaves if params is None else align(treedef, params, "params", grads)
    first = None
    for i, (g, p) in enumerate(zip(leaves, ps, strict=True)):
        if g is None:
            continue
        is_known = params is not None and hasattr(p, "shape")
        size, shape = _split(g.shape, axes)
        first = first or (i, size)
        if size == 0 or size != first[1] or (is_known and shape != p.shape):
            where = "the first axis" if axes == (0,) else f"the axes {axes}"
            of_parameters = f", for parameters of shape {p.shape}" if is_known else ""
            path, n = keystr(grads, first[0]), first[1]
            others = f", and `{path}` has {n} examples" if i > first[0] else ""
            raise InputError(
                f"it takes per-example gradients, with the same examples along {where}, "
                f"but the array at `{keystr(grads, i)}` has shape {g.shape}"
                f"{of_parameters}{others}. {_HOW_TO}{hint}"
            )
    return 1 if first is None else first[1]


def _split(shape: tuple[int, ...], axes: tuple[int, ...]):
    """The size along `axes` (0 if these do not exist), and the sizes of other axes."""
    named = {axis % len(shape) for axis in axes if -len(shape) <= axis < len(shape)}
    if not axes or len(named) < len(axes):
        return 0, shape
    rest = tuple(n for i, n in enumerate(shape) if i not in named)
    return math.prod(shape[axis] for axis in named), rest


_HOW_TO = (
    "Compute them with `eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, "
    "0))(model, batch)`."
)


def factors_of(leaves: list[Any], clip: Any, batch: int, share: float = 1.0):
    """The factor for each example, for a norm of at most `share * clip`."""
    parts = [_squared_norms(g) for g in leaves if g is not None] or [jnp.zeros(batch)]
    dtype = common_dtype(*(part.dtype for part in parts))
    stacked = jnp.stack([part.astype(dtype) for part in parts])
    norms = safe_sqrt(jnp.sum(compute_once(stacked), 0))
    return clip_factors(norms, jnp.asarray(clip, dtype) * jnp.asarray(share, dtype))


@jax.jit
def _squared_norms(g: Inexact[Array, "batch *leaf"]) -> Float[Array, "batch"]:
    g = at_least_float32(g)
    return jnp.sum(abs_sq(g), tuple(range(1, g.ndim)))


@jax.jit
def weighted_sum(factors: Float[Array, "batch"], g: Inexact[Array, "batch *leaf"]):
    """The sum over the examples, at least float32."""
    dtype = wide_dtype(g.dtype)
    # A matrix product needs no temporary array, and is much faster on a CPU than a sum.
    # Accelerators must not round its factors: the norm must stay within the bound.
    highest = lax.Precision.HIGHEST
    return jnp.tensordot(factors.astype(dtype), g.astype(dtype), 1, precision=highest)


def _number_clipped(factors: Float[Array, "batch"]) -> Int[Array, ""]:
    return jnp.sum(factors < 1, dtype=jnp.int32)


class DifferentiallyPrivateAggregateState(eqx.Module):
    """`rng_key`: the bits of the key for the noise of the next step."""

    rng_key: UInt32[Array, "*key"]


class DifferentiallyPrivateAggregate(AbstractTransformation):
    r"""Clips the gradients of examples, adds noise, and takes their mean.

    $$u = \frac{1}{B} \left(
        \sum_i g_i \cdot \min\left(1, \frac{C}{\|g_i\|_2}\right)
        + \sigma C\, \xi \right), \qquad \xi \sim \mathcal N(0, I),$$

    where $g_i$ is the gradient of example $i$.

    If `clipped=True`, the updates must be the sum, which
    [`eqopt.microbatching.clipped_grad`][] computes in little more time and memory than
    a gradient. A mean, or a gradient that is not clipped, looks the same: it gives no
    privacy, and no error. Otherwise, they must be the $g_i$, with an additional first
    axis for the examples. It returns updates like the parameters, so put it first in a
    chain. Do not put it inside [`eqopt.MultiSteps`][] or another wrapper that
    accumulates gradients, which would add the gradients of different examples.
    [`eqopt.SkipStep`][], [`eqopt.ApplyIfFinite`][] or a rule on the norm around it
    decide by the gradients before the noise, and whether they skip a step reveals
    something about the data. Put them after it, where they see the noisy mean.

    Draw a new batch for each step, each example with the same probability $q$ (*Poisson
    sampling*), as accountants assume. The size of the batch is then random and reveals
    something about the data, so $B$ must be the expected size, $q$ times the number of
    all examples: pass it as `batch_size`. Pad batches to one size, with zero `weights`.

    Inside `jax.shard_map`, each shard of an array has its own noise, but not with
    `check_vma=False`. Then JAX does not say which arrays are divided, and each shard
    gets the same noise, which gives no privacy: call `step` outside the `shard_map`.

    For complex updates, the real and imaginary parts have noise of variance
    $\sigma^2 C^2$ each.

    !!! example

        ```python
        opt = eqopt.Chain(
            eqopt.DifferentiallyPrivateAggregate(
                1.0, 1.1, key=0, batch_size=256, clipped=True
            ),
            eqopt.Adam(1e-3),
        )
        grads, _ = clipped_grad(loss, 1.0, weights=is_real)(model, batch)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `l2_norm_clip`: $C \ge 0$, the largest global norm of the gradient of an example.
        With `clipped`, it is the most that an example contributes to the sum. If
        `clipped_grad` has `groups`, this is the root of the sum of the squares of their
        bounds, $C \sqrt K$ for $K$ groups with one bound $C$. If it has `weights`, it is
        the bound times the largest weight that an example can have.
    - `noise_multiplier`: $\sigma \ge 0$, the ratio of the noise to $C$. To compute the
        privacy guarantee, use a privacy accountant, which also needs to know how
        batches are drawn.
    - `key`: a random key, or a seed. Keep it secret: with the key, the noise can be
        subtracted.
    - `batch_size`: $B > 0$, the expected number of examples. Defaults to the number of
        gradients.
    - `clipped`: whether updates are the sum of clipped gradients, with norms of at most
        `l2_norm_clip`. This cannot be checked, and the privacy guarantee depends on it.
        It needs `batch_size`. Defaults to `False`.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, or if `clipped` is given
    without `batch_size`. In `update`, a `ValueError` that names the key path if updates
    have no axis for the examples, or if they have this axis with `clipped`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{abadi2016deep,
            author = {Abadi, Martin and Chu, Andy and Goodfellow, Ian and McMahan, H.
                      Brendan and Mironov, Ilya and Talwar, Kunal and Zhang, Li},
            title = {Deep Learning with Differential Privacy},
            booktitle = {ACM SIGSAC Conference on Computer and Communications Security},
            year = {2016},
        }
        ```
    """

    l2_norm_clip: ZeroOrMore
    noise_multiplier: ZeroOrMore
    key: Key
    batch_size: Positive | None = None
    clipped: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        is_met = self.batch_size is not None or not self.clipped
        fix = "Pass the expected number of examples, which sums do not have."
        check_needs("clipped=True", "batch_size", is_met, fix)

    @property
    def _takes_examples(self) -> bool:
        return not self.clipped

    def init(self, params: Params) -> DifferentiallyPrivateAggregateState:
        return DifferentiallyPrivateAggregateState(key_data(self.key))

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        sums, divisor = self._sums(updates, params)
        now, later = next_key(state.rng_key, self.key)
        leaves, treedef = flatten_updates(updates)
        keys = treedef.flatten_up_to(split_like(now, updates))
        stddev = self._stddev()
        divisor = jnp.asarray(divisor, float)
        means = [
            None if g is None else _noisy_mean(x, key, stddev, divisor).astype(g.dtype)
            for g, x, key in zip(leaves, sums, keys, strict=True)
        ]
        state = DifferentiallyPrivateAggregateState(later)
        return treedef.unflatten(means), state

    def _sums(self, updates, params) -> tuple[list, Any]:
        """The sums of clipped gradients, and the divisor for them."""
        leaves, _ = flatten_updates(updates)
        if self.clipped:
            if params is not None:
                check_shapes(updates, params, "params")
            return leaves, self.batch_size
        hint = " For the sum that `clipped_grad` returns, pass `clipped=True`."
        batch = batch_size(updates, params, hint=hint)
        factors = factors_of(leaves, self.l2_norm_clip, batch)
        sums = [None if g is None else weighted_sum(factors, g) for g in leaves]
        return sums, batch if self.batch_size is None else self.batch_size

    def _stddev(self) -> Any:
        sigma, bound = as_float(self.noise_multiplier), as_float(self.l2_norm_clip)
        # Without noise there may be no bound either.
        return jnp.where(jnp.asarray(sigma) == 0, 0.0, sigma * bound)


@jax.jit
def _noisy_mean(total, key: PRNGKeyArray, stddev, divisor) -> Leaf:
    # Noise is added before rounding: the rounded sum could reveal more than the sum.
    total = at_least_float32(total)
    noise = jr.normal(key, total.shape, total.dtype)
    if jnp.iscomplexobj(total):
        # Differs from Optax in: a complex normal number has a variance of 1/2 in each
        # part, which would be half of the noise that the privacy bound requires.
        noise = noise * jnp.sqrt(jnp.asarray(2, noise.real.dtype)).astype(noise.dtype)
    return (total + stddev.astype(total.dtype) * noise) / divisor.astype(total.dtype)
