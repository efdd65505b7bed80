"""Wrong arguments: each message names the function, the place, and the way out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt


tree = eqopt.tree
X = {"x": jnp.ones(2)}
Z = {"x": jnp.ones(2, complex)}
BINARY = {
    "add": tree.add,
    "sub": tree.sub,
    "mul": tree.mul,
    "div": tree.div,
    "add_scale": lambda x, y: tree.add_scale(x, 2.0, y),
}
STRICT = {
    "allclose": tree.allclose,
    "periodic_update": lambda x, y: eqopt.periodic_update(y, x, 0, 2),
    "where": lambda x, y: tree.where(True, x, y),
}
PAIRED = (
    BINARY
    | STRICT
    | {
        "vdot": tree.vdot,
        "incremental_update": lambda x, y: eqopt.incremental_update(y, x, 0.5),
        "update_infinity_moment": lambda x, y: tree.update_infinity_moment(
            y, x, 0.5, 0
        ),
        "update_moment": lambda x, y: tree.update_moment(y, x, 0.5, 2),
    }
)
MOMENTS = [tree.update_moment, tree.update_moment_per_elem_norm]

WRONG = [
    *(
        (
            lambda fn=fn: fn(X, {"x": jnp.ones(3)}),
            ValueError,
            [name, "['x']", "float32[2]", "float32[3]", "broadcast"],
        )
        for name, fn in PAIRED.items()
    ),
    *(
        (lambda y=y: tree.add(X, y), ValueError, ["add: ", "['x']", *words])
        for y, words in (
            ({"x": jnp.ones(())}, ["float32[]", "broadcast"]),
            ({"x": 1.0}, ["1.0 of type float"]),
            ({"x": jnp.arange(2)}, ["int32[2]"]),
            ({"x": {"y": jnp.ones(2)}}, ["of type dict"]),
            ({"z": jnp.ones(2)}, ["['z']", "tree structure"]),
            ([jnp.ones(2)], ["[0]", "tree structure"]),
        )
    ),
    (lambda: tree.add({"x": None}, X), ValueError, ["['x']", "None", "filter"]),
    *(
        (lambda fn=fn: fn(X, {"x": None}), ValueError, [name, "['x']", "None"])
        for name, fn in STRICT.items()
    ),
    *(
        (lambda fn=fn: fn(X, Z), TypeError, [name, "['x']", "complex", "cast"])
        for name, fn in (BINARY | {"where": STRICT["where"]}).items()
    ),
    (lambda: tree.add(X, X, Z), TypeError, ["add", "['x']", "float32"]),
    (lambda: tree.add(X, X, []), ValueError, ["add", "`other_trees[0]`", "['x']"]),
    (lambda: tree.add({"x": "{a}"}, X), ValueError, ["add", "'{a}' of type str"]),
    (lambda: tree.cast_like(X, []), ValueError, ["cast_like", "`other_tree`", "['x']"]),
    # Numbers.
    *(
        (lambda fn=fn, s=s: fn(s), error, [name, *words])
        for name, fn in (
            ("scale: `scalar`", lambda s: tree.scale(s, X)),
            ("add_scale: `scalar`", lambda s: tree.add_scale(X, s, X)),
            ("full_like: `fill_value`", lambda s: tree.full_like(X, s)),
            ("clip: `min_value`", lambda s: tree.clip(X, s)),
            ("clip: `max_value`", lambda s: tree.clip(X, max_value=s)),
            ("allclose: `rtol`", lambda s: tree.allclose(X, X, s)),
            ("update_moment: `decay`", lambda s: tree.update_moment(X, X, s, 1)),
        )
        for s, error, words in (
            (jnp.ones(2), ValueError, ["0-d", "float32[2]", "vmap"]),
        )
    ),
    (lambda: tree.scale(1j, X), TypeError, ["scale", "['x']", "complex", "float32"]),
    (lambda: tree.add_scale(X, 1j, X), TypeError, ["add_scale", "['x']", "complex"]),
    (lambda: tree.clip(X, jnp.asarray(1j)), TypeError, ["clip", "real", "complex64"]),
    (lambda: tree.clip(X, 2, 1), ValueError, ["clip", "`min_value`", "2", "1"]),
    # Moments.
    *(
        (
            lambda fn=fn, d=d: fn(X, X, d, 2),
            ValueError,
            ["`decay`", "[0, 1]"],
        )
        for fn in MOMENTS
        for d in (-0.1, 1.5, float("nan"), jnp.asarray(2.0))
    ),
    *(
        (
            lambda fn=fn, k=k: fn(X, X, 0.9, k),
            ValueError,
            ["`order`", str(k)],
        )
        for fn in MOMENTS
        for k in (0, -1.0)
    ),
    (lambda: tree.update_moment(Z, X, 0.9, 2), TypeError, ["`moments`", "complex"]),
    (
        lambda: tree.update_infinity_moment(X, X, 0.9, -1.0),
        ValueError,
        ["update_infinity_moment", "`eps`", "[0, inf)", "-1"],
    ),
    (
        lambda: tree.update_infinity_moment(Z, Z, 0.9, 0.0),
        TypeError,
        ["update_infinity_moment", "complex"],
    ),
    (
        lambda: tree.bias_correction(X, 0.9, 0),
        ValueError,
        ["`count`", "[1, inf)", "0"],
    ),
    (lambda: tree.bias_correction(X, 1, 1), ValueError, ["`decay`", "[0, 1)", "1"]),
    # Reductions.
    (lambda: tree.max(Z), TypeError, ["max", "['x']", "complex", "norm"]),
    (lambda: tree.min([None, Z]), TypeError, ["min", "[1]['x']", "complex"]),
    (lambda: tree.dtype(X, "largest"), TypeError, ["'largest'", "'promote'"]),
    (
        lambda: tree.dtype([X, Z]),
        ValueError,
        ["dtype", "[0]['x']", "complex64", "cast"],
    ),
    # Updates.
    (
        lambda: eqopt.periodic_update(X, {"x": jnp.ones(2, jnp.float16)}, 0, 2),
        TypeError,
        ["periodic_update", "['x']", "float16", "float32", "cast_like"],
    ),
    (
        lambda: eqopt.periodic_update(X, X, 0, 0),
        ValueError,
        ["periodic_update", "`update_period`", "[1, inf)", "0"],
    ),
    (
        lambda: eqopt.apply_updates(X, {"x": jnp.ones(3)}),
        ValueError,
        ["apply_updates", "['x']", "float32[3]", "float32[2]"],
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
def test_message(call, error, words):
    with pytest.raises(error) as info:
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
    run = eqx.filter_jit(eqopt.periodic_update)
    assert run(X, X, jnp.asarray(1), jnp.asarray(0))["x"].shape == (2,)
