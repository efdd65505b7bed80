"""Learning rates that stay when the width changes."""

import re
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt.groups import mup


nn, KEY = eqx.nn, jax.random.key(0)
TREES = "learning_rate", "weight_decay"


def mlp(width, vmapped=False):
    """Layers with inputs alone, with both and with outputs alone that are infinite."""
    make = lambda key: nn.Linear(width, width, key=key)
    return {
        "in": nn.Linear(3, width, key=KEY),
        "hidden": eqx.filter_vmap(make)(jax.random.split(KEY, 2))
        if vmapped
        else make(KEY),
        "out": nn.Linear(width, 5, key=KEY),
        "act": jax.nn.relu,
        "steps": jnp.zeros(width, int),
    }


def factors(base, model, optimizer="adam", tree="learning_rate", **options):
    """By key path."""
    found = getattr(mup(base, model, optimizer, **options), tree)
    return by_path(found)


def by_path(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): x for path, x in leaves}


def test_all_ones_for_the_base_model():
    found = factors(mlp(8), mlp(8))
    paths = by_path(eqx.filter(mlp(8), eqx.is_inexact_array))
    assert found == dict.fromkeys(paths, 1.0)
    assert all(type(factor) is float for factor in found.values())


# By optimizer, for models three times as wide.
TABLE = {
    "adam": {"hidden": 1 / 3, "vectors": 1, "inner bias": 1},
    "sgd": {"hidden": 1, "vectors": 3, "inner bias": 3},
    "muon": {"hidden": 1, "vectors": 1, "inner bias": 1},
}


@pytest.mark.parametrize("optimizer", TABLE)
@pytest.mark.parametrize("vmapped", [False, True])
@pytest.mark.slow
def test_table(optimizer, vmapped):
    row = TABLE[optimizer]
    models = mlp(4, vmapped), mlp(12, vmapped)
    found = factors(*models, optimizer)
    assert found == {
        "['in'].weight": row["vectors"],
        "['in'].bias": row["inner bias"],
        "['hidden'].weight": row["hidden"],
        "['hidden'].bias": row["inner bias"],
        "['out'].weight": row["vectors"],
        "['out'].bias": 1,
    }
    decays = factors(*models, optimizer, "weight_decay")
    assert all(decays[path] * factor == 1 for path, factor in found.items())
    narrower = factors(*models[::-1], optimizer)
    assert all(narrower[path] * factor == 1 for path, factor in found.items())


def test_each_matrix_by_its_inputs():
    """Both sides are infinite, by different ratios."""
    make = lambda n, m: nn.Linear(n, m, use_bias=False, key=KEY)
    base, model = make(4, 6), make(20, 12)
    assert factors(base, model) == {".weight": 1 / 5}
    assert factors(base, model, "sgd") == {".weight": 2 / 5}


