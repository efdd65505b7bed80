import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


TREE = {"a": jnp.array([3.0, -4.0]), "b": [jnp.array(12.0), None, 7, jnp.arange(3)]}


@pytest.mark.parametrize(
    ("ord", "expected"), [(1, 19.0), (2, 13.0), (jnp.inf, 12.0), ("inf", 12.0)]
)
def test_norm(ord, expected):
    np.testing.assert_allclose(eqopt.tree.norm(TREE, ord), expected)
    np.testing.assert_allclose(eqopt.tree.norm(TREE, ord, squared=True), expected**2)


@pytest.mark.parametrize("ord", [1, 2, "inf"])
def test_norm_of_a_nan_is_one(ord):
    x = jnp.ones(100_000).at[1].set(jnp.nan)
    assert jnp.isnan(eqopt.tree.norm({"x": x, "y": jnp.ones(2)}, ord))
    assert eqopt.tree.norm(x.at[1].set(jnp.inf), ord) == jnp.inf


def test_norm_at_the_edges():
    assert eqopt.tree.norm({}) == 0
    assert eqopt.tree.norm({"empty": jnp.zeros((0, 2))}, "inf") == 0
    assert eqopt.tree.norm(jnp.full(4, 3e4, jnp.float16)) == 6e4
    assert jax.grad(eqopt.tree.norm)(jnp.zeros(3)).tolist() == [0, 0, 0]
    assert eqopt.tree.norm(jnp.array([3 + 4j], jnp.complex64)) == 5


class Node(eqx.Module):
    rate: float
    child: object


def test_get():
    tree = {"x": Node(1.0, [Node(2.0, None)]), "y": 3}
    assert eqopt.tree.get(tree, "y") == 3
    assert eqopt.tree.get(tree, "nothing", None) is None
    assert eqopt.tree.get(tree, "nothing", default=5) == 5
    outer = lambda path, value: len(path) == 2
    assert eqopt.tree.get(tree, "rate", filtering=outer) == 1.0
    paths = eqopt.tree.get_all_with_path(tree, "rate")
    assert [jax.tree_util.keystr(p) for p, _ in paths] == [
        "['x'].rate",
        "['x'].child[0].rate",
    ]
    assert [v for _, v in eqopt.tree.get_all_with_path(tree, "Node")][1] == Node(
        2.0, None
    )


def test_set():
    tree = {"x": Node(1.0, [Node(2.0, None)]), "y": 3}
    both = {"x": Node(5.0, [Node(5.0, None)]), "y": 3}
    assert eqopt.tree.set(tree, all=True, rate=5.0) == both
    outer = lambda path, value: len(path) == 2
    assert eqopt.tree.set(tree, outer, rate=5.0)["x"] == Node(5.0, [Node(2.0, None)])
    assert tree["x"].rate == 1.0


def test_a_path_says_which():
    """`Muon` and its fallback have a learning rate each."""
    opt = eqopt.Muon(0.02, fallback=eqopt.AdamW(1e-3))
    with pytest.raises(
        KeyError, match=r"`\.learning_rate`, `\.fallback\.learning_rate`"
    ):
        eqopt.tree.set(opt, learning_rate=0.01)
    assert eqopt.tree.get(opt, ".fallback.learning_rate") == 1e-3
    new = eqopt.tree.set(opt, **{".fallback.learning_rate": 1e-4})
    assert (new.learning_rate, new.fallback.learning_rate) == (0.02, 1e-4)


def test_unused_numbers():
    """`None` is no value if something else has the name; otherwise, it can be set."""
    opt = eqopt.Chain(eqopt.AddDecayedWeights(0.1), eqopt.ScaleByLearningRate(0.01))
    assert eqopt.tree.get(opt, "learning_rate") == 0.01
    new = eqopt.tree.set(opt, learning_rate=0.02)
    assert (new[0].learning_rate, new[1].learning_rate) == (None, 0.02)
    unused = lambda path, value: value is None
    for part in (
        eqopt.tree.set(opt, unused, learning_rate=0.02)[0],
        eqopt.tree.set(opt[0], learning_rate=0.02),
    ):
        assert part.learning_rate == 0.02


@pytest.mark.parametrize("rate", [jnp.asarray(0.1), jnp.float32(0.1)], ids=repr)
def test_set_compiles_nothing_again(rate):
    """Also where the array is weakly typed, as `jnp.asarray(0.1)` is."""
    traced = eqx.debug.assert_max_traces(lambda o, g: o.update(g, None), max_traces=1)
    update = eqx.filter_jit(lambda o, g: traced(o, g))
    opt = eqopt.Scale(rate)
    update(opt, jnp.ones(2))
    update(eqopt.tree.set(opt, step_size=0.2), jnp.ones(2))


def test_a_record_is_not_set():
    """No step reads it, so the new value would be ignored."""
    scheduled = eqopt.Scheduled(eqopt.Scale(eqopt.schedules.Linear(1, 0, 9)))
    for opt, name in ((eqopt.Adam(0.1), "learning_rate"), (scheduled, "hyperparams")):
        state = opt.init(jnp.ones(2))
        with pytest.raises(ValueError, match="Change the optimizer"):
            eqopt.tree.set(state, **{name: eqopt.tree.get(state, name)})


def test_set_beside_a_record():
    opt = eqopt.Adam(0.1)
    state = opt.init(jnp.ones(2))
    assert eqopt.tree.set((opt, state), learning_rate=0.2)[0] == eqopt.Adam(0.2)
