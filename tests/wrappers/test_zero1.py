"""`eqopt.ZeRO1` on 8 devices: bytes per device, what is sent, and equal results."""

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
# A leaf that 8 divides, one whose second axis it divides, one that it does not divide,
# one smaller than 8, and a scalar.
SHAPES = {
    "even": (16, 24),
    "second": (3, 16),
    "uneven": (13, 5),
    "few": (3,),
    "scalar": (),
}


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
def mesh(request):
    return mesh_of(request.param)


def zero1(inner, mesh):
    return eqopt.ZeRO1(inner, mesh=None if mesh.explicit_axes else mesh)


def params_of(seed=0, shapes=SHAPES):
    keys = jr.split(jr.key(seed), len(shapes))
    return {k: jr.normal(key, shapes[k]) for key, k in zip(keys, shapes, strict=True)}


WEIGHTS = {"w": (64, 24), "v": (24, 8)}


def loss(params, x):
    return jnp.mean(jnp.tanh(x @ params["w"]) @ params["v"])


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

    # Of 13 rows, which are padded to 16, each device has two.
    numbers = 16 * 24 // 8 + 3 * 16 // 8 + 2 * 5 + 1
    scalars = sum(x.nbytes for x in jax.tree.leaves(whole) if x.ndim == 0)
    for each in (start, state):
        assert bytes_per_device(each) == [2 * 4 * numbers + scalars] * DEVICES


@pytest.mark.costly
def test_gradients_are_reduced_and_parameters_gathered_once(mesh):
    """Gradients are reduced once and parameters gathered once; nothing else is sent."""
    params, x = params_of(shapes=WEIGHTS), jnp.ones((16, 64))
    opt = zero1(eqopt.AdamW(0.1), mesh)

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
    mesh, params, inner = mesh_of(), params_of(shapes=WEIGHTS), eqopt.AdamW(0.1)
    opt, x = eqopt.ZeRO1(inner, mesh=mesh), jr.normal(jr.key(2), (16, 64))

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
