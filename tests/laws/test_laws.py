"""One test per law, for every transformation in the registry.

These laws are about several transformations or devices, or transformations of users need
not obey them. `test_shipped.py` tests the laws of `eqopt.testing`.

Compiling would take nearly all of the time. So laws about types only trace, laws about
results compare with one `trail` of moments in training, and programs are `interpreted`.
Only the laws about the compiler compile: shards, and steps outside `jit`.
"""

import contextlib
import dataclasses
import re
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jax.tree_util import keystr, tree_leaves_with_path, tree_map_with_path

import eqopt
from eqopt._arguments.annotations import parts_of
from eqopt._arguments.checks import hyperparameters
from eqopt._types import ScalarOrSchedule
from eqopt.testing._check import check
from eqopt.testing._trial import Trial, traces

from ..meshes import mesh_of
from .registry import (
    EVERY,
    KINDS,
    REGISTRY,
    TELLING,
    concrete_transformations,
    law as of_rows,
)
from .subjects import (
    all_finite,
    arrays,
    assert_close,
    avals,
    awkward,
    both,
    grads_of,
    moment,
    params_of,
    step,
    train,
)


# Some of their slots have other shapes than the parameters.
OWN_SHAPES = {
    *("ScaleByAdamMini", "ScaleByFactoredRMS", "ScaleByPSGDKron", "ScaleBySM3"),
    *("ScaleBySOAP", "ScaleByShampoo", "ScaleByCAME", "ScaleByAPOLLO"),
}

# The quick set tests a few building blocks, but not these laws: they take long, or
# usually fail only if another law fails, too.
LONG_TAIL = {
    "test_complex_parameters",
    "test_float64",
    "test_no_float64_leaks",
    "test_without_jit_and_with_debug_nans",
}


def law(test):
    return of_rows(() if test.__name__ in LONG_TAIL else TELLING)(test)


def test_every_transformation_is_in_the_registry():
    seen = set()

    def visit(node):
        seen.add(type(node))
        return False

    for row in REGISTRY:
        jax.tree.leaves(row(), is_leaf=visit)
    # `StoreParams` needs parameters in half precision: `test_stored` tests its laws.
    assert concrete_transformations() - {eqopt.StoreParams} <= seen


@law
@pytest.mark.usefixtures("uncompiled")
def test_complex_parameters(row):
    """Laws 1 and 2, in complex64."""
    check(Trial(row(), params_of(jnp.complex64)), ["updates", "state"])


def strong(v):
    """A hyperparameter as an array without a weak type, like an argument of `jit`."""
    return jnp.asarray(v, jnp.float32)


def rows_with_others():
    """Of the rows of each class, those that give a value for another hyperparameter."""
    seen = set()
    for row in REGISTRY:
        places = {(row.subject, name) for name in row.data}
        if not places <= seen:
            yield row.name
        seen |= places


@of_rows((), {*rows_with_others()})
def test_hyperparameters_take_schedules(row):
    """Law 3: `Scheduled` gives the same as changing the numbers by hand."""
    types = {x.name: parts_of(x.type)[0] for x in dataclasses.fields(row.subject)}
    either = [*typing.get_args(ScalarOrSchedule)]
    by_themselves = {name for name, parts in types.items() if parts == either}
    takes = by_themselves.union(hyperparameters(row.subject))
    at = lambda v, count: strong(v) * (1 - 0.1 * jnp.asarray(count, jnp.float32))
    data = {k: strong(v) for k, v in row.data.items()}
    schedules = {k: lambda count, v=v: at(v, count) for k, v in data.items()}
    schedules = {k: v for k, v in schedules.items() if k in takes}
    params = params_of()
    scheduled = train(eqopt.Scheduled(row(**{**data, **schedules})), params, 2)[0]
    state = row(**{**data, **{k: at(data[k], 0) for k in schedules}}).init(params)
    for i in range(2):
        opt = row(**{**data, **{k: at(data[k], i) for k in schedules}})
        params, state = step(opt, grads_of(params, i), state, params)
    assert_close(scheduled, params, 1e-5, 1e-6)


@of_rows(TELLING, EVERY)
@pytest.mark.costly
def test_equal_optimizers_share_a_trace(row):
    """Law 3: two equal optimizers are equal, hash equal, and share one trace."""
    one, other = row(), row()
    assert one == other
    assert hash(one) == hash(other)
    params, state = moment(row, 0)
    both(one, grads_of(params, 0), state, params)
    traces_before = traces["both"]
    both(other, grads_of(params, 0), other.init(params), params)
    assert traces["both"] == traces_before


@of_rows((), KINDS)
@pytest.mark.usefixtures("uncompiled")
def test_whole_models(row):
    """Law 4: whole models go in, and only their parameters change."""
    check(Trial(row(), awkward()), ["updates", "eval_params", "untrained"])


@law
def test_no_float64_leaks(row, x64):
    """Law 5: float32 stays float32 when x64 is on."""
    opt = row()

    def call(grads, params):
        state = opt.init(params)
        args = grads, state, params
        return state, opt.update(*args), opt.step(*args)

    with x64():
        params = params_of()
        shapes = eqx.filter_eval_shape(call, grads_of(params, 0), params)
    init, (_, updated), (_, stepped) = shapes
    assert avals(init) == avals(updated) == avals(stepped)
    leaves = jax.tree.leaves(shapes)
    assert not [x for x in leaves if getattr(x, "dtype", None) == "float64"]


