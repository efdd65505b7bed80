"""What a training step on several devices sends, compiled for accelerators."""

import functools
import sys

import jax
import jax.numpy as jnp
from benchmarks.accelerators.devices import connected
from benchmarks.scaling.collectives import collectives
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import eqopt


LAYOUTS = {
    "fully sharded": (P("data"), lambda opt, mesh: opt),
    "fully sharded, scattered explicitly": (P("data"), lambda opt, mesh: opt),
    "ZeRO-1": (P(), lambda opt, mesh: eqopt.ZeRO1(opt, "data", mesh)),
}


def sent(name: str, platform: str, topology: str, width: int) -> dict[str, float]:
    """The size of all collectives of a kind, relative to the parameters.

    The model has two layers in float32, the optimizer is AdamW, and the batch is split.
    """
    devices = connected(platform, topology)
    mesh = Mesh(devices, ("data",), axis_types=(AxisType.Auto,))
    spec, wrap = LAYOUTS[name]
    opt = wrap(eqopt.AdamW(1e-3), mesh)
    shape = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    matrix = jax.ShapeDtypeStruct((width, width), jnp.float32)
    params = [shape(matrix, NamedSharding(mesh, spec))] * 2
    inputs = jax.ShapeDtypeStruct((32 * mesh.size, width), jnp.float32)
    inputs = shape(inputs, NamedSharding(mesh, P("data")))

    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x)

    def scattered(params, x):
        whole = [jax.lax.all_gather(w, "data", tiled=True) for w in params]
        scatter = functools.partial(jax.lax.psum_scatter, axis_name="data", tiled=True)
        return jax.tree.map(scatter, jax.grad(loss)(whole, x))

    gradients = jax.grad(loss)
    if "explicitly" in name:
        gradients = jax.shard_map(
            scattered, mesh=mesh, in_specs=P("data"), out_specs=P("data")
        )

    def step(params, state, x):
        return opt.step(gradients(params, x), state, params)

    places = jax.jit(opt.init).lower(params).compile().output_shardings
    state = jax.tree.map(shape, jax.eval_shape(opt.init, params), places)
    outs = jax.tree.map(lambda x: x.sharding, (params, state))
    step = jax.jit(step, donate_argnums=(0, 1), out_shardings=outs)
    found: dict[str, float] = {}
    for one in collectives(step.lower(params, state, inputs).compile().as_text()):
        size = one.size / (2 * 4 * width**2)
        found[one.kind] = round(found.get(one.kind, 0) + size, 3)
    return found


if __name__ == "__main__":  # for other topologies, such as `tpu 4x4 2048`
    platform, topology, width = sys.argv[1:]
    for name in LAYOUTS:
        print(f"{name}:", sent(name, platform, topology, int(width)), flush=True)
