"""In large arrays, minima and maxima of XLA ignore NaNs on a CPU, but no loss may."""

import jax
import numpy as np
import pytest

from .test_losses_laws import SUBJECTS, WHOLE, arrays, with_gradients


# With `axis=0`, the first axis has no examples.
REPEATED = {x.name: x for x in reversed(SUBJECTS) if x.rest.get("axis") != 0}


@pytest.mark.parametrize("subject", REPEATED.values(), ids=str)
@pytest.mark.costly
def test_a_nan_in_a_large_batch_is_found(subject):
    """In the loss and the derivatives of its example, as in a small batch."""
    floats = arrays(subject)
    per_example = {k for k, v in subject.rest.items() if np.ndim(v) and k not in WHOLE}

    def nans(copies):
        """Where values and derivatives are NaN, if the first element of a float is."""
        repeated = lambda x: np.concatenate(copies * [x])
        rest = {
            k: repeated(v) if k in per_example else v for k, v in subject.rest.items()
        }
        fn = jax.jit(with_gradients(lambda *x: subject(*x, **rest), len(floats)))
        for place, x in enumerate(floats):
            given = [repeated(x) for x in floats]
            given[place][(0,) * x.ndim] = np.nan
            value, slopes = fn(*given)
            yield [np.isnan(x) for x in (value, *slopes)]

    for of_small, of_large in zip(nans(1), nans(1024), strict=True):
        for small, large in zip(of_small, of_large, strict=True):
            if subject.batched:
                np.testing.assert_array_equal(large[: len(small)], small)
                assert not large[len(small) :].any()
            else:
                assert large.any() == small.any()
