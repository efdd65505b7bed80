"""The laws on 8 devices: explicit axes, `shard_map`, and several layouts at once."""

import contextlib
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.scaling.collectives import collectives
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt

from ..meshes import mesh_of
from .registry import REGISTRY, TELLING, law
from .subjects import arrays, assert_close, normal


pytestmark = pytest.mark.slow


# Rows that also take their steps inside `shard_map`. For others, types are enough.
RUN_TOO = {"ScaleByAdam", "ClipByGlobalNorm"}

# Each leaf has its own layout, and a size that differs from all other leaves.
LAYOUT = {
    "rows": ((128, 3), P("x", None)),
    "columns": ((3, 256), P(None, "x")),
    "whole": ((5, 7), P(None, None)),
    "vector": ((256,), P("x")),
}
SMALLEST_SPLIT = 4 * 256  # bytes of the smallest leaf that is sharded


def shardings(mesh):
    return {k: NamedSharding(mesh, spec) for k, (_, spec) in LAYOUT.items()}


def values(seed=0):
    shapes = [shape for shape, _ in LAYOUT.values()]
    leaves = normal(seed, shapes, len(shapes) * [jnp.float32])
    return dict(zip(LAYOUT, leaves, strict=True))


def two_steps(opt, params, grads):
    """The parameters after two steps, and the state before, between and after them."""
    states = [opt.init(params)]
    for _ in range(2):
        params, state = opt.step(grads, states[-1], params)
        states.append(state)
    return params, states


def stands_for(path, x):
    """The parameter to which a leaf of the state belongs, by path and shape."""
    for name, (shape, _) in LAYOUT.items():
        if f"'{name}'" in jax.tree_util.keystr(path) and x.shape == shape:
            return name
    return None


def types(like):
    """Parameters with these shardings, without values."""
    return {
        k: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=like[k])
        for k, (shape, _) in LAYOUT.items()
    }


@law()
def test_explicit_axes(row):
    """State and parameters keep the explicit sharding of the parameters."""
    mesh = mesh_of(AxisType.Explicit, x=8)
    like = shardings(mesh)
    given = types(like)
    with jax.set_mesh(mesh):
        # Explicit axes are part of the types, so nothing needs to be compiled.
        result = eqx.filter_eval_shape(
            functools.partial(two_steps, row()), given, given
        )
    for path, x in jax.tree_util.tree_leaves_with_path(result):
        name = hasattr(x, "shape") and stands_for(path, x)
        if name:
            assert x.sharding.spec == like[name].spec, jax.tree_util.keystr(path)


# Rows with operations for which JAX needs to know the sharding of the results.
ASKED = {"AdaptiveGradClip", "Flatten(nested)", "Muon", "ScaleByGaLore"}
ASKED |= {"Shampoo", "NorMuon", "Dion2"}
ON_ARRAYS_ALONE = {"AdaMuon", "Aurora", "Scion", "PSGDKron", "KLShampoo", "APOLLO"}
ON_ARRAYS_ALONE |= {"SinkGD", "SCALE(last layer)", "SOAP", "SOAPMuon"}
ON_ARRAYS_ALONE |= {"ScaleBySOAP(one-sided, KL, staggered)"}
# Of these, results are compared, too. For others, types are enough, without compiling.
COMPUTED = {"AdaptiveGradClip", "Flatten(nested)", "Muon", "NorMuon", "Dion2"}


@law(names=ASKED)
def test_results_on_explicit_axes(row):
    check_explicit_axes(row, in_use=True)


@law(names=ASKED | ON_ARRAYS_ALONE)
def test_results_on_arrays_alone(row):
    """Without `jax.set_mesh`, only the arrays say that their axes are explicit."""
    check_explicit_axes(row, in_use=False)


def check_explicit_axes(row, in_use):
    mesh = mesh_of(AxisType.Explicit, x=8)
    params, grads = values(), values(1)
    run = jax.jit(lambda params, grads: two_steps(row(), params, grads)[0])
    is_computed = row.name in COMPUTED
    with jax.set_mesh(mesh) if in_use else contextlib.nullcontext():
        given = jax.device_put((params, grads), (shardings(mesh),) * 2)
        result = run(*given) if is_computed else jax.eval_shape(run, *given)
    for name, x in result.items():
        assert x.sharding.spec == LAYOUT[name][1], name
    if is_computed:
        expected = alone(row, params, grads)
        assert_close(jax.device_get(result), jax.device_get(expected), atol=3e-6)


@law()
def test_inside_shard_map(row):
    """Data parallelism by hand: JAX checks that all devices get the same result."""

    def work(params, x):
        grads = jax.tree.map(lambda p: jax.lax.pmean(p * x[0], "x"), params)
        return eqx.filter(two_steps(row(), params, grads), eqx.is_array)

    mapped = jax.shard_map(
        work, mesh=mesh_of(AxisType.Auto, x=8), in_specs=(P(), P("x")), out_specs=P()
    )
    params, x = values(), jnp.arange(8.0)
    jax.eval_shape(mapped, params, x)
    if row.name not in RUN_TOO:
        return
    grads = jax.tree.map(lambda p: p * x.mean(), params)
    assert_close(jax.jit(mapped)(params, x)[0], alone(row, params, grads))


