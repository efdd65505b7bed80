"""No noise is repeated: not in another step, leaf, group or wrapper."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import eqopt
from eqopt import AbstractTransformation
from eqopt._trees.keys import keep_keys

from ..interpreter import interpreted
from ..meshes import mesh_of
from .registry import REGISTRY
from .subjects import params_of
from .test_eval_params import BY_LEAF, LABELS
from .test_pairs import WRAPPERS


class Watched(AbstractTransformation):
    """Returns the updates of `inner`, and shows them to `see`."""

    inner: AbstractTransformation
    see: Any

    def init(self, params):
        return self.inner.init(params)

    def update(self, updates, state, params=None, **extra):
        updates, state = self.inner.update(updates, state, params, **extra)
        jax.debug.callback(self.see, jax.tree.leaves(updates))
        return updates, state


NOISE = {
    "AddNoise": lambda: eqopt.AddNoise(1.0, 0.0, key=0),
    "AddCorrelatedNoise": lambda: eqopt.AddCorrelatedNoise(1.0, (1.0, 0.5), key=0),
    "DifferentiallyPrivateAggregate": lambda: eqopt.DifferentiallyPrivateAggregate(
        1.0, 1.0, key=0, batch_size=1, clipped=True
    ),
}
OTHERS = {
    "alone": lambda opt: opt,
    "Lookahead(reset)": lambda opt: eqopt.Lookahead(opt, 2, 0.5, reset_state=True),
    "SAM(adversary)": lambda opt: eqopt.SAM(eqopt.SGD(0.1), opt, 3, True),
    "SAM(opaque)": lambda opt: eqopt.SAM(eqopt.SGD(0.1), opt, 3, True, True),
}
ALL = WRAPPERS | OTHERS
# Only leaves of one shape could get the same noise, and one shape compiles faster.
LIKE = {"matrix": jnp.zeros(3), "more": [jnp.zeros(3), None, {"scalar": jnp.zeros(3)}]}


def check_no_noise_comes_twice(opt, seen, params=LIKE, calls=5):
    zeros = jax.tree.map(jnp.zeros_like, params)
    call = interpreted(
        lambda state, params: opt.step(
            zeros, state, params, value=jnp.ones(()), grad_fn=lambda _: zeros
        )
    )
    state = opt.init(params)
    for _ in range(calls):
        params, state = call(state, params)
    jax.effects_barrier()
    numbers = np.concatenate([np.ravel(x) for leaves in seen for x in leaves])
    assert len(seen) > 1
    assert len(np.unique(numbers)) == len(numbers)


# The quick set has the cases in which groups or steps could get the same noise.
TELLING = "alone", "Lookahead(reset)", "Flatten"


def cases():
    found = []
    for name in ALL:
        marks = [] if name in TELLING else [pytest.mark.slow]
        kinds = NOISE if name in TELLING else ["AddNoise"]
        found += [pytest.param(name, kind, marks=marks) for kind in kinds]
    return found


@pytest.mark.parametrize(("name", "noise"), cases())
@pytest.mark.costly
def test_each_step_leaf_and_group_has_noise_of_its_own(name, noise):
    """Also groups whose transformations have the same seed."""
    seen = []
    part = lambda: ALL[name](Watched(NOISE[noise](), seen.append))
    if name in BY_LEAF:
        return check_no_noise_comes_twice(part(), seen)
    opt = eqopt.Partition({"a": part(), "b": part()}, LABELS)
    return check_no_noise_comes_twice(opt, seen)


@pytest.mark.parametrize(
    "wrap", [lambda opt: opt, eqopt.Chain, eqopt.Flatten, eqopt.SplitRealAndImaginary]
)
@pytest.mark.costly
def test_masked_parts_with_one_seed(wrap):
    """With complex and real parameters, so that pairs and single arrays mix."""
    seen, like = [], {"a": jnp.zeros(2, jnp.complex64), "b": jnp.zeros(3), "c": None}
    like = {**like, "c": jnp.ones(2, jnp.complex64), "d": jnp.ones(4)}
    part = lambda: wrap(Watched(NOISE["AddNoise"](), seen.append))
    masks = [{"a": i == 0, "b": i == 1, "c": i == 1, "d": i == 0} for i in range(2)]
    opt = eqopt.Chain(*(eqopt.Masked(part(), mask) for mask in masks))
    zeros = jax.tree.map(jnp.zeros_like, like)
    opt.update(zeros, opt.init(like), like)
    jax.effects_barrier()
    numbers = np.concatenate([np.ravel(x) for leaves in seen for x in leaves])
    # Flatten joins real and complex leaves, and drops imaginary parts again.
    numbers = np.concatenate([numbers.real, numbers.imag])
    numbers = numbers[numbers != 0]
    assert len(np.unique(numbers)) == len(numbers) >= 11


# They draw directions, not noise, from a key, and some from the step. After a restart
# they may draw the same ones again, just as gradients may repeat.
DIRECTIONS = eqopt.APOLLO, eqopt.ScaleByAPOLLO, eqopt.compression.PowerSGD
# Its keys belong to attention.
NOT_RANDOM = (eqopt.QKClip,)


def parts_with_keys(opt):
    nodes = []
    jax.tree.leaves(opt, is_leaf=lambda x: nodes.append(x) or False)
    return [x for x in nodes if hasattr(x, "key")]


def draws_noise(opt):
    others = DIRECTIONS + NOT_RANDOM
    return any(not isinstance(x, others) for x in parts_with_keys(opt))


def keys_in(state):
    leaves = jax.tree.leaves(state)
    return [np.ravel(x) for x in leaves if eqx.is_array(x) and x.dtype == jnp.uint32]


def test_restarts_find_the_keys_of_every_state():
    params, found = params_of(), 0
    for row in REGISTRY:
        opt = row()
        if draws_noise(opt):
            found += 1
            state = opt.init(params)
            later = jax.tree.map(lambda x: x + 1 if eqx.is_array(x) else x, state)
            kept = keep_keys(state, later)
            assert keys_in(kept)
            assert all(map(np.array_equal, keys_in(kept), keys_in(later)))
            assert keys_in(kept)[0][0] != keys_in(state)[0][0]
    assert found > 4


def with_key(opt, key):
    fields = lambda x: getattr(type(x), "__dataclass_fields__", ())
    return jax.tree.map(
        lambda x: eqx.tree_at(lambda x: x.key, x, key) if "key" in fields(x) else x,
        opt,
        is_leaf=lambda x: "key" in fields(x),
    )


KEYS = {
    "keys": lambda: jr.split(jr.key(1), 3),
    "seeds": lambda: jnp.arange(3),
    "bits": lambda: jr.split(jr.PRNGKey(1), 3),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.costly
def test_each_member_of_a_population_has_its_own_key(kind):
    """A key is data. With one key for all, members have equal noise, as in Optax."""
    params, found, keys = params_of(), 0, KEYS[kind]()
    for row in REGISTRY:
        opt = row()
        if draws_noise(opt):
            found += 1
            init = lambda key, opt=opt: with_key(opt, key).init(params)
            members = keys_in(eqx.filter_vmap(init)(keys))
            assert members, row.name
            for i, key in enumerate(keys):
                for bits, alone in zip(members, keys_in(init(key)), strict=True):
                    assert np.array_equal(np.split(bits, 3)[i], alone), row.name
            assert all(len({*map(bytes, np.split(x, 3))}) == 3 for x in members)
    assert found > 4


@pytest.mark.parametrize("noise", [*NOISE, "random_like"])
@pytest.mark.slow
def test_each_shard_has_its_own_noise(noise):
    """Inside `jax.shard_map`, too, and what is the same on all devices stays the same."""
    key = jr.PRNGKey(1)
    params = {
        "shards": jnp.zeros((4, 6)),
        "whole": jnp.zeros(6),
        "halves": jnp.zeros(6),
    }
    specs = {"shards": P(("x", "y")), "whole": P(), "halves": P("y")}

    def draw(params, key):
        if noise == "random_like":
            return eqopt.tree.random_like(key, params)
        opt = with_key(NOISE[noise](), key)
        return opt.update(params, opt.init(params), params)[0]

    found = jax.jit(
        jax.shard_map(
            draw, mesh=mesh_of(x=2, y=2), in_specs=(specs, P()), out_specs=specs
        )
    )(params, key)
    numbers = np.concatenate([np.ravel(x) for x in jax.tree.leaves(found)])
    assert len(np.unique(numbers)) == 24 + 6 + 6
    np.testing.assert_allclose(found["whole"], draw(params, key)["whole"], rtol=1e-6)


@pytest.mark.slow
def test_no_other_array_has_the_dtype_of_keys():
    params = params_of()
    for row in REGISTRY:
        opt = row()
        state = eqx.filter_eval_shape(opt.init, params)
        dtypes = {x.dtype for x in jax.tree.leaves(state) if hasattr(x, "dtype")}
        assert parts_with_keys(opt) or jnp.dtype(jnp.uint32) not in dtypes, row.name


def test_typed_keys_of_users_survive_a_restart():
    class Own(AbstractTransformation):
        def init(self, params):
            return {"key": jax.random.key(3), "count": jnp.zeros(())}

        def update(self, updates, state, params=None, **extra):
            key, _ = jax.random.split(state["key"])
            return updates, {"key": key, "count": state["count"] + 1}

    opt, params = eqopt.Lookahead(Own(), 1, 0.5, reset_state=True), jnp.zeros(2)
    first = opt.init(params)
    _, state = opt.step(params, first, params)
    assert state.fast_state["count"] == 0
    assert state.fast_state["key"] != first.fast_state["key"]
