"""`eqopt.tree` over the registry: `map_params`, `step_count` and `migrate`."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt
from eqopt import AbstractOptimizer
from eqopt.groups import everything
from eqopt.tree import map_params, migrate, migration_plan

from ..meshes import entered, mesh_of
from .registry import KINDS, REGISTRY, TELLING, law
from .subjects import arrays, awkward, moment, params_of, train


# Rows whose parameters cannot be inferred from only the state: it has accumulators by
# axis or sums over rows and columns alone, moments of projections, or one vector.
NOT_INFERRED = {
    *("ScaleBySM3(no momentum)", "SM3(schedule, matrices)", "Adafactor"),
    *("ScaleByFactoredRMS(small)", "ScaleByFactoredRMS(dimension numbers)"),
    *("GaLore", "APOLLO", "ScaleByAPOLLO", "ScaleByAPOLLO(singular vectors)"),
    *("ScaleByAPOLLO(scaled before the limit)", "Flatten(nested)"),
}

# Rows whose state does not declare `PerLeaf`: a number for each parameter then stands
# for a scalar parameter.
BY_SHAPE = {"AdamMini"}
# The same, without any tree like the parameters: what is inferred is something else.
ONLY_OTHERS = {"Monitor", "ScaleByGaLore", "SinkGD(width rule)"}

# By path in `params_of`: the shape there, and another one with as many axes.
PLACES = {
    "['matrix']": ((3, 2), (5, 7)),
    "['more'][0]": ((3,), (11,)),
    "['more'][2]['scalar']": ((), ()),
}


def larger():
    shapes = iter(other for _, other in PLACES.values())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(next(shapes), x.dtype), params_of()
    )


def by_path(state):
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): x for path, x in leaves}


@functools.lru_cache(maxsize=1)
def expected_of(row):
    """The paths of the leaves that stand for parameters, by their paths and shapes.

    A leaf stands for a scalar parameter if it is a vector when the parameter is one. No
    part of a tuple, such as factors, stands for a parameter.
    """
    opt, params = row(), params_of()
    here, there = (
        by_path(eqx.filter_eval_shape(opt.init, p)) for p in (params, larger())
    )
    vector = eqx.tree_at(
        lambda p: p["more"][2]["scalar"], params, jax.ShapeDtypeStruct((2,), "float32")
    )
    grown = by_path(eqx.filter_eval_shape(opt.init, vector))
    return {
        path
        for path, x in here.items()
        for key, (shape, other) in PLACES.items()
        if key in path
        and x.shape == shape
        and not path.rpartition(key)[2].startswith("[")
        and there[path].shape == other
        and (shape != () or grown[path].shape == (2,))
    }


@functools.lru_cache(maxsize=1)
def found_with_params(row):
    return found(row(), params_of(), params=params_of())


def found(opt, model, **given):
    state = eqx.filter_eval_shape(opt.init, model)
    marked = map_params(
        opt,
        lambda x, p: p.shape == x.shape,
        state,
        model,
        transform_non_params=lambda x: None,
        **given,
    )
    marks = by_path(marked)
    assert all(mark is True for mark in marks.values())
    return set(marks)


@law()
def test_parameters_are_found(row):
    assert agree(row, found_with_params(row))


def agree(row, paths):
    expected = expected_of(row)
    return paths >= expected if row.name in BY_SHAPE else paths == expected


@law(TELLING)
def test_a_square_matrix(row):
    """Its factors, which have its shape, do not stand for it."""
    square = params_of() | {"matrix": jnp.ones((3, 3))}
    assert found(row(), square, params=square) == found_with_params(row)


IN_BLOCKS = eqopt.groups.matrices(eqopt.groups.path("more"), 0, 1, output_blocks=(5, 1))


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.ScaleBySOAP(one_sided=True),
        eqopt.ScaleByShampoo(one_sided=True),
        eqopt.ScaleBySOAP(max_precond_dim=4),
        eqopt.ScaleBySOAP(max_precond_dim=5),
        eqopt.ScaleBySOAP(weight_dimension_numbers=IN_BLOCKS),
    ],
)
@pytest.mark.costly
def test_no_factor_stands_for_a_square_matrix(opt):
    """Whichever side has one, at the limit of sizes, and next to given blocks."""
    params = {"square": jnp.ones((4, 4)), "more": jnp.ones((4, 6))}
    own = {f".{slot}['{name}']" for slot in ("mu", "nu") for name in params}
    state = opt.init(params)
    expected = {path for path in by_path(state) if path in own}
    assert found(opt, params, params=params) == expected


@pytest.mark.slow
@law()
def test_parameters_are_inferred(row):
    """They are inferred from only the state, or `map_params` raises an error."""
    if row.name in ONLY_OTHERS:
        pytest.skip("its trees have other shapes, and do not say so")
    if row.name in NOT_INFERRED:
        with pytest.raises(ValueError, match="params=model"):
            found(row(), params_of())
        return
    assert agree(row, found(row(), params_of()))


@pytest.mark.slow
@law()
def test_in_whole_models(row):
    """Each leaf is paired with the parameter that has its shape."""
    opt, model = row(), awkward()
    state = eqx.filter_eval_shape(opt.init, model)
    shapes = []
    meet = lambda x, p: shapes.append((x.shape, p.shape))
    map_params(opt, meet, state, model, params=model)
    assert all(ours == theirs for ours, theirs in shapes)
    assert bool(shapes) == bool(found_with_params(row))


OPTIMIZERS = [row for row in REGISTRY if issubclass(row.subject, AbstractOptimizer)]


@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
@pytest.mark.costly
def test_every_optimizer_counts(row):
    """And a count that is set leaves the kind of the state as it is."""

    def states():
        state = row().init(params_of())
        changed = eqopt.tree.set(state, all=True, count=3)
        return state, changed, eqopt.tree.step_count(state)

    state, changed, count = jax.eval_shape(states)
    assert (count.shape, count.dtype) == ((), jnp.int32)
    assert changed == state


@pytest.mark.slow
@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
def test_counts_are_right(row):
    _, state = train(row(), params_of(), 3)
    assert eqopt.tree.step_count(state) == 3


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
LAYOUTS = [
    (mesh_of, {"data": 8}, P()),
    (mesh_of, {"data": 4, "model": 2}, P("model")),
    (functools.partial(mesh_of, AxisType.Explicit), {"data": 8}, P("data")),
]


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
@pytest.mark.parametrize("pair", PAIRS)
def test_inside_jit_as_outside(pair):
    """Arrays that wrappers divide: the same values, where `init` of the new one is."""
    outside = {}  # the values depend on the number of devices only, not on places
    for make, axes, spec in LAYOUTS:
        mesh = make(**axes)
        on_mesh = [
            functools.partial(cls, mesh=None if mesh.explicit_axes else mesh)
            for cls in (eqopt.ZeRO1, eqopt.DistributeMatrices)
        ]
        place = lambda x, to=(mesh, spec): NamedSharding(
            to[0], P() if x.size == 3 else to[1]
        )
        params = {key: jnp.ones(shape) for key, shape in SHAPES.items()}
        opts = PAIRS[pair](*on_mesh)
        with entered(mesh):
            params = {key: jax.device_put(p, place(p)) for key, p in params.items()}
            empty = [jax.jit(opt.init)(params) for opt in opts]
            for i, (opt, old) in enumerate(zip(opts, reversed(empty), strict=True)):
                move = functools.partial(migrate, opt)
                old = jax.tree.map(filled, old)
                moved = jax.jit(move)(old, params)
                assert_same_places(moved, empty[i])
                if (case := (i, axes["data"])) not in outside:
                    outside[case] = jax.device_get(move(old, params))
                for x, y in zip(arrays(moved), arrays(outside[case]), strict=True):
                    np.testing.assert_allclose(x, y, rtol=1e-6)


def filled(x):
    """Other values in the same place."""
    new = np.arange(x.size).reshape(x.shape) % 7 if x.ndim else x
    return jax.device_put(np.asarray(new, x.dtype), x.sharding)
