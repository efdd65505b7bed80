"""Wrong arguments: each message names the function, the place, and the way out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt

from .test_tree_laws import BINARY


tree = eqopt.tree
X = {"x": jnp.ones(2)}
Z = {"x": jnp.ones(2, complex)}
STRICT = {
    "allclose": tree.allclose,
    "periodic_update": lambda x, y: eqopt.periodic_update(y, x, 0, 2),
    "where": lambda x, y: tree.where(True, x, y),
}
PAIRED = {
    **BINARY,
    **STRICT,
    "vdot": tree.vdot,
    "incremental_update": lambda x, y: eqopt.incremental_update(y, x, 0.5),
    "update_infinity_moment": lambda x, y: tree.update_infinity_moment(y, x, 0.5, 0),
    "update_moment": lambda x, y: tree.update_moment(y, x, 0.5, 2),
}
MISFIT = ["['x']", "float32[2]", "float32[3]", "broadcast"]

WRONG = [
    *((fn, {"x": jnp.ones(3)}, [name, *MISFIT]) for name, fn in PAIRED.items()),
    *((fn, {"x": None}, [name, "['x']", "None"]) for name, fn in STRICT.items()),
    *(
        (fn, Z, [name, "['x']", "complex", "cast"])
        for name, fn in (BINARY | {"where": STRICT["where"]}).items()
    ),
    (tree.add, {"x": jnp.arange(2)}, ["add: ", "['x']", "int32[2]"]),
    (tree.add, {"x": {"y": jnp.ones(2)}}, ["add: ", "['x']", "of type dict"]),
    (tree.add, [jnp.ones(2)], ["add: ", "`tree_y`", "[0]", "tree structure"]),
    (tree.cast_like, [], ["cast_like", "`other_tree`", "['x']"]),
]


@pytest.mark.parametrize(("fn", "other", "words"), WRONG)
def test_two_trees_that_do_not_fit(fn, other, words):
    with pytest.raises((TypeError, ValueError)) as info:
        fn(X, other)
    for word in words:
        assert word in str(info.value)


ARGUMENTS = [
    *(
        (call, [name, "0-d", "shape (2,)", "vmap"])
        for name, call in {
            "scale: `scalar`": lambda: tree.scale(jnp.ones(2), X),
            "full_like: `fill_value`": lambda: tree.full_like(X, jnp.ones(2)),
            "clip: `max_value`": lambda: tree.clip(X, max_value=jnp.ones(2)),
            "update_moment: `decay`": lambda: tree.update_moment(X, X, jnp.ones(2), 1),
        }.items()
    ),
    (lambda: tree.scale(1j, X), ["scale", "['x']", "complex", "float32"]),
    (lambda: tree.clip(X, jnp.asarray(1j)), ["clip", "real", "complex64"]),
    (lambda: tree.clip(X, 2, 1), ["clip", "`max_value`", "[2.0, inf)", "1"]),
    (lambda: tree.update_moment(X, X, 1.5, 2), ["`decay`", "[0, 1]"]),
    (lambda: tree.update_moment_per_elem_norm(X, X, 0.9, 0), ["`order`", "0"]),
    (lambda: tree.update_infinity_moment(Z, Z, 0.9, 0.0), ["`moments`", "complex"]),
    (lambda: tree.min([None, Z]), ["min", "[1]['x']", "complex", "norm"]),
    (lambda: tree.dtype([X, Z]), ["dtype", "[0]['x']", "complex64", "cast"]),
    (
        lambda: eqopt.periodic_update(X, {"x": jnp.ones(2, jnp.float16)}, 0, 2),
        ["periodic_update", "['x']", "float16", "float32", "cast_like"],
    ),
    (
        lambda: eqopt.apply_updates({"n": jnp.arange(2)}, {"n": jnp.ones(2)}),
        ["['n']", "int32", "astype(jnp.float32)"],
    ),
]


@pytest.mark.parametrize(("call", "words"), ARGUMENTS)
def test_wrong_arguments(call, words):
    with pytest.raises((TypeError, ValueError)) as info:
        call()
    for word in words:
        assert word in str(info.value)


def test_constants_of_a_trace():
    """Arrays with values are checked in NumPy: JAX would trace a comparison."""
    zero, two = jnp.asarray(0), jnp.asarray(2)
    for fn in (
        lambda x: tree.bias_correction(x, jnp.float32(0.5), two),
        lambda x: tree.clip(x, zero, two),
        lambda x: eqopt.periodic_update(x, x, zero, two),
    ):
        assert eqx.filter_jit(fn)(X)["x"].shape == (2,)
    with pytest.raises(ValueError, match=r"must be in \[1, inf\), but is 0"):
        eqx.filter_jit(lambda x: tree.bias_correction(x, 0.5, zero))(X)


def test_traced_values_are_let_through():
    run = jax.jit(lambda s: tree.clip(X, s, -s))
    assert run(1.0)["x"].shape == (2,)
    run = jax.jit(lambda s: tree.bias_correction(X, s, s.astype(int)))
    assert run(jnp.asarray(0.5))["x"].shape == (2,)