# Rows that also take their steps on different models: they have branches and loops.
RUN_APART = {"LBFGS", "MultiSteps(SkipNotFinite)", "ScaleByZoomLinesearch"}


@law()
def test_apart_inside_shard_map(row):
    """Each device trains its own model."""

    def scaled(factor, tree):
        return jax.tree.map(lambda p: p * factor, tree)

    def work(params, x):
        params = scaled(x[0], params)
        return _apart(two_steps(row(), params, params))

    refused = pytest.raises((TypeError, ValueError), match="mesh")
    is_refused = "ZeRO1" in row.name  # its state is sharded over another mesh
    with refused if is_refused else contextlib.nullcontext():
        mapped, params, x = _by_hand(work), values(), jnp.arange(1.0, 9.0)
        jax.eval_shape(mapped, params, x)
    if row.name in RUN_APART:
        found = jax.jit(mapped)(params, x)[0]
        for device in (0, 5):
            one = scaled(x[device], params)
            here = jax.tree.map(lambda p, i=device: p[i], found)
            assert_close(here, alone(row, one, one))


@law(names={"ScaleByADOPT", "ScaleByAdam", "ScheduleFreeAdamW", "EMANesterov(SGD)"})
def test_gradients_apart_inside_shard_map(row):
    """Each device has its own gradients, but the parameters are equal at first."""

    def work(params, x):
        grads = jax.tree.map(lambda p: p * x[0], params)
        return _apart(two_steps(row(), params, grads))

    jax.eval_shape(_by_hand(work), values(), jnp.arange(8.0))


def _apart(tree):
    """The arrays of each device, with an axis for the devices."""
    return jax.tree.map(lambda x: x[None], eqx.filter(tree, eqx.is_array))


def _by_hand(work):
    mesh = mesh_of(AxisType.Auto, x=8)
    return jax.shard_map(work, mesh=mesh, in_specs=(P(), P("x")), out_specs=P("x"))


@functools.cache
def _compiled_alone(name):
    row = next(row for row in REGISTRY if row.name == name)
    return jax.jit(lambda params, grads: two_steps(row(), params, grads)[0])


def alone(row, params, grads):
    """The parameters after two steps on one device."""
    return _compiled_alone(row.name)(params, grads)


# Rows that gather whole sharded leaves, and why they must.
GATHERS = {
    "Flatten": "one vector of all parameters is what it works on",
    "all wrappers": "it holds a `Flatten`",
    "GaLore": "singular vectors of a matrix need all of it",
    "from_optax": "the zeros of Optax have nothing to do with the parameters",
}


@law(names=TELLING)
def test_layouts_of_every_kind(row):
    """On automatic axes, states are sharded like parameters and nothing is gathered."""
    like = shardings(mesh_of(AxisType.Auto, x=8))
    given = types(like)
    run = lambda params, grads: eqx.filter(
        two_steps(row(), params, grads), eqx.is_array
    )
    compiled = jax.jit(run).lower(given, given).compile()
    params, grads = values(), values(1)
    result = compiled(jax.device_put(params, like), jax.device_put(grads, like))
    assert_close(jax.device_get(result[0]), jax.device_get(alone(row, params, grads)))
    if any(name in row.name for name in GATHERS):
        return
    for path, x in jax.tree_util.tree_leaves_with_path(result):
        name = stands_for(path, x)
        if name:
            assert x.sharding.is_equivalent_to(like[name], x.ndim), path
    for one in collectives(compiled.as_text()):
        assert one.size < SMALLEST_SPLIT, one


ZERO1 = {
    "ADOPT",
    "Adafactor",
    "DoG",
    "GaLore",
    "LAMB",
    "Lookahead(nested)",
    "MultiSteps(nested)",
    "Muon",
    "NovoGrad",
    "Prodigy",
    "SM3",
    "ScaleByAdam",
    "ScheduleFreeAdamW",
}


@law(names=ZERO1)
def test_zero1_is_its_inner_transformation(row):
    mesh = mesh_of(AxisType.Auto, x=8)
    opt = eqopt.ZeRO1(row(), "x", mesh)
    everywhere = NamedSharding(mesh, P())
    params, grads = jax.device_put((values(), values(1)), everywhere)
    run = lambda params, grads: eqx.filter(two_steps(opt, params, grads), eqx.is_array)
    result, states = jax.jit(run)(params, grads)
    assert_close(jax.device_get(result), jax.device_get(alone(row, params, grads)))
    assert all(x.sharding.is_fully_replicated for x in arrays(result))
    for x in arrays(states):
        if x.size > 8 and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert x.addressable_shards[0].data.size == x.size / 8, x.shape


def test_zero1_names_are_rows():
    assert {row.name for row in REGISTRY} >= ZERO1
    assert np.all([any(part in row.name for row in REGISTRY) for part in GATHERS])
