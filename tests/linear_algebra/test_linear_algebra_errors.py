"""Wrong arguments: each message names the function, the argument, and the way out."""

import re

import jax.numpy as jnp
import pytest

from eqopt.linear_algebra import matrix_inverse_pth_root, nnls, power_iteration


I2, ONES = jnp.eye(2), jnp.ones(2)
WIDE = jnp.ones((2, 3))
NAN = float("nan")


def _twice(v):
    return {"a": v["a"], "b": v["a"]}


WRONG = [
    (lambda: power_iteration(WIDE), ValueError, ["`matrix`", "square", "(2, 3)"]),
    (lambda: power_iteration(jnp.ones((0, 0))), ValueError, ["`matrix`", "(0, 0)"]),
    (lambda: power_iteration(jnp.ones(3)), ValueError, ["`matrix`", "2 axes", "(3,)"]),
    (lambda: power_iteration(jnp.ones((2, 2, 2))), ValueError, ["jax.vmap"]),
    (lambda: power_iteration([[1.0]]), TypeError, ["`matrix`", "list", "jnp.asarray"]),
    (lambda: power_iteration(jnp.ones((2, 2), int)), TypeError, ["int32", "astype"]),
    (lambda: power_iteration(I2, v0=jnp.ones(3)), ValueError, ["`v0`", "(2,)", "(3,)"]),
    (lambda: power_iteration(I2, v0=jnp.ones(2, int)), TypeError, ["`v0`", "int32"]),
    (lambda: power_iteration(lambda v: v), ValueError, ["`v0`", "function", "None"]),
    (lambda: power_iteration(lambda v: v, v0=[1]), ValueError, ["`v0`", "[1]"]),
    (
        lambda: power_iteration(_twice, v0={"a": ONES}),
        ValueError,
        ["`matrix`", "`v0`", "['b']"],
    ),
    (
        lambda: power_iteration(lambda v: WIDE.T @ v, v0=ONES),
        ValueError,
        ["`matrix`", "`v0`", "(3,)", "(2,)"],
    ),
    (
        lambda: power_iteration(
            lambda v: {"a": v["a"].astype(complex)}, v0={"a": ONES}
        ),
        TypeError,
        ["`v0`", "complex", "`matrix`", "['a']", "complex64"],
    ),
    (
        lambda: power_iteration(I2, error_tolerance=-1.0),
        ValueError,
        ["`error_tolerance`", "[0, inf)", "-1"],
    ),
    (lambda: matrix_inverse_pth_root(WIDE, 2), ValueError, ["`matrix`", "(2, 3)"]),
    (
        lambda: matrix_inverse_pth_root(I2.astype(complex), 2),
        TypeError,
        ["real", "complex64"],
    ),
    (lambda: matrix_inverse_pth_root(I2, 0), ValueError, ["`p`", "at least 1", "0"]),
    (lambda: matrix_inverse_pth_root(I2, 2.0), TypeError, ["p", "int", "2.0"]),
    (
        lambda: matrix_inverse_pth_root(I2, 2, ridge_epsilon=-1.0),
        ValueError,
        ["`ridge_epsilon`", "-1.0"],
    ),
    (
        lambda: matrix_inverse_pth_root(I2, 2, error_tolerance=NAN),
        ValueError,
        ["`error_tolerance`", "nan"],
    ),
    (
        lambda: matrix_inverse_pth_root(I2, 2, ridge_epsilon=ONES),
        ValueError,
        ["`ridge_epsilon`", "0-d", "(2,)"],
    ),
    (lambda: nnls(ONES, ONES, 5), ValueError, ["`A`", "2 axes", "(2,)"]),
    (lambda: nnls(I2, jnp.ones((2, 1, 1)), 5), ValueError, ["`b`", "1 or 2 axes"]),
    (lambda: nnls(I2, jnp.ones(3), 5), ValueError, ["`b`", "`A`", "(2, 2)", "(3,)"]),
    (lambda: nnls(I2.astype(complex), ONES, 5), TypeError, ["`A`", "complex64"]),
    (lambda: nnls(I2, ONES.astype(complex), 5), TypeError, ["`b`", "complex64"]),
    (lambda: nnls(I2, jnp.ones(2, int), 5), TypeError, ["`b`", "int32"]),
    (lambda: nnls(I2, ONES, -1), ValueError, ["`iters`", "-1"]),
    (lambda: nnls(I2, ONES, 1.5), TypeError, ["iters", "int", "1.5"]),
    (lambda: nnls(I2, ONES, 5, L=0), ValueError, ["`L`", "(0, inf)", "0"]),
    (lambda: nnls(I2, ONES, 5, L=ONES), ValueError, ["`L`", "(2,)"]),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
def test_message(call, error, words):
    with pytest.raises(error, match=re.escape(words[0])) as info:
        call()
    for word in words:
        assert word in str(info.value)