@law
def test_float64(row, x64):
    """Law 5: float64 parameters are computed in float64."""
    narrow = moment(row, 3)[0]
    with x64():
        params = params_of(jnp.float64)
        wide = train(row(), params, 3)[0]
        assert all(x.dtype == "float64" for x in arrays(wide))
    assert_close(wide, narrow, 1e-3, 1e-4)


@law
@pytest.mark.costly
def test_a_nan_that_is_left_out_leaves_no_trace(row):
    """Law 6: after a NaN is skipped, all is as if it had never occurred."""
    params = params_of()
    guarded = eqopt.MultiSteps(eqopt.ApplyIfFinite(row(), 2), 2)

    def grads(params, i):
        tree = grads_of(params, i)
        bad = np.array(tree["matrix"])
        bad[0, 0] = np.nan
        return {**tree, "matrix": jnp.asarray(bad)} if i == 0 else tree

    disturbed, state = train(guarded, params, 4, grads=grads)
    later = lambda params, i: grads_of(params, i + 2)
    expected, expected_state = train(guarded, params, 2, grads=later)
    assert_close(disturbed, expected)
    inner, expected_inner = (s.inner_state.inner_state for s in (state, expected_state))
    assert_close(inner, expected_inner)
    assert all_finite((disturbed, state))


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


@of_rows((), KINDS | OWN_SHAPES)
@pytest.mark.costly
def test_state_is_sharded_like_parameters(row):
    """Law 7: on several devices, also when `init` is compiled on an automatic mesh."""
    # As many devices as rows of the matrix. Results on one device are known already.
    mesh = Mesh(np.array(jax.devices()[:3]), ("x",))
    split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())

    def is_split(path, x):
        is_parameter = {"'matrix'", "'more'"} & set(re.split(r"[][]", keystr(path)))
        return bool(is_parameter) and x.shape in {(3, 2), (3,)}

    def place(tree):
        put = lambda path, x: jax.device_put(x, split if is_split(path, x) else whole)
        return tree_map_with_path(put, tree)

    def check(tree):
        for path, x in tree_leaves_with_path(tree):
            if is_split(path, x):
                in_memory = split.with_memory_kind(x.sharding.memory_kind)
                assert x.sharding.is_equivalent_to(in_memory, x.ndim), x.sharding

    opt, params = row(), place(params_of())
    in_blocks = eqopt.storage.BlockwiseQuantized(block_size=2)
    stored = eqopt.StoreState(opt, in_blocks, eqopt.groups.everything)
    # Each code is where the number that it encodes is.
    compiled, codes = jax.jit(lambda p: (opt.init(p), stored.init(p)))(params)
    check(codes)
    step = jax.jit(opt.step)
    for state in (opt.init(params), compiled):
        check(state)
        assert all(len(x.sharding.device_set) == 3 for x in arrays(state))
        state = jax.tree.map(
            lambda x, y: jax.device_put(x, y.sharding), state, compiled
        )
        placed = params
        for i in range(2):
            placed, state = step(place(grads_of(params, i)), state, place(placed))
            check((placed, state))
            # Other arrays may be anywhere, but stay there: the next step is the same
            # program.
            for x, y in zip(arrays(state), arrays(compiled), strict=True):
                assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        assert_close(jax.device_put((placed, state), whole), moment(row, 2))


@of_rows(TELLING, KINDS)
@pytest.mark.costly
@pytest.mark.parametrize("is_set", [True, False], ids=["set", "not set"])
def test_a_compiled_init_on_explicit_axes(row, is_set):
    """Law 7: `jax.jit(opt.init)` for parameters on a mesh of `jax.make_mesh`."""
    mesh = mesh_of(AxisType.Explicit, x=3)
    split = NamedSharding(mesh, P("x"))
    in_blocks = eqopt.storage.BlockwiseQuantized(block_size=2)
    stored = eqopt.StoreState(row(), in_blocks, eqopt.groups.everything)
    init = jax.jit(lambda p: (row().init(p), stored.init(p)))
    params = jax.device_put(params_of(), NamedSharding(mesh, P()))
    params["matrix"] = jax.device_put(params["matrix"], split)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        states = init(params)
    for path, x in tree_leaves_with_path(states):
        assert len(x.sharding.device_set) == 3, keystr(path)
        if "matrix" in keystr(path) and x.shape == (3, 2):
            assert x.sharding.is_equivalent_to(split, 2), keystr(path)


def test_a_parameter_with_the_shape_of_a_key():
    """Counts and the words of a key are not made from it, and are on all devices."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    params = {"w": jnp.ones((2, 4)), "b": jnp.ones(2)}
    params = jax.device_put(params, NamedSharding(mesh, P()))
    state = jax.jit(eqopt.AddNoise(0.1, 0.1, 0).init)(params)
    assert {x.shape for x in arrays(state)} >= {(), (2,)}
    assert all(len(x.sharding.device_set) == 2 for x in arrays(state))
