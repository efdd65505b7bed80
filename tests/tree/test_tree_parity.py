"""`eqopt.tree` against `optax.tree`, on trees of arrays of all dtypes."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")
tree = eqopt.tree

DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64"]


def both(cases, x, y):
    """What either library makes of all cases, in one program."""
    run = jax.jit(
        lambda x, y: {
            name: [case(module, x, y) for module in (tree, optax.tree)]
            for name, case in cases.items()
        }
    )
    return run(x, y).items()


def random_tree(seed, dtype):
    """Nested, with a `None`, an empty array and a scalar."""
    shapes = {"a": [(3, 2), (0,)], "b": {"c": ()}}
    keys = iter(jr.split(jr.key(seed), 3))

    def make(shape):
        wide = jnp.complex64 if "complex" in dtype else jnp.float32
        return jr.normal(next(keys), shape, wide).astype(dtype)

    made = jax.tree.map(make, shapes, is_leaf=lambda x: isinstance(x, tuple))
    return made | {"none": None}


CASES = {
    "add": lambda t, x, y: t.add(x, y),
    "add of three": lambda t, x, y: t.add(x, y, x),
    "add_scale": lambda t, x, y: t.add_scale(x, 0.5, y),
    "batch_shape": lambda t, x, y: t.batch_shape(x, (2, 1)),
    "bias_correction": lambda t, x, y: t.bias_correction(x, 0.9, jnp.asarray(3)),
    "cast": lambda t, x, y: t.cast(x, jnp.complex64),
    "cast to None": lambda t, x, y: t.cast(x, None),
    "cast_like": lambda t, x, y: t.cast_like(t.ones_like(x, jnp.float16), y),
    "conj": lambda t, x, y: t.conj(x),
    "div": lambda t, x, y: t.div(x, y),
    "full_like": lambda t, x, y: t.full_like(x, 3),
    "mul": lambda t, x, y: t.mul(x, y),
    "ones_like": lambda t, x, y: t.ones_like(x),
    "random_like": lambda t, x, y: t.random_like(jr.key(0), x),
    "random_like, old": lambda t, x, y: t.random_like(jr.PRNGKey(0), x),
    "real": lambda t, x, y: t.real(x),
    "scale": lambda t, x, y: t.scale(0.5, x),
    "sub": lambda t, x, y: t.sub(x, y),
    "update_moment 1": lambda t, x, y: t.update_moment(x, y, 0.9, 1),
    "update_moment 2": lambda t, x, y: t.update_moment(x, y, 0.9, 2),
    "update_infinity_moment": lambda t, x, y: t.update_infinity_moment(
        x, t.real(y), 0.9, 1e-3
    ),
    "update_moment_per_elem_norm": lambda t, x, y: t.update_moment_per_elem_norm(
        x, t.real(y), 0.9, 2
    ),
    "where": lambda t, x, y: t.where(jnp.asarray(True), x, y),
    "where not": lambda t, x, y: t.where(jnp.asarray(False), x, y),
    "zeros_like": lambda t, x, y: t.zeros_like(x),
}
REAL = {
    "clip": lambda t, x, y: t.clip(x, -0.5, 0.5),
    "clip from below": lambda t, x, y: t.clip(x, -0.5),
    "clip from above": lambda t, x, y: t.clip(x, max_value=0.5),
    "max": lambda t, x, y: t.max(x),
    "min": lambda t, x, y: t.min(x),
    "update_moment_per_elem_norm 4": lambda t, x, y: t.update_moment_per_elem_norm(
        x, y, 0.9, 4
    ),
}
REDUCTIONS = {
    "allclose": lambda t, x, y: t.allclose(x, y),
    "allclose of itself": lambda t, x, y: t.allclose(x, x),
    "allclose, loosely": lambda t, x, y: t.allclose(x, y, 1e3, 1e3),
    "norm": lambda t, x, y: t.norm(x),
    "size": lambda t, x, y: t.size(x),
    "sum": lambda t, x, y: t.sum(x),
    "vdot": lambda t, x, y: t.vdot(x, y),
}


def tolerance(dtype):
    return {"float64": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 2e-6)


def assert_alike(ours, theirs, rtol, same_dtype=True):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if same_dtype:
            assert a.dtype == b.dtype
        a, b = (np.asarray(x).astype(np.complex128) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.slow
def test_trees_are_those_of_optax(dtype, x64):
    with x64():
        x, y = random_tree(0, dtype), random_tree(1, dtype)
        cases = CASES if "complex" in dtype else CASES | REAL
        for name, (ours, theirs) in both(cases, x, y):
            # In half precision, Optax rounds in the middle.
            is_number = name in ("max", "min")
            try:
                assert_alike(ours, theirs, 4 * tolerance(dtype), not is_number)
            except AssertionError as error:
                raise AssertionError(name) from error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.slow
def test_numbers_are_those_of_optax(dtype, x64):
    with x64():
        x, y = random_tree(0, dtype), random_tree(1, dtype)
        for name, (ours, theirs) in both(REDUCTIONS, x, y):
            message = f"{name}: {ours} against {theirs}"
            assert np.isclose(ours, theirs, rtol=3 * tolerance(dtype)), message
        assert tree.dtype(x) == optax.tree.dtype(x) == dtype


def test_empty_trees_are_those_of_optax():
    for name, case in (CASES | REAL | REDUCTIONS).items():
        ours, theirs = (case(t, {"a": None}, {"a": None}) for t in (tree, optax.tree))
        assert jax.tree.structure(ours) == jax.tree.structure(theirs), name
        if jax.tree.leaves(ours):
            assert ours == theirs, name


@pytest.mark.parametrize("handler", ["promote", "highest", "lowest"])
def test_mixed_dtypes(handler):
    for dtypes in (("float16", "float32"), ("bfloat16", "complex64", "float32")):
        mixed = [jnp.ones(2, dtype) for dtype in dtypes]
        assert tree.dtype(mixed, handler) == optax.tree.dtype(mixed, handler)
    halves = [jnp.ones(2, "float16"), jnp.ones(2, "bfloat16")]
    for module in (tree, optax.tree):
        if handler == "promote":
            assert module.dtype(halves, handler) == jnp.float32
        else:
            with pytest.raises(ValueError, match="float16"):
                module.dtype(halves, handler)


@pytest.mark.parametrize("key", [jr.key(3), jr.PRNGKey(3)], ids=str)
def test_keys_are_those_of_optax(key):
    x = random_tree(0, "float32")
    ours, theirs = (t.split_key_like(key, x) for t in (tree, optax.tree))
    unwrapped = [
        t.unwrap_random_key_data(k) for k in (ours, theirs) for t in (tree, optax.tree)
    ]
    for other in unwrapped[1:]:
        assert_alike(unwrapped[0], other, 0)
    assert ours["b"]["c"].dtype == key.dtype


@pytest.mark.slow
def test_samplers():
    x = random_tree(0, "float32")
    for sampler in (jr.uniform, jr.rademacher, jr.normal):
        ours, theirs = (
            t.random_like(jr.key(0), x, sampler, jnp.bfloat16)
            for t in (tree, optax.tree)
        )
        assert_alike(ours, theirs, 0)
    seeded = tree.random_like(7, x)
    assert_alike(seeded, tree.random_like(jr.key(7), x), 0)


@pytest.mark.parametrize("key", ["mu", "w", "ScaleByAdamState"])
def test_named_tuples_are_searched_as_optax_does(key):
    # JAX's one-level flattening gives all fields of a named tuple one name.
    optimizer = optax.chain(optax.clip(1.0), optax.adam(1e-3))
    state = optimizer.init({"w": jnp.ones(2), "b": jnp.zeros(())})
    actual, expected = (t.get_all_with_path(state, key) for t in (tree, optax.tree))
    values = [[jax.tree.leaves(v) for _, v in found] for found in (actual, expected)]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, *values))
    assert len(actual) == len(expected) > 0
