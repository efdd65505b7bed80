"""Distributions of noise."""

from typing import Any

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, DTypeLike, Float

from .._arguments.construction import Module


class Normal(Module):
    r"""The standard normal distribution, with density $\propto e^{-z^2 / 2}$.

    Its mean is 0, so the perturbation does not change a linear function.
    """

    def sample(
        self,
        key: Any,
        sample_shape: tuple[int, ...] = (),
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "..."]:
        """Independent samples, an array of shape `sample_shape`."""
        return jr.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The logarithm of the density at each of `inputs`, up to a constant."""
        return -inputs * inputs / 2


class Gumbel(Module):
    r"""The standard Gumbel distribution, with density $e^{-z - e^{-z}}$.

    With this noise, the perturbed one-hot argmax of $x$ is the softmax of $x / \sigma$.
    Its mean is not 0 but Euler's constant, 0.577.
    """

    def sample(
        self,
        key: Any,
        sample_shape: tuple[int, ...] = (),
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "..."]:
        """Independent samples, an array of shape `sample_shape`."""
        return jr.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The logarithm of the density at each of `inputs`."""
        return -inputs - jnp.exp(-inputs)
