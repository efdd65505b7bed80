"""Trains on four devices, with a quarter of the optimizer's state on each of them.

The batch is split over the devices, and each of them has the whole model.
`eqopt.ZeRO1` shards the state. To run anywhere, JAX makes four devices of one CPU here.

    python docs/examples/gallery/several_devices.py --output several_devices.svg
"""

import argparse
import os
from pathlib import Path


# Before JAX starts.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from sklearn.datasets import load_digits

import eqopt


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

adamw = eqopt.AdamW(3e-3)
runs = {"AdamW": adamw, "ZeRO1(AdamW)": eqopt.ZeRO1(adamw, "data", mesh)}

pixels, digits = map(jnp.asarray, load_digits(return_X_y=True))
pixels = pixels / 16
batch = jax.device_put((pixels[:1200], digits[:1200]), split)


def loss_fn(model, pixels, digits):
    logits = jax.vmap(model)(pixels)
    loss = eqopt.losses.softmax_cross_entropy_with_integer_labels(logits, digits)
    return jnp.mean(loss)


@eqx.filter_jit(donate="all-except-first")
def train_step(opt_and_batch, model, state):
    opt, batch = opt_and_batch
    grads = eqx.filter_grad(loss_fn)(model, *batch)
    model, state = opt.step(grads, state, model)
    return eqx.filter_shard(model, everywhere), state


def bytes_on_each_device(tree):
    found = dict.fromkeys(mesh.devices.flat, 0)
    for array in jax.tree.leaves(eqx.filter(tree, eqx.is_array)):
        for shard in array.addressable_shards:
            found[shard.device] += shard.data.nbytes
    return list(found.values())


plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, axes = plt.subplots()
for i, (name, opt) in enumerate(runs.items()):
    model = eqx.nn.MLP(64, 10, 256, 2, key=jax.random.key(0))
    model = eqx.filter_shard(model, everywhere)
    state = eqx.filter_jit(opt.init)(model)
    for _ in range(options.steps):
        model, state = train_step((opt, batch), model, state)

    guesses = jnp.argmax(jax.vmap(model)(pixels[1200:]), axis=1)
    accuracy = jnp.mean(guesses == digits[1200:])
    sizes = bytes_on_each_device(state)
    print(f"{name}: {accuracy:.1%} read correctly, {max(sizes):,} bytes on each device")
    places = [device + 0.4 * i for device in range(4)]
    axes.bar(places, [size / 1000 for size in sizes], width=0.36, label=name)

axes.set(title="state on each device (kB)", xticks=[0.2, 1.2, 2.2, 3.2])
axes.set(xticklabels=[f"device {i}" for i in range(4)], xlim=(-0.3, 5))
axes.legend()
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
