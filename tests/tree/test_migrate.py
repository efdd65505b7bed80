"""Another optimizer in the middle of a run, by the values of its state."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt
from eqopt.interop.optax import from_optax
from eqopt.tree import migrate, migration_plan

from ..laws.subjects import grads_of, params_of, step
from ..meshes import mesh_of


ADAM = eqopt.Adam(0.1)
CODES = eqopt.storage.BlockwiseQuantized()
EVERYWHERE = lambda params: jax.tree.map(lambda _: True, params)
IN_8_BITS = eqopt.StoreState(ADAM, CODES, EVERYWHERE)


def groups(*names):
    """Groups with these names for the parameters `matrix`, `more[0]` and `scalar`."""
    a, b, c = names
    labels = {"matrix": a, "more": [b, None, {"scalar": c}]}
    return eqopt.Partition(dict.fromkeys(names, ADAM), lambda params: labels)


TWO, THREE = groups("a", "b", "b"), groups("a", "b", "c")


def run(opt, steps=3, state=None, params=None, start=0):
    params = params_of() if params is None else params
    state = opt.init(params) if state is None else state
    for i in range(start, start + steps):
        params, state = step(opt, grads_of(params, i), state, params)
    return params, state


def assert_equal(x, y):
    assert eqx.tree_equal(x, y, typematch=True)


# The old and the new optimizer, `take`, and the same run with the new one from the start.
FROM_THE_START = {
    "clipping and AdamW": (
        ADAM,
        eqopt.Chain(eqopt.Clip(jnp.inf), eqopt.AdamW(0.1, weight_decay=0.0)),
        {},
    ),
    "skipped steps": (ADAM, eqopt.SkipStep(ADAM, lambda value, norm: norm < 0), {}),
    "a group more": (TWO, THREE, {".inner_states['c']": ".inner_states['b']"}),
    "groups": (ADAM, TWO, {".inner_states['a']": "", ".inner_states['b']": ""}),
    "an optimizer of Optax": (
        from_optax(optax.adam(0.1)),
        eqopt.Chain(eqopt.Clip(1e9), from_optax(optax.adam(0.1))),
        {},
    ),
}


@pytest.mark.parametrize("case", FROM_THE_START)
@pytest.mark.costly
def test_as_if_from_the_start(case):
    old, new, take = FROM_THE_START[case]
    params, state = run(old)
    moved = migrate(new, state, params, take=take)
    assert_equal((params, moved), run(new))
    assert_equal(run(new, 1, moved, params, 3), run(new, 4))


def test_a_late_average():
    params, state = run(ADAM)
    for new in (eqopt.ParamEMA(ADAM, 0.5), eqopt.SWA(ADAM, start=1)):
        moved = migrate(new, state, params)
        assert_equal(moved.inner_state, state)
        assert (moved.count, eqopt.tree.step_count(moved)) == (0, 3)
        assert_equal(new.eval_params(moved, params), params)
        after, later = run(new, 1, moved, params, 3)
        assert_equal(after, run(ADAM, 4)[0])
        assert_equal(new.eval_params(later, after), after)
        # Without the average again.
        dropped = type(later)
        assert_equal(migrate(ADAM, later, after, drop=dropped), run(ADAM, 4)[1])


def test_schedules_go_on():
    """Counts that both states have continue; a new count begins at zero."""
    halved = eqopt.Adam(eqopt.schedules.Linear(0.1, 0.0, 10))
    params, state = run(halved)
    moved = migrate(eqopt.Chain(eqopt.Clip(1e9), halved), state, params)
    assert eqopt.tree.get(moved, "ScaleByLearningRateState").count == 3
    new = eqopt.Scheduled(eqopt.Adam(0.1, b1=eqopt.schedules.Linear(0.9, 0.8, 10)))
    moved = migrate(new, state, params)
    assert_equal(moved.inner_state, state)
    assert moved.count == 0
    later, state = run(new, 2, moved, params)
    assert_equal(migrate(new, state, later), state)


def test_only_the_moments():
    params, state = run(eqopt.AdamW(0.1))
    drop = ["ScaleByAdamState.count", eqopt.ScaleByLearningRateState]
    new = eqopt.AdamW(0.01)
    moved = migrate(new, state, params, drop=drop)
    assert_equal((moved[0].mu, moved[0].nu), (state[0].mu, state[0].nu))
    assert moved[0].count == 0
    assert_equal(moved[2], new.init(params)[2])


@pytest.mark.slow
def test_stored_states_are_encoded_and_loaded():
    params, state = run(ADAM)
    moved = migrate(IN_8_BITS, state, params)
    empty = IN_8_BITS.init(params)
    assert jax.tree.structure(moved) == jax.tree.structure(empty)
    # As a step stores it.
    code = empty.inner_state[0].mu["matrix"].store(state[0].mu["matrix"])
    assert_equal(moved.inner_state[0].mu["matrix"], code)
    loaded = migrate(ADAM, moved, params)
    assert_equal(loaded[0].mu["matrix"], code.load())
    assert not eqx.tree_equal(loaded, state)
    assert eqopt.tree.allclose(loaded[0].mu, state[0].mu, atol=0.02)
    # Codes of the same form are not loaded and encoded again.
    new = eqopt.Chain(eqopt.Clip(1.0), IN_8_BITS)
    assert_equal(migrate(new, moved, params)[1], moved)
    fewer = eqopt.StoreState(ADAM, eqopt.storage.BlockwiseQuantized(bits=4), EVERYWHERE)
    assert_equal(
        migrate(fewer, moved, params).inner_state[0].mu["matrix"],
        fewer.init(params).inner_state[0].mu["matrix"].store(code.load()),
    )


def test_a_parameter_more():
    """What the old state lacks is initialised, and the table says so."""
    params, state = run(ADAM)
    grown = {**params, "new": jnp.ones(2)}
    moved = migrate(ADAM, state, grown)
    assert_equal(moved[0].mu, {**state[0].mu, "new": jnp.zeros(2)})
    first, _ = migration_plan(ADAM, state, grown).parts
    assert first.initialised == ("[0].mu['new']", "[0].nu['new']")
    assert str(first) == "taken from [0], except `[0].mu['new']`, `[0].nu['new']`"


@pytest.mark.slow
def test_under_jit():
    params, state = run(ADAM)
    new = eqopt.ParamEMA(eqopt.StoreState(ADAM, CODES, EVERYWHERE))
    drop = ("ScaleByAdamState.nu",)
    eager = migrate(new, state, params, drop=drop)
    compiled = eqx.filter_jit(migrate)(new, state, params, drop=drop)
    assert_equal(compiled, eager)
    abstract = eqx.filter_eval_shape(migrate, new, state, params, drop=drop)
    assert jax.tree.structure(abstract) == jax.tree.structure(eager)


def buffers(tree):
    return {x.unsafe_buffer_pointer() for x in jax.tree.leaves(tree)}


def test_no_buffer_is_shared():
    params, state = run(TWO)
    take = {".inner_states['c']": ".inner_states['b']"}
    of = lambda params, state: migrate(THREE, state, params, take=take)
    for fn in (of, eqx.filter_jit(of)):
        moved = fn(params, state)
        leaves = jax.tree.leaves((moved, state, params))
        assert len(buffers((moved, state, params))) == len(leaves)
        jax.tree.map(lambda x: x.delete(), moved)  # as a step that gets it donated
        assert_equal(state, run(TWO)[1])
    moved = eqx.filter_jit(of, donate="all-except-first")(params, state)
    assert_equal(moved, run(THREE)[1])
    assert any(x.is_deleted() for x in jax.tree.leaves(state))
    assert not any(x.is_deleted() for x in jax.tree.leaves(params))


class AgentState(eqx.Module):
    """A model, in spite of its name."""

    w: jax.Array


def test_a_model_that_is_called_a_state():
    """Its class in the moments is not taken for the state of a transformation."""
    model = {"agent": [AgentState(jnp.ones(3))]}
    _, state = ADAM.step(model, ADAM.init(model), model)
    new = migrate(eqopt.ParamEMA(ADAM), state, model)
    assert_equal(new.inner_state, state)
    assert_equal(new.average, model)


class Own(eqopt.AbstractTransformation):
    """A state of bare arrays: a weak one, a typed key, one of NumPy, and a number."""

    def init(self, params):
        key = jax.random.key(0)
        return {"weak": jnp.array(1.0) * 1, "key": key, "numpy": np.zeros(2), "n": 0}

    def update(self, updates, state, params=None, **extra):
        return updates, state


def test_states_of_users():
    own = Own()
    weak = jnp.array(1.0) * 2
    state = {"weak": weak, "key": jax.random.key(1), "numpy": np.ones(2), "n": 3}
    moved = migrate(eqopt.Chain(own), state, params_of(), take={"[0]": ""})
    assert_equal(moved, (state,))
    strong = {**state, "weak": jnp.array(2.0, jnp.float32)}
    init = own.init(params_of())
    moved = migrate(own, strong, params_of())
    assert jax.typeof(moved["weak"]) == jax.typeof(init["weak"])
    assert moved["weak"] == 2 and moved["n"] == 3


@pytest.mark.slow
def test_sharded_and_padded_states():
    mesh = mesh_of(data=4)
    new = eqopt.ZeRO1(ADAM, mesh=mesh)
    params, state = run(ADAM)
    moved, empty = migrate(new, state, params), new.init(params)
    for x, y in zip(jax.tree.leaves(moved), jax.tree.leaves(empty), strict=True):
        assert (x.shape, x.sharding) == (y.shape, y.sharding)
    assert moved.inner_state[0].mu["matrix"].shape != params["matrix"].shape
    again = migrate(ADAM, moved, params)
    assert_equal(jax.device_get(again), jax.device_get(state))
    table = migration_plan(new, state, params)
    assert [part.taken_from for part in table.parts] == ["[0]", "[1]"]


def test_zero1_inside_jit():
    """Each array is divided as by `init`, and whole again afterwards."""
    mesh = mesh_of(data=8)
    params = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, jax.P()))
    state = ADAM.init(params)
    for new, spec in ((eqopt.ZeRO1(ADAM, mesh=mesh), jax.P("data")), (ADAM, jax.P())):
        state = jax.jit(lambda old, p, new=new: migrate(new, old, p))(state, params)
        assert eqopt.tree.get(state, "mu").sharding.spec == spec
