"""Means of per-example gradients that reveal little about any single example."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, UInt32

from .._core import AbstractTransformation
from .._errors import InputError
from .._trees.keys import key_data, next_key, split_like
from .._trees.leaves import align, flatten_updates, keystr
from .._trees.states import check_state
from .._types import Key, Leaf, Params, Positive, Scalar, State, Updates, ZeroOrMore
from ..numerics._numerics import as_float, at_least_float32
from .per_example import batch_size, factors_of, weighted_sum


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
        if self.clipped and self.batch_size is None:
            raise InputError(
                self,
                "with `clipped=True`, updates are the sum of the "
                "gradients of an unknown number of examples. Pass the expected number as "
                "`batch_size`.",
            )

    @property
    def _takes_examples(self) -> bool:
        return not self.clipped

    def init(self, params: Params) -> DifferentiallyPrivateAggregateState:
        return DifferentiallyPrivateAggregateState(key_data(self.key))

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, DifferentiallyPrivateAggregateState]:
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

    def _sums(self, updates: Updates, params: Params | None) -> tuple[list, Any]:
        """The sums of clipped gradients, and the divisor for them."""
        leaves, treedef = flatten_updates(updates)
        if self.clipped:
            ps = leaves if params is None else align(treedef, params, "params", updates)
            for i, (g, p) in enumerate(zip(leaves, ps, strict=True)):
                if g is not None and g.shape != getattr(p, "shape", g.shape):
                    raise InputError(
                        self,
                        "it takes the sum of clipped gradients, with `clipped=True`, but "
                        f"the array at `{keystr(updates, i)}` has shape {g.shape}, for "
                        f"parameters of shape {p.shape}. For per-example gradients, omit "
                        "`clipped`.",
                    )
            return leaves, self.batch_size
        batch = batch_size(type(self).__name__, updates, params, hint=_HINT)
        factors = factors_of(leaves, self.l2_norm_clip, batch)
        sums = [None if g is None else weighted_sum(factors, g) for g in leaves]
        return sums, batch if self.batch_size is None else self.batch_size

    def _stddev(self) -> Any:
        sigma, bound = as_float(self.noise_multiplier), as_float(self.l2_norm_clip)
        # Without noise there may be no bound either.
        return jnp.where(jnp.asarray(sigma) == 0, 0.0, sigma * bound)


_HINT = " For the sum that `clipped_grad` returns, pass `clipped=True`."


@jax.jit
def _noisy_mean(
    total: Leaf, key: PRNGKeyArray, stddev: Scalar, divisor: Scalar
) -> Leaf:
    # Noise is added before rounding: the rounded sum could reveal more than the sum.
    total = at_least_float32(total)
    noise = jr.normal(key, total.shape, total.dtype)
    if jnp.iscomplexobj(total):
        # Differs from Optax in: a complex normal number has a variance of 1/2 in each
        # part, which would be half of the noise that the privacy bound requires.
        noise = noise * jnp.sqrt(jnp.asarray(2, noise.real.dtype)).astype(noise.dtype)
    return (total + stddev.astype(total.dtype) * noise) / divisor.astype(total.dtype)
