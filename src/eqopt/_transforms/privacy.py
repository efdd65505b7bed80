"""Means of per-example gradients that tell little about any one example."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, PRNGKeyArray, UInt32

from .._checks import check_range
from .._leaves import flatten_updates
from .._random import key_data, next_key, split_like
from .._threefry import normal
from .._transformation import AbstractTransformation, check_state
from .._types import Hyperparameter, Key, Params, State, Updates
from .per_example import batch_size, clip_factors, weighted_sum


class DifferentiallyPrivateAggregateState(eqx.Module):
    """`rng_key`: the bits of the key for the noise of the next step."""

    rng_key: UInt32[Array, "*key"]


class DifferentiallyPrivateAggregate(AbstractTransformation):
    r"""Clips per-example gradients, adds noise, and takes their mean.

    $$u = \frac{1}{B} \left(
        \sum_{i=1}^{B} g_i \cdot \min\left(1, \frac{C}{\|g_i\|_2}\right)
        + \sigma C\, \xi \right), \qquad \xi \sim \mathcal N(0, I).$$

    Unlike all else in a chain, it takes updates with one more axis than the parameters,
    the first one, along which are the examples. It gives back updates like the
    parameters, so it stands first in a chain. Do not put it inside of
    [`eqopt.MultiSteps`][] or another wrapper that adds up gradients, which would add up
    those of different examples. For large batches there is
    [`eqopt.microbatching.micro_grad`][].

    Real and imaginary parts of complex updates have noise of variance $\sigma^2 C^2$
    each.

    !!! example

        ```python
        per_example = eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, 0))
        opt = eqopt.Chain(
            eqopt.DifferentiallyPrivateAggregate(1.0, 1.1, key=0), eqopt.Adam(1e-3)
        )
        model, state = opt.step(per_example(model, batch), state, model)
        ```

    **Arguments:**

    - `l2_norm_clip`: $C \ge 0$, the largest global norm of the gradient of an example.
    - `noise_multiplier`: $\sigma \ge 0$, the ratio of the noise to $C$. What privacy it
        gives is for an accountant to say, who also knows how batches are drawn.
    - `key`: a random key, or a seed. Who knows it can subtract the noise.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range; in `update`, one that names
    the key path, if updates have no axis for the examples.

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

    l2_norm_clip: Hyperparameter
    noise_multiplier: Hyperparameter
    key: Key

    def __check_init__(self):
        for name in ("l2_norm_clip", "noise_multiplier"):
            check_range(self, name, 0)

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
        batch = batch_size(type(self).__name__, updates, params)
        now, later = next_key(state.rng_key, self.key)
        leaves, treedef = flatten_updates(updates)
        keys = treedef.flatten_up_to(split_like(now, updates))
        factors = clip_factors(leaves, self.l2_norm_clip, batch)
        stddev = self._stddev()
        means = [
            None if g is None else _noisy_mean(factors, g, key, stddev)
            for g, key in zip(leaves, keys, strict=True)
        ]
        state = DifferentiallyPrivateAggregateState(later)
        return treedef.unflatten(means), state

    def _stddev(self) -> Any:
        with jax.numpy_dtype_promotion("standard"):  # of hyperparameters of any dtype
            own: Any = self
            stddev = own.noise_multiplier * own.l2_norm_clip
        # Without noise there may be no bound either.
        return jnp.where(jnp.asarray(self.noise_multiplier) == 0, 0, stddev)


@jax.jit
def _noisy_mean(
    factors: Float[Array, "batch"],
    g: Inexact[Array, "batch *leaf"],
    key: PRNGKeyArray,
    stddev: Float[Array, ""],
) -> Inexact[Array, "*leaf"]:
    # Noise comes before rounding: that of the sum could tell more than the sum does.
    total = weighted_sum(factors, g)
    noise = normal(key, total.shape, total.dtype)
    if jnp.iscomplexobj(total):
        # Differs from Optax in: a complex normal number has a variance of 1/2 in each
        # part, which would be half of the noise that the bound asks for.
        noise = noise * jnp.sqrt(jnp.asarray(2, noise.real.dtype)).astype(noise.dtype)
    return ((total + stddev.astype(total.dtype) * noise) / g.shape[0]).astype(g.dtype)
