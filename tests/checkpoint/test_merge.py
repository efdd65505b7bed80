"""Weighted means of checkpoints: the weights of decays, and what is not averaged."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt.checkpoint import CheckpointError, merge, save


# The values of a parameter in five checkpoints, and the weights of decays.
VALUES = 3, 2, 0, -3, -7
WEIGHTS = {
    "linear": (0.2, 0.2, 0.2, 0.2, 0.2),
    "cosine": (0.0954915, 0.25, 0.30901699, 0.25, 0.0954915),
    "1-sqrt": (0.4472136, 0.18524194, 0.14214114, 0.11983052, 0.10557281),
}
MERGED = {"linear": -1, "cosine": -0.63196601, "1-sqrt": 0.61362343}


class Model(eqx.Module):
    w: jax.Array
    half: jax.Array
    wave: jax.Array
    of_numpy: np.ndarray
    steps: jax.Array
    key: jax.Array
    slope: float
    activation: object
    name: str = eqx.field(static=True)


def saved(i, value):
    model = Model(
        w=value * jnp.array([[1.0, -2.0]]),
        half=jnp.full(2, value, jnp.bfloat16),
        wave=jnp.array([value * 1j]),
        of_numpy=np.array(value, np.float64),
        steps=jnp.array(i),
        key=jr.key(i),
        slope=float(value),
        activation=jax.nn.relu,
        name="model",
    )
    return model, eqopt.Adam(1e-3).init(model)


@pytest.fixture(name="paths")
def five(tmp_path):
    paths = [tmp_path / f"{i}.eqx" for i in range(len(VALUES))]
    for i, path in enumerate(paths):
        save(path, saved(i, VALUES[i]))
    return paths


LIKE = saved(0, 0.0)


def model_of(saved):
    return saved[0]


@pytest.mark.parametrize("weights", [*WEIGHTS, WEIGHTS["cosine"], (0, 0, 2.0, -1, 0)])
@pytest.mark.costly
def test_means_by_hand(paths, weights):
    factors = WEIGHTS.get(weights, weights) if isinstance(weights, str) else weights
    model, mean = merge(paths, LIKE, model_of, weights), np.dot(factors, VALUES)
    if isinstance(weights, str):
        assert mean == pytest.approx(MERGED[weights], abs=1e-7)
    np.testing.assert_allclose(model.w, mean * np.array([[1, -2]]), rtol=1e-6)
    np.testing.assert_allclose(model.wave, [mean * 1j], rtol=1e-6)
    np.testing.assert_allclose(model.of_numpy, mean, rtol=1e-6)
    # Rounded once, after a mean in float32.
    np.testing.assert_array_equal(model.half, jnp.full(2, mean, jnp.bfloat16))
    assert model.half.dtype == jnp.bfloat16


def test_the_rest_is_from_the_last_file(paths):
    model, last = merge(paths, LIKE, model_of), saved(4, VALUES[4])[0]
    names = "steps", "key", "slope", "activation"
    rest = lambda model: [getattr(model, name) for name in names]
    assert eqx.tree_equal(rest(model), rest(last))
    assert isinstance(model, Model) and type(model.slope) is float


def test_infinity_without_a_weight(tmp_path):
    """And with one: a mask of infinities stays as it is."""
    paths = [tmp_path / "a.eqx", tmp_path / "b.eqx"]
    for path, x in zip(paths, (jnp.inf, 1.0), strict=True):
        save(path, jnp.array([x, -jnp.inf]))
    of = lambda weights: merge(paths, jnp.zeros(2), lambda x: x, weights).tolist()
    assert of((0.0, 1.0)) == [1.0, -jnp.inf]
    assert of((0.5, 0.5)) == [jnp.inf, -jnp.inf]


@pytest.mark.parametrize("batch", [1, 7])
def test_a_decay_of_the_same_updates(tmp_path, batch):
    """A run with decayed steps ends at the merged parameters, if gradients are given."""
    rng, n = np.random.default_rng(0), 4
    grads = rng.normal(size=(n - 1, batch, 3))
    opt, p, paths = eqopt.SGD(0.1), jnp.ones(3), [tmp_path / f"{i}" for i in range(n)]
    save(paths[0], p)
    for i in range(1, n):
        for g in grads[i - 1]:
            p, _ = opt.step(jnp.asarray(g, jnp.float32), opt.init(p), p)
        save(paths[i], p)
    rates = 1 - np.sqrt(np.arange(1, n) / n)
    decayed = 1 - 0.1 * np.tensordot(rates, grads.sum(1), 1)
    merged = merge(paths, p, lambda p: p, "1-sqrt")
    np.testing.assert_allclose(merged, decayed, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((0.5, 0.5), r"must be 5 numbers with the sum 1, but is \[0.5, 0.5\]"),
        ((0.1,) * 5, "must be 5 numbers with the sum 1"),
        ((np.nan,) * 5, "the sum 1"),
        ("sqrt", "`weights` must be"),
    ],
)
def test_wrong_weights(paths, weights, message):
    with pytest.raises((ValueError, TypeError), match=message):
        merge(paths, LIKE, model_of, weights)


def test_wrong_files(paths):
    with pytest.raises(ValueError, match="0 numbers"):
        merge([], LIKE, model_of)
    save(paths[1], (saved(1, 2)[0], None))
    with pytest.raises(CheckpointError, match=r"1\.eqx does not fit"):
        merge(paths, LIKE, model_of)
    paths[1].write_bytes(paths[0].read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        merge(paths, LIKE, model_of)
