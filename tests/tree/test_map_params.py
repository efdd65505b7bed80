"""`eqopt.tree.map_params` finds what stands for parameters, in any state."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PyTree

import eqopt
from eqopt.tree._slots import owners_of


map_params = eqopt.tree.map_params


def paths_of(tree, kind):
    """The key paths of the leaves equal to `kind`, with whatever is behind the last."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path) for path, x in leaves if x == kind}


def found(opt, model, /, **given):
    state = opt.init(model)
    marked = map_params(
        opt, lambda x: "found", state, transform_non_params=lambda x: "other", **given
    )
    assert jax.tree.structure(marked) == jax.tree.structure(state)
    return paths_of(marked, "found"), paths_of(marked, "other")


PARAMS = {"w": jnp.ones((4, 3)), "b": jnp.ones(3), "s": jnp.ones(()), "n": None}
EVERY = {"['w']", "['b']", "['s']"}


def each(*slots):
    return {slot + key for slot in slots for key in EVERY}


@pytest.mark.parametrize("given", [{}, {"params": PARAMS}], ids=["inferred", "given"])
def test_what_stands_for_a_parameter(given):
    one, rest = found(eqopt.Adam(0.1), PARAMS, **given)
    assert one == each("[0].mu", "[0].nu")
    assert rest == {"[0].count", "[1].count", "[1].learning_rate"}
    one, _ = found(eqopt.ScaleByNovoGrad(), PARAMS, **given)
    assert one >= each(".mu")
    assert not one & {".nu['w']", ".nu['b']"}
    one, _ = found(eqopt.MultiSteps(eqopt.Trace(0.9), 2), PARAMS, **given)
    assert one == each(".acc_grads", ".inner_state.trace")
    assert found(eqopt.Scale(0.1), PARAMS, **given) == (set(), set())
    assert not found(eqopt.ZeroNaNs(), PARAMS, **given)[0]
    assert not found(eqopt.AddNoise(0.1, 0.1, 0), jnp.ones(2))[0]


def test_vectors_of_all_parameters_do_not_count():
    opt = eqopt.Flatten(eqopt.Trace(0.9))
    assert not found(opt, PARAMS, params=PARAMS)[0]
    with pytest.raises(ValueError, match="params=model"):
        found(opt, PARAMS)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_bare_array_is_told_from_counts_and_keys(shape):
    x = jnp.ones(shape)
    for given in ({}, {"params": x}):
        one, rest = found(eqopt.Adam(0.1), x, **given)
        assert one == {"[0].mu", "[0].nu"}
        assert len(rest) == 3
        noisy = eqopt.Chain(eqopt.AddNoise(0.1, 0.1, 0), eqopt.Trace(0.9))
        assert found(noisy, x, **given)[0] == {"[1].trace"}


def test_sums_over_rows_and_columns_do_not_count():
    params = {"w": jnp.ones((130, 129)), "b": jnp.ones(3)}
    one, _ = found(eqopt.Adafactor(0.1, momentum=0.9), params)
    assert {path.rpartition(".")[2] for path in one} == {
        "v['b']",
        "ema['b']",
        "ema['w']",
    }
    opt = eqopt.ScaleByFactoredRMS()
    with pytest.raises(ValueError, match="params=model"):
        found(opt, params)
    assert found(opt, params, params=params)[0] == {".v['b']"}


def test_models_and_masks():
    model = eqx.nn.MLP(2, 2, 2, 1, key=jr.key(0))
    is_bias = lambda m: eqx.tree_at(
        lambda m: [layer.bias for layer in m.layers],
        jax.tree.map(lambda _: False, m),
        [True, True],
    )
    biases = {f".inner_state.trace.layers[{i}].bias" for i in range(2)}
    masked = eqopt.Masked(eqopt.Trace(0.9), is_bias)
    assert found(masked, model, params=model)[0] == biases
    as_tree = eqopt.Masked(eqopt.Trace(0.9), is_bias(eqx.filter(model, eqx.is_array)))
    assert found(as_tree, model)[0] == biases


class OwnState(eqx.Module):
    """A state of a user, which declares what its fields are."""

    count: Int[Array, ""]
    means: PyTree
    pairs: PyTree


class Own(eqopt.AbstractTransformation):
    def init(self, params):
        pair = lambda x: (jnp.zeros_like(x), {"sum": jnp.zeros(())})
        zeros = jax.tree.map(jnp.zeros_like, params)
        return OwnState(jnp.zeros((), int), zeros, jax.tree.map(pair, params))

    def update(self, updates, state, params=None, **extra):
        return updates, state


@pytest.mark.parametrize("params", [(jnp.ones(2), jnp.ones(3)), jnp.ones(())])
def test_a_state_of_a_user(params):
    """What a slot has for a parameter may be a small tree, which only belongs to it."""
    opt, leaves = Own(), jax.tree.leaves(params)
    means = {f".means{key}" for key in paths_of(jax.tree.map(lambda x: 0, params), 0)}
    assert found(opt, params)[0] == found(opt, params, params=params)[0] == means
    each = range(len(leaves))
    expected = [None, *each, *(i for i in each for _ in ("mean", "sum"))]
    assert owners_of(params, opt.init(params)) == expected


def test_rest_and_defaults():
    opt = eqopt.Adam(0.1)
    state = opt.init(PARAMS)
    names = {"w": "W", "b": {"of": "B"}, "s": None, "n": None}
    seen = []
    note = lambda x, *others: seen.append(others) or x + 1
    new = map_params(opt.init, note, state, names, PARAMS)
    assert [xs[0] for xs in seen] == [{"of": "B"}, None, "W"] * 2
    assert [x.shape for _, x in seen] == [(3,), (), (4, 3)] * 2
    assert (new[0].mu["w"] == 1).all()
    assert new[0].count is state[0].count
    assert map_params(opt, lambda x: None, state)[0].mu == dict.fromkeys(PARAMS)


def test_abstract_and_mapped_states():
    opt = eqopt.AdamW(0.1)
    abstract = eqx.filter_eval_shape(opt.init, PARAMS)
    specs = {"w": P("d"), "b": P(), "s": P(), "n": None}
    once = map_params(
        opt, lambda _, s: s, abstract, specs, transform_non_params=lambda _: P("no")
    )
    assert once[0].nu == specs
    again = map_params(opt, lambda s: str(s), once, params=PARAMS)
    assert again[0].nu["w"] == str(P("d"))
    assert again[0].count == P("no")


def test_errors():
    opt = eqopt.Adam(0.1)
    state = opt.init(PARAMS)
    with pytest.raises(ValueError, match=r"`rest\[0\]`.*'b'"):
        map_params(opt, lambda x, y: y, state, {"w": 1})
    with pytest.raises(ValueError, match=r"`state` has another tree structure"):
        map_params(opt, lambda x: x, state, params={"w": jnp.ones(2)})
    with pytest.raises(ValueError, match="cannot be inferred"):
        map_params(opt, lambda x: x, eqopt.Trace(0.9).init(PARAMS))
