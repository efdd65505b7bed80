"""Wrong arguments: each message names the function, the argument, and the way out."""

import re

import jax.numpy as jnp
import pytest

from eqopt.linear_algebra import matrix_inverse_pth_root, nnls, power_iteration


I2, ONES = jnp.eye(2), jnp.ones(2)
WIDE = jnp.ones((2, 3))


WRONG = [
    (lambda: power_iteration(WIDE), ["`matrix`", "(2, 3)"]),
    (lambda: power_iteration(jnp.ones((2, 2), int)), ["`matrix`", "int32"]),
    (lambda: power_iteration(I2, v0=jnp.ones(2, int)), ["`v0`", "floating", "[1, 1]"]),
    (lambda: power_iteration(lambda v: v, v0=[1]), ["`v0`", "floating", "[1]"]),
    (lambda: power_iteration(lambda v: v @ v, v0=ONES), ["`matrix(v0)`", "()", "(2,)"]),
    (
        lambda: power_iteration(
            lambda v: {"a": v["a"].astype(complex)}, v0={"a": ONES}
        ),
        ["`v0`", "complex", "`matrix", "['a']", "complex64"],
    ),
    (lambda: power_iteration(I2, error_tolerance=-1.0), ["`error_tolerance`", "-1"]),
    (lambda: matrix_inverse_pth_root(I2.astype(complex), 2), ["`matrix`", "complex64"]),
    (lambda: matrix_inverse_pth_root(I2, 0), ["`p`", "at least 1", "0"]),
    (lambda: matrix_inverse_pth_root(I2, 2, ridge_epsilon=-1.0), ["`ridge_eps", "-1"]),
    (lambda: nnls(I2, jnp.ones(3), 5), ["shapes", "`A` has [2, 2]", "`b` has [3]"]),
    (lambda: nnls(I2, ONES, -1), ["`iters`", "-1"]),
    (lambda: nnls(I2, ONES, 5, L=0), ["`L`", "(0, inf)", "0"]),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_message(call, words):
    with pytest.raises(ValueError, match=re.escape(words[0])) as info:
        call()
    for word in words:
        assert word in str(info.value)
