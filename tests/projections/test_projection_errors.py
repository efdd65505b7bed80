"""Wrong arguments: each message names the function, the argument, and the way out."""

import re

import jax
import jax.numpy as jnp
import pytest

from eqopt import projections


X = jnp.array([1.0, 2.0])
TREE = {"w": X}
NAN = float("nan")
SCALED = [
    projections.l1_ball,
    projections.l1_sphere,
    projections.l2_ball,
    projections.l2_sphere,
    projections.linf_ball,
    projections.simplex,
]

WRONG = [
    *((lambda fn=fn: fn(X, -1), [fn.__name__, "`scale`", "[0, inf)"]) for fn in SCALED),
    (lambda: projections.l2_ball(X, NAN), ["l2_ball", "`scale`", "nan"]),
    (lambda: projections.l2_ball(X, X), ["l2_ball", "`scale`", "0-d", "(2,)"]),
    # No arrays, or complex ones.
    *(
        (lambda fn=fn: fn([1.0, 2.0]), [fn.__name__, "`tree`", "jnp.asarray"])
        for fn in (projections.non_negative, projections.hypercube, *SCALED)
    ),
    (
        lambda: projections.simplex({"z": jnp.ones(2, complex)}),
        ["simplex", "`tree`", "complex", "['z']", "x.real"],
    ),
    # Bounds.
    (lambda: projections.box(X, 2, 1), ["box", "lower bound 2", "upper bound 1"]),
    (lambda: projections.box(TREE, 0, {"v": 1}), ["`upper`", "['v']", "params"]),
    (
        lambda: projections.box(TREE, jnp.ones(3), 2),
        ["box", "`lower`", "(3,)", "(2,)", "['w']"],
    ),
    (lambda: projections.hypercube(TREE, -1), ["hypercube", "upper bound -1", "['w']"]),
    # Normals.
    (lambda: projections.vector(X, jnp.ones(3)), ["vector", "`a`", "(3,)", "(2,)"]),
    (lambda: projections.vector(TREE, {"v": X}), ["vector", "`a`", "['v']", "`x`"]),
    (lambda: projections.hyperplane(X, X, NAN), ["hyperplane", "`b`", "nan"]),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_message(call, words):
    with pytest.raises(ValueError, match=re.escape(words[0])) as info:
        call()
    for word in words:
        assert word in str(info.value)


def test_traced_values_are_let_through():
    assert jax.jit(lambda s: projections.l2_ball(X, s))(-1.0).shape == (2,)
    assert jax.jit(lambda s: projections.box(X, s, 0.0))(1.0).shape == (2,)
    assert jax.jit(lambda x: projections.box(x, X, X + 1))(X).shape == (2,)
