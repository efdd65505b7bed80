"""Gaussian noise for exploration; for noise for privacy, see `privacy.py`."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from .._core import AbstractLeafwise, Leafwise, equation
from .._trees.keys import key_data, next_key, split_like
from .._types import Hyperparameter, Key, Leaf, Scalar, ZeroOrMore
from ..numerics._numerics import as_float, safe_increment, safe_sqrt


class AddNoiseState(eqx.Module):
    """The count and the random key of the noise.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `rng_key`: the bits of the key for the next step.
    """

    count: Int[Array, ""]
    rng_key: UInt32[Array, "*key"]


@equation
def add_noise(g: Leaf, key: PRNGKeyArray, *, stddev: Scalar) -> Leaf:
    return g + stddev * jr.normal(key, g.shape, g.dtype)


class AddNoise(AbstractLeafwise):
    r"""Adds Gaussian noise with a variance that decays from step to step.

    $$u_t = g_t + \xi_t, \qquad
      \xi_t \sim \mathcal N\!\left(0, \frac{\sigma^2}{t^\gamma}\right)$$

    for $t = 1, 2, …$

    Each element has its own noise, in every step. For complex updates, $\xi$ is
    circular and the variance refers to $|\xi|$.

    This also holds for the shards of an array inside `jax.shard_map`, but not with
    `check_vma=False`. Then JAX does not say which arrays are divided, and each shard
    gets the same noise: call `step` outside the `shard_map`.

    **Arguments:**

    - `eta`: $\sigma^2 \ge 0$, the variance in the first step.
    - `gamma`: $\gamma$, a number or a 0-d array: how fast the variance decays. The
        paper uses 0.55.
    - `key`: a seed or a random key. Equal keys produce equal noise.

    **Raises:**

    A `ValueError` if `eta` is negative.

    ??? cite "Reference"

        ```bibtex
        @article{neelakantan2015adding,
            author = {Neelakantan, Arvind and Vilnis, Luke and Le, Quoc V. and Sutskever,
                      Ilya and Kaiser, Lukasz and Kurach, Karol and Martens, James},
            title = {Adding Gradient Noise Improves Learning for Very Deep Networks},
            journal = {arXiv:1511.06807},
            year = {2015},
        }
        ```
    """

    eta: ZeroOrMore
    gamma: Hyperparameter
    key: Key

    def init(self, params) -> AddNoiseState:
        return AddNoiseState(jnp.zeros((), jnp.int32), key_data(self.key))

    def leafwise(self, state: AddNoiseState, params=None, **extra):
        count = safe_increment(state.count)
        now, later = next_key(state.rng_key, self.key)
        return Leafwise(
            add_noise,
            AddNoiseState(count, later),
            {"stddev": self._stddev(count)},
            reads={"key": lambda updates: split_like(now, updates)},
        )

    def _stddev(self, count: Int[Array, ""]) -> Scalar:
        t, eta, gamma = (
            jnp.asarray(as_float(x), float) for x in (count, self.eta, self.gamma)
        )
        return safe_sqrt(eta / t**gamma)
