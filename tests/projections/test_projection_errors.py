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
NAN = float("nan")
SCALED = [l1_ball, l1_sphere, l2_ball, l2_sphere, linf_ball, simplex]

WRONG = [
    (case, [fn.__name__, "`scale`", *words])
    for fn in SCALED
    for case, words in (
        (lambda fn=fn: fn(X, -1), ["[0, inf)", "-1"]),
        (lambda fn=fn: fn(X, NAN), ["nan"]),
        (lambda fn=fn: fn(X, X), ["0-d", "(2,)", "jax.vmap"]),
    )
] + [
    # No arrays, or complex ones.
    *(
        (lambda fn=fn: fn([1.0, 2.0]), [fn.__name__, "`tree`", "jnp.asarray"])
        for fn in (non_negative, hypercube, *SCALED)
    ),
    (lambda: vector([1.0], [1.0]), ["vector", "`x`", "[1.0]"]),
    (
        lambda: simplex({"z": jnp.ones(2, complex)}),
        ["simplex", "`tree`", "complex64", "['z']", "x.real"],
    ),
    # Bounds.
    (lambda: box(X, 2, 1), ["box", "lower bound 2", "upper bound 1"]),
    (lambda: box(X, NAN, 1), ["box", "lower bound nan"]),
    (lambda: box(TREE, 0, {"v": 1}), ["`upper`", "['v']", "params"]),
    (lambda: box(TREE, jnp.ones(3), 2), ["box", "`lower`", "(3,)", "(2,)", "['w']"]),
    (lambda: box(TREE, jnp.ones((1, 2)), 2), ["(1, 2)", "broadcast"]),
    (lambda: hypercube(TREE, -1), ["hypercube", "upper bound -1", "['w']"]),
    # Normals.
    (lambda: vector(X, jnp.ones(3)), ["vector", "`a`", "(3,)", "(2,)"]),
    (lambda: vector(TREE, {"v": X}), ["vector", "`a`", "['v']", "`x`"]),
    (lambda: hyperplane(X, X, NAN), ["hyperplane", "`b`", "nan"]),
    (lambda: halfspace(X, X, X), ["halfspace", "`b`", "(2,)"]),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_message(call, words):
    with pytest.raises(ValueError, match=re.escape(words[0])) as info:
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