conv = lambda n, m, size=3: nn.Conv2d(n, m, size, use_bias=False, key=KEY)
OTHERS = {
    "conv": (conv(2, 4), conv(4, 16), 1 / 2, 4 / 2),
    "images": (conv(3, 4), conv(3, 16), 1, 4),
    "embedding": (nn.Embedding(7, 4, key=KEY), nn.Embedding(7, 8, key=KEY), 1, 2),
    "norm": (nn.RMSNorm(4, use_bias=False), nn.RMSNorm(8, use_bias=False), 1, 2),
    "matrix": (jnp.ones((4, 6)), jnp.ones((20, 12)), 1 / 5, 2 / 5),
    "positions": (jnp.ones((9, 4)), jnp.ones((9, 8)), 1, 2),
    "cube": (jnp.ones((9, 4, 3)), jnp.ones((9, 8, 3)), 1, 2),
    "number": (jnp.ones(()), jnp.ones(()), 1, 1),
    "empty": (jnp.ones((0, 4)), jnp.ones((0, 8)), 1, 2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_layers_and_arrays(name):
    base, model, of_adam, of_sgd = OTHERS[name]
    assert [*factors(base, model).values()] == [of_adam]
    assert [*factors(base, model, "sgd").values()] == [of_sgd]


def test_cells_and_attention():
    cell = lambda n: nn.GRUCell(3, n, key=KEY)
    assert factors(cell(4), cell(8)) == {
        ".weight_ih": 1,
        ".weight_hh": 1 / 2,
        ".bias": 1,
        ".bias_n": 1,
    }
    attention = lambda n: nn.MultiheadAttention(2, n, key=KEY)
    assert set(factors(attention(4), attention(8)).values()) == {1 / 2}


def test_arrays_with_given_dimension_numbers():
    """Weights of attention, (heads, width, head size)."""
    numbers = eqopt.MatrixDimensionNumbers(1, (0, 2))
    base, model = jnp.ones((2, 8, 4)), jnp.ones((6, 24, 4))
    for given in (numbers, lambda params: numbers):
        found = factors(base, model, weight_dimension_numbers=given)
        assert found == {"": 1 / 3}
    assert factors(base, model, "sgd", weight_dimension_numbers=numbers) == {"": 1}


def test_what_muon_leaves_to_the_fallback():
    """It follows Adam, also where it is a matrix."""
    numbers = lambda params: jax.tree.map(lambda _: None, params)
    found = factors(mlp(4), mlp(8), "muon", weight_dimension_numbers=numbers)
    assert found == factors(mlp(4), mlp(8), "adam")
    with pytest.raises(ValueError, match="only one input axis"):
        factors(mlp(4), mlp(8), "adam", weight_dimension_numbers=numbers)


def test_shapes_do_and_fit_the_model():
    base, model = (eqx.filter_eval_shape(mlp, width) for width in (4, 8))
    found = mup(base, model)
    assert by_path(found) == by_path(mup(mlp(4), mlp(8)))
    grads = jax.tree.map(jnp.ones_like, eqx.filter(mlp(8), eqx.is_inexact_array))
    for tree in TREES:
        scale = eqopt.ScaleByTree(getattr(found, tree))
        updates, _ = scale.update(grads, scale.init(mlp(8)), mlp(8))
        means = jax.tree.map(lambda u: float(u.mean()), updates)
        assert by_path(means) == by_path(getattr(found, tree))


def test_stored_parameters():
    """Their shapes count, too."""
    storage = eqopt.storage.SplitMasterWeights()
    model = eqopt.tree.cast(mlp(8), jnp.bfloat16)
    scale = eqopt.ScaleByTree(mup(mlp(4), model).learning_rate)
    eqopt.StoreParams(eqopt.Chain(eqopt.Adam(1e-3), scale), storage).init(model)


BAD = {
    "structure": (
        {"a": jnp.ones(2)},
        {"a": jnp.ones(2), "b": jnp.ones(2)},
        r"Only `model` has a leaf at `\['b'\]`. Create both models with the same func",
    ),
    "axes": (
        {"a": jnp.ones(2)},
        {"a": jnp.ones((2, 2))},
        r"`\['a'\]` must have as many axes .*, but has 1 and 2. Create",
    ),
    "kernel": (
        conv(2, 4),
        conv(4, 8, 5),
        r"`.weight` has shape \(4, 2, 3, 3\) .* \(8, 4, 5, 5\) .* only one input axis",
    ),
    "depth": (
        jax.tree.map(lambda x: x[None], nn.Linear(4, 4, key=KEY)),
        jax.tree.map(lambda x: jnp.stack([x, x]), nn.Linear(4, 4, key=KEY)),
        "`.weight` has .* may differ, or one axis of another array",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models(name):
    base, model, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        mup(base, model)


def test_example_in_the_docstring():
    example = re.search(r"```python\n(.*?)```", mup.__doc__ or "", re.DOTALL)
    assert example is not None
    names = {"eqopt": eqopt, "eqx": eqx, "jax": jax}
    exec(textwrap.dedent(example[1]), names)
    names["opt"].init(names["model"])
