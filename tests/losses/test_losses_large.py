"""In large arrays, minima and maxima of XLA ignore NaNs on a CPU, but no loss may."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .test_losses_laws import SUBJECTS, WHOLE, arrays, with_gradients


@pytest.mark.parametrize("subject", [x for x in SUBJECTS if x.batched], ids=str)
@pytest.mark.costly
def test_a_nan_in_a_large_batch_is_found(subject):
    """In the loss and the derivatives of its example, as in a small batch."""
    per_example = {k for k, v in subject.rest.items() if np.ndim(v) and k not in WHOLE}
    first, *others = arrays(subject)
    floats = [first.at[(0,) * first.ndim].set(jnp.nan), *others]
    found = []
    for copies in (1, 1024):
        repeated = lambda x, n=copies: np.concatenate([x, *(n - 1) * [_finite(x)]])
        rest = {
            k: repeated(v) if k in per_example else v for k, v in subject.rest.items()
        }
        fn = with_gradients(lambda *x, rest=rest: subject(*x, **rest), len(floats))
        value, slopes = jax.jit(fn)(*map(repeated, floats))
        found.append([np.isnan(x) for x in (value, *slopes)])
    for small, large in zip(*found, strict=True):
        np.testing.assert_array_equal(large[: len(small)], small)
        assert not large[len(small) :].any()


def _finite(x):
    return np.where(np.isnan(x), 0, x).astype(x.dtype)
