"""`eqopt.ZeRO1` on 8 devices: bytes per device, what is sent, and equal results."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from benchmarks.scaling.collectives import collectives
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt

from ..laws.subjects import assert_close
from ..meshes import DEVICES, entered, mesh_of


INNER = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(0.1))
# A leaf that 8 divides, one that it does not divide, one smaller than 8, and a scalar.
SHAPES = {"even": (16, 24), "uneven": (13, 5), "few": (3,), "scalar": ()}


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
def mesh(request):
    return mesh_of(request.param)


def zero1(inner, mesh):
    return eqopt.ZeRO1(inner, mesh=None if mesh.explicit_axes else mesh)


def params_of(seed=0, shapes=SHAPES):
    keys = jr.split(jr.key(seed), len(shapes))
    return {k: jr.normal(key, shapes[k]) for key, k in zip(keys, shapes, strict=True)}


def put(tree, mesh, *spec):
    return jax.device_put(tree, NamedSharding(mesh, P(*spec)))


def train(opt, params, grads, steps=3):
    state = opt.init(params)
    for _ in range(steps):
        params, state = opt.step(grads, state, params)
    return params, state


def bytes_per_device(tree):
    """The bytes of a tree on each device."""
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    of = lambda x, i: x.addressable_shards[i].data.nbytes
    return [sum(of(x, i) for x in arrays) for i in range(DEVICES)]


@pytest.mark.slow
def test_result_and_bytes(mesh):
    """The result is as on one device, and each device has an eighth of the state."""
    params, grads = params_of(), params_of(1)
    expected, whole = jax.jit(lambda p, g: train(INNER, p, g))(params, grads)
    opt = zero1(INNER, mesh)
    with entered(mesh):
        run = jax.jit(lambda p, g: (opt.init(p), *train(opt, p, g)))
        start, result, state = run(put(params, mesh), put(grads, mesh))
    assert_close(jax.device_get(result), jax.device_get(expected))
    for x in jax.tree.leaves(result):
        assert x.sharding.is_fully_replicated

    share = lambda shape: max(
        math.prod((*shape[:i], math.ceil(shape[i] / DEVICES), *shape[i + 1 :]))
        for i in [min(range(len(shape)), key=lambda i: -(-shape[i] // 8) / shape[i])]
    )
    numbers = sum(share(shape) for shape in SHAPES.values() if shape)
    scalars = sum(x.nbytes for x in jax.tree.leaves(whole) if x.ndim == 0)
    for each in (start, state):
        assert bytes_per_device(each) == [2 * 4 * numbers + scalars] * DEVICES


@pytest.mark.costly
def test_gradients_are_reduced_and_parameters_gathered_once(mesh):
    """Gradients are reduced once and parameters gathered once; nothing else is sent."""
    shapes = {"w": (64, 24), "v": (24, 8)}
    params, x = params_of(shapes=shapes), jnp.ones((16, 64))
    opt = zero1(eqopt.AdamW(0.1), mesh)

    def loss(params, x):
        return jnp.mean(jnp.tanh(x @ params["w"]) @ params["v"])

    def step(params, state, x):
        return opt.step(jax.grad(loss)(params, x), state, params)

    with entered(mesh):
        given = put(params, mesh)
        state = jax.jit(opt.init)(given)
        compiled = jax.jit(step, donate_argnums=(0, 1)).lower(
            given, state, put(x, mesh, "data")
        )
        compiled = compiled.compile()
    total = sum(x.nbytes for x in jax.tree.leaves(params))
    found = collectives(compiled.as_text())
    assert {one.kind for one in found} == {"all-reduce", "all-gather"}
    gathered = sum(one.size for one in found if one.kind == "all-gather")
    reduced = sum(one.size for one in found if one.kind == "all-reduce")
    assert gathered == total
    assert total <= reduced <= total + 64
    # Parameters and moments are updated in place: no device allocates new ones.
    donated = total + bytes_per_device(state)[0]
    assert compiled.memory_analysis().alias_size_in_bytes >= donated - 8


@pytest.mark.slow
def test_sharded_gradients_are_not_reduced_again():
    """Only the reduce-scatter, which the user writes in `shard_map`, is needed then."""
    shapes = {"w": (64, 24), "v": (24, 8)}
    mesh, params, x = (
        mesh_of(),
        params_of(shapes=shapes),
        jr.normal(jr.key(2), (16, 64)),
    )
    opt = eqopt.ZeRO1(eqopt.AdamW(0.1), mesh=mesh)

    def loss(params, x):
        return jnp.mean(jnp.tanh(x @ params["w"]) @ params["v"])

    def of_shards(params, x):
        local = jax.lax.pcast(params, "data", to="varying")
        grads = jax.grad(loss)(local, x)
        scatter = lambda g: jax.lax.psum_scatter(g, "data", tiled=True) / DEVICES
        return jax.tree.map(scatter, grads)

    grad = jax.shard_map(
        of_shards, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data")
    )
    step = jax.jit(lambda p, s, x: opt.step(grad(p, x), s, p))
    given = put(params, mesh)
    arguments = given, jax.jit(opt.init)(given), put(x, mesh, "data")
    found = collectives(step.lower(*arguments).compile().as_text())
    total = sum(x.nbytes for x in jax.tree.leaves(params))
    assert {one.kind for one in found} == {"reduce-scatter", "all-gather"}
    for kind in ("reduce-scatter", "all-gather"):
        assert sum(one.size for one in found if one.kind == kind) == total
    inner = eqopt.AdamW(0.1)
    expected, _ = inner.step(jax.grad(loss)(params, x), inner.init(params), params)
    assert_close(jax.device_get(step(*arguments)[0]), jax.device_get(expected))


@pytest.mark.slow
def test_a_mesh_of_two_axes():
    """If another axis shards a parameter, it also shards the state and the result."""
    mesh = mesh_of(data=2, model=4)
    params, grads = params_of(), params_of(1)
    expected, _ = jax.jit(lambda p, g: train(INNER, p, g))(params, grads)
    opt = eqopt.ZeRO1(INNER, mesh=mesh)
    specs = {**dict.fromkeys(SHAPES, P()), "even": P(None, "model")}
    like = {k: NamedSharding(mesh, spec) for k, spec in specs.items()}
    run = jax.jit(lambda p, g: train(opt, p, g))
    result, state = run(*(jax.device_put(tree, like) for tree in (params, grads)))
    assert_close(jax.device_get(result), jax.device_get(expected))
    for name, x in result.items():
        assert x.sharding.is_equivalent_to(like[name], x.ndim), name
    adam = state.inner_state[1][0]
    assert adam.mu["even"].sharding.spec == P("data", "model")


@pytest.mark.slow
def test_averages_and_updates(mesh):
    inner = eqopt.Lookahead(eqopt.Adam(0.1), 2, 0.5)
    params, grads = params_of(), params_of(1)
    stepped, state = jax.jit(lambda p, g: train(inner, p, g))(params, grads)
    expected = inner.eval_params(state, stepped)
    opt = zero1(inner, mesh)
    with entered(mesh):
        result = jax.jit(lambda p, g: train(opt, p, g))(
            put(params, mesh), put(grads, mesh)
        )
        averaged = jax.jit(opt.eval_params)(result[1], result[0])
    assert_close(jax.device_get(averaged), jax.device_get(expected))
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(averaged))

    # Updates need no parameters, and `update` returns them replicated.
    trace, opt = eqopt.Trace(0.9), zero1(eqopt.Trace(0.9), mesh)
    expected, _ = trace.update(grads, trace.init(params))
    with entered(mesh):
        updates, _ = jax.jit(lambda g, p: opt.update(g, opt.init(p)))(
            put(grads, mesh), put(params, mesh)
        )
    assert_close(jax.device_get(updates), jax.device_get(expected))
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(updates))


@pytest.mark.slow
def test_types_stay(mesh):
    """State, updates and parameters keep their types and places: one compilation."""
    place = lambda tree: [
        (x.shape, x.dtype, x.weak_type, x.sharding.shard_shape(x.shape))
        for x in jax.tree.leaves(tree)
    ]
    to = lambda dtype, tree: jax.tree.map(lambda x: x.astype(dtype), tree)
    opt = zero1(eqopt.MultiSteps(INNER, 2), mesh)
    traced = eqx.debug.assert_max_traces(opt.step, max_traces=1)
    with entered(mesh):
        params = put(to("bfloat16", params_of()), mesh)
        state = jax.jit(opt.init)(params)
        before, step = place((params, state)), jax.jit(traced, donate_argnums=(1, 2))
        for i in range(4):
            params, state = step(put(params_of(i), mesh), state, params)
            assert place((params, state)) == before


def test_leaves_that_stand_for_parameters():
    """They are the same on any mesh, with or without padding."""
    mark = lambda opt: eqopt.tree.map_params(
        opt,
        lambda _: True,
        jax.eval_shape(opt.init, params_of()),
        params=params_of(),
        transform_non_params=lambda _: False,
    )
    found = mark(eqopt.ZeRO1(INNER, mesh=mesh_of())).inner_state
    expected = mark(INNER)
    assert found == expected
    assert sum(jax.tree.leaves(found)) == 2 * len(SHAPES)


@pytest.mark.slow
def test_keys_are_on_every_device():
    storage = eqopt.storage.StochasticRounding()
    inner = eqopt.StoreState(eqopt.Adam(0.1), storage, eqopt.groups.everything)
    mesh = mesh_of()
    state = jax.jit(eqopt.ZeRO1(inner, mesh=mesh).init)(put(params_of(), mesh))
    mu = eqopt.tree.get(state, "mu")["even"]
    assert mu.hidden.key.shape == (2,) and mu.hidden.key.sharding.is_fully_replicated
    assert mu.seen.addressable_shards[0].data.size == mu.seen.size / DEVICES


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eqopt.ZeRO1(INNER), "`mesh` is None, and no mesh is set"),
        (
            lambda: eqopt.ZeRO1(INNER, "batch", mesh_of()),
            r"`axis_name` is 'batch', but the mesh has the axes \('data',\)",
        ),
        (
            lambda: eqopt.ZeRO1(INNER, mesh=mesh_of(AxisType.Explicit)),
            r"`mesh` has explicit axes, \('data',\), but is not set",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make().init(params_of())


def test_error_inside_shard_map():
    opt, mesh = eqopt.ZeRO1(INNER), mesh_of()
    init = jax.shard_map(opt.init, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(ValueError, match="the axis 'data' is manual inside"):
        jax.eval_shape(init, params_of())


@pytest.mark.parametrize("old, new", [(8, 4), (4, 8), (8, 1), (1, 8)])
def test_error_of_another_number_of_devices(old, new):
    of = lambda n: eqopt.ZeRO1(INNER, mesh=mesh_of(data=n))
    model = params_of()
    state = jax.device_get(of(old).init(model))
    with pytest.raises(ValueError, match=rf"on {new} devices.*tree\.migrate"):
        of(new).step(model, jax.tree.map(jnp.asarray, state), model)
