"""`eqopt.tree.migrate` over the registry: no state loses a bit, or its place."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt
from eqopt.groups import everything
from eqopt.tree import migrate, migration_plan

from ..meshes import entered, mesh_of
from .registry import KINDS, law
from .subjects import arrays, moment, params_of


def assert_identical(new, old):
    assert jax.tree.structure(new) == jax.tree.structure(old)
    for x, y in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        assert x.tobytes() == y.tobytes()


@law()
@pytest.mark.costly
def test_the_same_optimizer_gets_the_same_state(row):
    opt = row()
    params, state = moment(row, 2)
    assert_identical(migrate(opt, state, params), state)
    plan = migration_plan(opt, eqx.filter_eval_shape(opt.init, params), params)
    assert all(part.taken_from == part.path for part in plan.parts)
    assert not any(part.initialised for part in plan.parts) and not plan.dropped


@law((), KINDS)
def test_a_chain_takes_the_whole_state(row):
    """At other positions, nothing is initialised, or an error asks for the positions."""
    opt = eqopt.Chain(eqopt.Clip(jnp.inf), row())
    params, state = moment(row, 2)
    new = migrate(opt, state, params, take={"[1]": ""} if has_values(state) else {})
    assert_identical(new, (None, state))
    try:
        guessed = migrate(opt, state, params)
    except ValueError as error:
        assert "take={" in str(error)
    else:
        assert_identical(guessed, new)


def has_values(state):
    return bool(jax.tree.leaves(state))


def assert_same_places(new, old):
    for x, y in zip(arrays(new), arrays(old), strict=True):
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim), (x.sharding, y.sharding)


@law((), KINDS)
def test_inside_jit_init_says_where_arrays_are(row):
    """Also for arrays of NumPy, such as a checkpoint has."""
    mesh = mesh_of(x=3)
    place = lambda p: jax.device_put(p, NamedSharding(mesh, P("x") if p.ndim else P()))
    opt, params = row(), jax.tree.map(place, params_of())
    state = eqx.filter_jit(opt.init)(params)
    restored = jax.tree.map(lambda x: np.asarray(x) if is_plain(x) else x, state)
    moved = eqx.filter_jit(migrate)(opt, restored, params)
    assert_same_places(moved, state)


def is_plain(x):
    return eqx.is_array(x) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


SHAPES = {"a": (16, 8), "b": (16, 8), "layers": (16, 8, 8), "bias": (16,), "few": (3,)}
# A mesh, and how the parameters are divided over it.
LAYOUTS = {
    "replicated": (mesh_of, {"data": 8}, P()),
    "FSDP": (mesh_of, {"data": 8}, P("data")),
    "rows": (mesh_of, {"data": 4, "model": 2}, P("model")),
    "explicit": (functools.partial(mesh_of, AxisType.Explicit), {"data": 8}, P("data")),
}


def numbers(params):
    matrix = eqopt.MatrixDimensionNumbers(-2, -1)
    return jax.tree.map(lambda p: None if p.ndim == 1 else matrix, params)


ADAM = eqopt.AdamW(0.1)
EMA = eqopt.ParamEMA
MUON, SOAP = (
    x(0.1, weight_dimension_numbers=numbers) for x in (eqopt.Muon, eqopt.SOAP)
)
BYTES = eqopt.StoreState(ADAM, eqopt.storage.BlockwiseQuantized(8, 8), everything)
ON_HOST = functools.partial(eqopt.Offload, min_size=1)
# The old and the new optimizer, or the other way round, given `ZeRO1` and
# `DistributeMatrices` on a mesh.
PAIRS = {
    "ZeRO1": lambda zero1, _: (ADAM, zero1(ADAM)),
    "both": lambda zero1, _: (zero1(ADAM), zero1(eqopt.Chain(eqopt.Clip(1.0), ADAM))),
    "8 bits": lambda zero1, _: (BYTES, zero1(BYTES)),
    "average": lambda zero1, _: (EMA(zero1(ADAM)), zero1(EMA(ADAM))),
    "host": lambda zero1, _: (ON_HOST(ADAM), ON_HOST(zero1(ADAM))),
    "Muon": lambda _, matrices: (MUON, matrices(MUON)),
    "SOAP": lambda _, matrices: (SOAP, matrices(SOAP)),
    "SOAP, ZeRO1": lambda zero1, matrices: (SOAP, zero1(matrices(SOAP))),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pair", PAIRS)
def test_inside_jit_as_outside(pair, layout):
    """Arrays that wrappers divide: the same values, where `init` of the new one is."""
    make, axes, spec = LAYOUTS[layout]
    mesh = make(**axes)
    on_mesh = [
        functools.partial(cls, mesh=None if mesh.explicit_axes else mesh)
        for cls in (eqopt.ZeRO1, eqopt.DistributeMatrices)
    ]
    place = lambda x: NamedSharding(mesh, P() if x.size == 3 else spec)
    params = {key: jnp.ones(shape) for key, shape in SHAPES.items()}
    pair = PAIRS[pair](*on_mesh)
    with entered(mesh):
        params = {key: jax.device_put(p, place(p)) for key, p in params.items()}
        empty = [jax.jit(opt.init)(params) for opt in pair]
        for opt, like, old in zip(pair, empty, reversed(empty), strict=True):
            move = functools.partial(migrate, opt)
            old = jax.tree.map(filled, old)
            moved = jax.jit(move)(old, params)
            assert_same_places(moved, like)
            expected = jax.device_get(move(old, params))
            for x, y in zip(arrays(moved), arrays(expected), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-6)


def filled(x):
    """Other values in the same place."""
    new = np.arange(x.size).reshape(x.shape) % 7 if x.ndim else x
    return jax.device_put(np.asarray(new, x.dtype), x.sharding)
