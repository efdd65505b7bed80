"""Wrong arguments: each message names the function, the argument, and the way out."""

import re

import jax
import jax.numpy as jnp
import pytest

from eqopt.projections import (
    box,
    halfspace,
    hypercube,
    hyperplane,
    l1_ball,
    l1_sphere,
    l2_ball,
    l2_sphere,
    linf_ball,
    non_negative,
    simplex,
    vector,
)


X = jnp.array([1.0, 2.0])
TREE = {"w": X}
NAN, INF = float("nan"), float("inf")
SCALED = [l1_ball, l1_sphere, l2_ball, l2_sphere, linf_ball, simplex]

WRONG = [
    (case, error, [fn.__name__, "`scale`", *words])
    for fn in SCALED
    for case, error, words in (
        (lambda fn=fn: fn(X, -1), ValueError, ["at least 0", "-1"]),
        (lambda fn=fn: fn(X, jnp.float32(-1)), ValueError, ["at least 0", "-1"]),
        (lambda fn=fn: fn(X, NAN), ValueError, ["finite", "nan"]),
        (lambda fn=fn: fn(X, INF), ValueError, ["finite", "inf"]),
        (lambda fn=fn: fn(X, X), ValueError, ["0-d", "(2,)", "jax.vmap"]),
        (lambda fn=fn: fn(X, True), TypeError, ["True", "bool"]),
        (lambda fn=fn: fn(X, jnp.array(1j)), TypeError, ["complex64"]),
    )
] + [
    # No arrays, or complex ones.
    *(
        (
            lambda fn=fn, x=x: fn(x),
            ValueError,
            [fn.__name__, "`tree`", "jnp.asarray", word],
        )
        for fn in (non_negative, hypercube, *SCALED)
        for x, word in (([1.0, 2.0], "list"), (jnp.arange(3), "int32"), ({}, "dict"))
    ),
    (lambda: simplex(jnp.zeros((0, 2))), ValueError, ["simplex", "`tree`", "(0, 2)"]),
    (lambda: vector([1.0], [1.0]), ValueError, ["vector", "`x`", "list"]),
    (
        lambda: simplex({"z": jnp.ones(2, complex)}),
        TypeError,
        ["simplex", "`tree`", "complex64", "['z']", "x.real"],
    ),
    (lambda: box(jnp.ones(2, complex), 0, 1), TypeError, ["box", "complex64"]),
    # Bounds.
    (lambda: box(X, 2, 1), ValueError, ["box", "`lower`", "`upper`", "2", "1"]),
    (lambda: box(X, NAN, 1), ValueError, ["box", "`lower`", "nan"]),
    (lambda: box(TREE, {"w": X}, 1.5), ValueError, ["['w']", "[1. 2.]", "1.5"]),
    (lambda: box(TREE, 0, {"v": 1}), ValueError, ["`upper`", "['v']", "params"]),
    (lambda: box(TREE, jnp.ones(3), 2), ValueError, ["`lower`", "(3,)", "(2,)", "w"]),
    (lambda: box(TREE, jnp.ones((1, 2)), 2), ValueError, ["(1, 2)", "broadcast"]),
    (lambda: box(TREE, "a", 2), TypeError, ["box", "`lower`", "'a'", "['w']"]),
    (lambda: box(X, 0, jnp.ones(2, bool)), TypeError, ["`upper`", "bool"]),
    (lambda: hypercube(TREE, -1), ValueError, ["hypercube", "`scale`", "['w']", "-1"]),
    (lambda: hypercube(TREE, {"w": -X}), ValueError, ["`scale`", "negative"]),
    # Normals.
    (lambda: vector(X, jnp.ones(3)), ValueError, ["vector", "`a`", "(3,)", "(2,)"]),
    (lambda: vector(TREE, {"w": 1.0}), ValueError, ["`a`", "()", "['w']"]),
    (lambda: vector(TREE, {"v": X}), ValueError, ["vector", "`a`", "['v']", "`x`"]),
    (lambda: hyperplane(TREE, {"w": "a"}, 0), TypeError, ["hyperplane", "`a`", "'a'"]),
    (lambda: hyperplane(X, X, NAN), ValueError, ["hyperplane", "`b`", "nan"]),
    (lambda: halfspace(X, X, INF), ValueError, ["halfspace", "`b`", "inf"]),
    (lambda: halfspace(X, X, X), ValueError, ["halfspace", "`b`", "(2,)"]),
    (lambda: halfspace(X, X, True), TypeError, ["halfspace", "`b`", "True"]),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
def test_message(call, error, words):
    with pytest.raises(error, match=re.escape(words[0])) as info:
        call()
    for word in words:
        assert word in str(info.value)


def test_an_array_that_is_a_constant_of_a_trace():
    scale = jnp.asarray(1.0)
    assert jax.jit(lambda x: l2_ball(x, scale))(X).shape == (2,)


def test_traced_values_are_let_through():
    assert jax.jit(lambda s: l2_ball(X, s))(-1.0).shape == (2,)
    assert jax.jit(lambda s: box(X, s, 0.0))(1.0).shape == (2,)
    assert jax.jit(lambda x: box(x, X, X + 1))(X).shape == (2,)
