import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


TREE = {"a": jnp.array([3.0, -4.0]), "b": [jnp.array(12.0), None, 7, jnp.arange(3)]}


def test_zeros_like():
    model = eqx.nn.MLP(2, 2, 2, 1, key=jr.key(0), dtype=jnp.bfloat16)
    zeros = eqopt.tree.zeros_like(model)
    assert zeros.activation is None
    assert zeros.layers[0].weight.dtype == jnp.bfloat16
    assert not zeros.layers[0].weight.any()
    assert eqopt.tree.zeros_like(TREE, jnp.float16)["a"].dtype == jnp.float16
    assert eqopt.tree.zeros_like(TREE)["b"][1:] == [None, None, None]


@pytest.mark.parametrize(
    ("ord", "expected"), [(1, 19.0), (2, 13.0), (jnp.inf, 12.0), ("inf", 12.0)]
)
def test_norm(ord, expected):
    np.testing.assert_allclose(eqopt.tree.norm(TREE, ord), expected)
    np.testing.assert_allclose(eqopt.tree.norm(TREE, ord, squared=True), expected**2)


def test_norm_at_the_edges():
    assert eqopt.tree.norm({}) == 0
    assert eqopt.tree.norm({"empty": jnp.zeros((0, 2))}, "inf") == 0


@pytest.mark.parametrize("ord", [1, 2, "inf"])
@pytest.mark.parametrize("size", [3, 100_000])
def test_norm_of_a_nan_is_one(ord, size):
    x = jnp.ones(size).at[1].set(jnp.nan)
    assert jnp.isnan(eqopt.tree.norm({"x": x, "y": jnp.ones(2)}, ord))
    assert eqopt.tree.norm(x.at[1].set(jnp.inf), ord) == jnp.inf
    assert eqopt.tree.norm(jnp.full(4, 3e4, jnp.float16)) == 6e4
    assert jax.grad(eqopt.tree.norm)(jnp.zeros(3)).tolist() == [0, 0, 0]
    assert eqopt.tree.norm(jnp.array([3 + 4j], jnp.complex64)) == 5
    mixed = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2)}
    assert eqopt.tree.norm(mixed).dtype == jnp.float32
    assert jnp.isnan(eqopt.tree.norm(jnp.array([1.0, jnp.nan])))


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


def test_set_keeps_the_kind_of_an_array():
    """So that nothing compiles again."""
    opt = eqopt.SGD(jnp.asarray(0.1))
    new = eqopt.tree.set(opt, learning_rate=1)
    assert new.learning_rate.dtype == jnp.float32
    assert new.learning_rate.weak_type == opt.learning_rate.weak_type


@pytest.mark.parametrize("rate", [jnp.asarray(0.1), jnp.float32(0.1)], ids=repr)
def test_set_compiles_nothing_again(rate):
    """Also where the array is weakly typed, as `jnp.asarray(0.1)` is."""
    traced = eqx.debug.assert_max_traces(lambda o, g: o.update(g, None), max_traces=1)
    update = eqx.filter_jit(lambda o, g: traced(o, g))
    opt = eqopt.Scale(rate)
    update(opt, jnp.ones(2))
    update(eqopt.tree.set(opt, step_size=0.2), jnp.ones(2))


@pytest.mark.parametrize("rate", [1e-2, jnp.asarray(1e-2)], ids=["number", "array"])
def test_set_a_schedule(rate):
    schedule = eqopt.schedules.Linear(1e-2, 0.0, 9)
    opt = eqopt.Chain(eqopt.Clip(1.0), eqopt.AdamW(rate))
    new = eqopt.tree.set(opt, learning_rate=schedule)
    assert new[1].learning_rate is schedule


@pytest.mark.parametrize(
    ("opt", "name"),
    [
        (eqopt.Adam(0.1), "learning_rate"),
        (eqopt.Prodigy(), "learning_rate"),
        (eqopt.Scheduled(eqopt.Scale(eqopt.schedules.Linear(1, 0, 9))), "hyperparams"),
    ],
    ids=["Adam", "Prodigy", "Scheduled"],
)
def test_a_record_is_not_set(opt, name):
    """No step reads it, so the new value would be ignored."""
    state = opt.init(jnp.ones(2))
    with pytest.raises(ValueError, match="Change the optimizer"):
        eqopt.tree.set(state, **{name: eqopt.tree.get(state, name)})


def test_set_beside_a_record():
    opt = eqopt.Adam(0.1)
    state = opt.init(jnp.ones(2))
    assert eqopt.tree.set((opt, state), learning_rate=0.2)[0] == eqopt.Adam(0.2)
