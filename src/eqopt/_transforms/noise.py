"""Gaussian noise for exploration, and correlated noise for privacy.

For independent noise for privacy, see `privacy.py`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Inexact, Int, PRNGKeyArray, UInt32

from .._arguments.checks import check_integer, check_number_in
from .._core import AbstractLeafwise, Leafwise, equation
from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.keys import key_data, next_key, split_like
from .._trees.leaves import map_parameters
from .._types import (
    Hyperparameter,
    Interval,
    Key,
    Leaf,
    Params,
    PerLeaf,
    Scalar,
    ZeroOrMore,
)
from ..numerics._numerics import as_float, safe_increment, safe_sqrt, wide_dtype
from ..tree._like import wide_zeros_like


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

    def init(self, params: Params) -> AddNoiseState:
        return AddNoiseState(jnp.zeros((), jnp.int32), key_data(self.key))

    def leafwise(
        self, state: AddNoiseState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        count = safe_increment(state.count)
        now, later = next_key(state.rng_key, self.key)
        state = AddNoiseState(count, later)
        shared = {"stddev": self._stddev(count)}
        reads = {"key": lambda updates: split_like(now, updates)}
        return Leafwise(add_noise, state, shared, reads)

    def _stddev(self, count: Int[Array, ""]) -> Scalar:
        numbers = count, self.eta, self.gamma
        t, eta, gamma = (jnp.asarray(as_float(x), float) for x in numbers)
        return safe_sqrt(eta / t**gamma)


def square_root_coefficients(bands: int, inverse: bool = False) -> tuple[float, ...]:
    r"""Computes the first coefficients of the square root of prefix sums.

    $$(1 - x)^{-1/2} = 1 + \frac{x}{2} + \frac{3 x^2}{8} + \frac{5 x^3}{16} + \dots$$

    They are close to the best coefficients for [`eqopt.AddCorrelatedNoise`][].

    **Arguments:**

    - `bands`: how many, an integer of at least 1. A single one means independent noise.
    - `inverse`: whether to return the coefficients of $(1 - x)^{1/2} =
        1 - \frac{x}{2} - \frac{x^2}{8} - \dots$, for noise with `inverse=True`.
        Defaults to `False`.

    **Returns:**

    A tuple of floats.

    **Raises:**

    A `ValueError` if `bands` is less than 1 or not an integer.
    """
    found = [1.0]
    for k in range(1, check_integer("bands", bands, 1)):
        found.append(found[-1] * (2 * k - (3 if inverse else 1)) / (2 * k))
    return tuple(found)


def correlated_noise_sensitivity(
    coefficients: Sequence[Any] | Array | np.ndarray,
    steps: int,
    separation: int,
    participations: int | None = None,
    inverse: bool = False,
) -> float:
    r"""Computes how far one example can move what correlated noise hides.

    $$\max_{j_1, j_2, \dots} \Big\| \sum_i C_{:, j_i} \Big\|_2$$

    for the steps $j_i$ in which the example takes part: see
    [`eqopt.AddCorrelatedNoise`][], whose `stddev` it multiplies. It is exact if there is
    one such step, if they are at least as far apart as there are coefficients, or if
    the coefficients of $C$ are not negative and never increase, as in
    [`eqopt.square_root_coefficients`][]. Otherwise, it is an upper bound.

    **Arguments:**

    - `coefficients`, `inverse`: as in [`eqopt.AddCorrelatedNoise`][].
    - `steps`: the number of steps of the whole run, at least 1.
    - `separation`: the least distance between two steps with the same example, at least
        1, which the order of batches must guarantee. If the order is fixed, it is the
        number of batches per epoch. If each example takes part once, it is `steps`.
    - `participations`: in how many steps an example takes part at most. Defaults to
        `None`: as many as `steps` and `separation` allow.

    **Returns:**

    The sensitivity for contributions with norms of at most 1, a float.

    **Raises:**

    A `ValueError` if an argument is out of its range.
    """
    numbers = _as_numbers(coefficients)
    n = check_integer("steps", steps, 1)
    s = check_integer("separation", separation, 1)
    k = -(-n // s)
    if participations is not None:
        k = min(k, check_integer("participations", participations, 1))
    given = np.array(numbers, float)
    column = np.abs(_inverted(given, n) if inverse else given)
    if k > 1 and s < len(column):
        column = np.maximum.accumulate(column[::-1])[::-1]
    total = np.zeros(n)
    for start in range(0, k * s, s):
        total[start : start + len(column)] += column[: n - start]
    return float(np.linalg.norm(total))


def _inverted(d: np.ndarray, size: int) -> np.ndarray:
    """The first coefficients of the power series $1 / d(x)$."""
    c = np.zeros(size)
    c[0] = 1 / d[0]
    for k in range(1, size):
        last = c[max(0, k - len(d) + 1) : k][::-1]
        c[k] = -(d[1 : len(last) + 1] @ last) / d[0]
    return c


def _as_numbers(given: Any) -> tuple[Any, ...]:
    """The coefficients in a tuple; raises an error unless they are such numbers."""
    if isinstance(given, jax.Array | np.ndarray) and not is_traced(given):
        given = given.tolist()
    numbers = tuple(given) if isinstance(given, Iterable) else ()
    finite = Interval(includes_low=False, includes_high=False)
    for x in numbers:
        check_number_in("coefficients", x, finite)
    if not numbers or (not is_traced(numbers[0]) and numbers[0] == 0):
        expected = "one or more numbers, and the first one must not be 0"
        raise InputError(f"`coefficients` must be {expected}, but is {given!r}.")
    return tuple(x.item() if isinstance(x, np.generic) else x for x in numbers)


class AddCorrelatedNoiseState(eqx.Module):
    """The noise of the last steps, which must stay as secret as the key.

    **Attributes:**

    - `rng_key`: the bits of the key for the next step.
    - `past`: the last $x$ of each parameter, or with `inverse` the last $z$, in at least
        float32, along a new first axis with one entry less than there are coefficients.
    - `place`: the entry that the next step of this parameter overwrites, a 0-d int32
        array for each parameter.
    """

    rng_key: UInt32[Array, "*key"]
    past: PerLeaf
    place: PerLeaf


@equation
def correlated_noise(
    g: Leaf,
    past: Inexact[Array, "bands *leaf"],
    place: Int[Array, ""],
    key: PRNGKeyArray,
    coefficients: Float[Array, " _"],
    *,
    stddev: Scalar,
    inverse: bool,
) -> tuple[Leaf, Inexact[Array, "bands *leaf"], Int[Array, ""]]:
    first, rest = coefficients[0], coefficients[1:]
    bands = len(past)
    if len(rest) != bands:
        raise InputError(f"The state was made for {bands + 1} coefficients.")
    z = jr.normal(key, g.shape, g.dtype)
    if jnp.iscomplexobj(z):
        # As in `DifferentiallyPrivateAggregate`: a variance of 1 for each part.
        z = z * jnp.sqrt(jnp.asarray(2, z.real.dtype)).astype(z.dtype)
    # The entry of the step before has the second coefficient, and so on.
    weights = rest[(place - 1 - jnp.arange(bands)) % bands]
    earlier = jnp.sum(weights.reshape(-1, *[1] * g.ndim) * past, 0)
    x = first * z + earlier if inverse else (z - earlier) / first
    kept = z if inverse else x
    past = lax.dynamic_update_index_in_dim(past.astype(kept.dtype), kept, place, 0)
    return g + stddev * x, past, (place + 1) % bands


class AddCorrelatedNoise(AbstractLeafwise):
    r"""Adds noise that later noise takes back in part, for privacy with less error.

    $$u_t = g_t + \sigma x_t, \qquad \sum_{k=0}^{b-1} c_k\, x_{t-k} = z_t, \qquad
      z_t \sim \mathcal N(0, I),$$

    or with `inverse` $x_t = \sum_{k=0}^{b-1} c_k\, z_{t-k}$.

    The error of a parameter is the sum of all noise so far. If $x_t$ takes back some of
    it, the sums have less noise than with independent noise, for the same privacy. As
    matrices, the noise is $C^{-1} z$, where the lower triangular $C$ has the diagonals
    $c_k$; with `inverse`, $C^{-1}$ has them.

    Put it after clipping and summation, and before the mean and the optimizer. With a
    bound $B$ on the norm of each gradient in the sum, the
    [`eqopt.correlated_noise_sensitivity`][] $s$, and the noise multiplier $m$ of one
    Gaussian mechanism for the *whole* run, which an accountant computes, use
    $\sigma = m B s$. See [Training privately](../training_privately.md#correlated-noise).

    The state has $b - 1$ copies of the parameters in at least float32, also inside
    [`eqopt.StoreState`][]. Save it with the model, and keep it as secret as the key. If
    training went on without it, the same noise would come again and could be subtracted.
    Where an update is `None`, the noise pauses: `steps` and `separation` then count only
    steps with an update.

    Inside `jax.shard_map`, each shard of an array has its own noise, but not with
    `check_vma=False`: call `step` outside it. The real and imaginary parts of a complex
    $z$ have a variance of 1 each.

    !!! example

        ```python
        bands = eqopt.square_root_coefficients(4)
        sensitivity = eqopt.correlated_noise_sensitivity(bands, steps=160, separation=16)
        opt = eqopt.Chain(
            eqopt.AddCorrelatedNoise(1.1 * clip * sensitivity, bands, key=0),
            eqopt.Scale(1 / batch_size),
            eqopt.SGD(0.1, momentum=0.9),
        )
        state = opt.init(model)
        grads, _ = eqopt.microbatching.clipped_grad(loss, clip)(model, batch)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `stddev`: $\sigma \ge 0$.
    - `coefficients`: $c_0 \ne 0, c_1, \dots, c_{b-1}$, a sequence of numbers or an array:
        from [`eqopt.square_root_coefficients`][], or from a library that optimizes them.
    - `key`: a random key, or a seed. Keep it secret: with the key, the noise can be
        subtracted.
    - `inverse`: whether $C^{-1}$ has the coefficients, not $C$. With few of them, the
        error is then smaller if examples take part once, and larger if they take part
        several times, at least $b$ steps apart. Defaults to `False`.

    **Raises:**

    A `ValueError` if `stddev` is negative, if a coefficient is not finite, if the first
    one is 0 or if there is none. In `update`, a `ValueError` if the state was made for
    another number of coefficients.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{choquettechoo2023amplified,
            author = {Choquette-Choo, Christopher A. and Ganesh, Arun and McKenna, Ryan
                      and McMahan, H. Brendan and Rush, Keith and Thakurta, Abhradeep and
                      Xu, Zheng},
            title = {(Amplified) Banded Matrix Factorization: A Unified Approach to
                     Private Training},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2023},
        }

        @inproceedings{kalinin2026back,
            author = {Kalinin, Nikita P. and McKenna, Ryan and Upadhyay, Jalaj and
                      Lampert, Christoph H.},
            title = {Back to Square Roots: An Optimal Bound on the Matrix Factorization
                     Error for Multi-Epoch Differentially Private {SGD}},
            booktitle = {International Conference on Learning Representations},
            year = {2026},
        }
        ```
    """

    stddev: ZeroOrMore
    coefficients: Sequence[Any] | Array | np.ndarray = eqx.field(converter=_as_numbers)
    key: Key
    inverse: bool = False

    def init(self, params: Params) -> AddCorrelatedNoiseState:
        # At least one entry, so that a single coefficient is no special case.
        bands = max(1, len(self.coefficients) - 1)
        # A stack of arrays that are all sharded like the parameter.
        stacked = lambda x: jnp.stack([x] * bands)
        return AddCorrelatedNoiseState(
            key_data(self.key),
            map_parameters(stacked, wide_zeros_like(params)),
            map_parameters(lambda _: jnp.zeros((), jnp.int32), params),
        )

    def leafwise(
        self, state: AddCorrelatedNoiseState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        now, later = next_key(state.rng_key, self.key)
        given = [jnp.asarray(as_float(x), float) for x in self.coefficients]
        vector = jnp.stack([*given, *[jnp.zeros_like(given[0])] * (len(given) == 1)])
        # In the precision of the noise, or with x64, all noise would be float64.
        vector_for = lambda g: vector.astype(jnp.finfo(wide_dtype(g.dtype)).dtype)
        state = AddCorrelatedNoiseState(later, state.past, state.place)
        reads = {
            "key": lambda updates: split_like(now, updates),
            "coefficients": lambda updates: map_parameters(vector_for, updates),
        }
        return Leafwise(correlated_noise, state, reads=reads)
