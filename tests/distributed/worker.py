"""One process of several: trains, and saves what came out.

`python -m tests.distributed.worker ADDRESS PROCESSES RANK FILE`
"""

import contextlib
import sys
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from benchmarks.scaling.layouts import LAYOUTS, mesh_of
from benchmarks.scaling.transformer import Shape, Transformer, batch_of, loss
from jax.sharding import NamedSharding, PartitionSpec as P

import eqopt

from .workers import METHODS, Workers, flat


SHAPE = Shape(vocabulary=16, width=8, heads=4, hidden=16, layers=1, length=8)
BATCH, STEPS = 8, 3
# Functions, because optimizers may use JAX, which must first connect all processes.
TRAINED = {
    "data parallel": lambda: eqopt.AdamW(1e-2),
    "ZeRO-1": lambda: eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-2)),
    "fully sharded (FSDP)": lambda: eqopt.Lion(1e-2),
}


def train(name: str) -> dict[str, np.ndarray]:
    """The losses, the parameters, and the share of the state on this process."""
    layout, mesh = LAYOUTS[name], mesh_of(jax.device_count())
    opt = layout.wrap(TRAINED[name](), mesh)
    model = Transformer(SHAPE, jr.key(0))
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    placed = layout.shardings(arrays, mesh)
    whole = jax.tree.map(lambda _: NamedSharding(mesh, P()), arrays)
    # Every process makes all values, and keeps its own.
    params = jax.jit(lambda x: x, out_shardings=placed)(jax.device_get(arrays))
    state = eqx.filter_jit(opt.init)(params)

    @eqx.filter_jit
    def step(params, state, tokens):
        whole = eqx.combine(params, static)
        value, grads = eqx.filter_value_and_grad(loss)(whole, tokens)
        params, state = opt.step(grads, state, params)
        return jax.lax.with_sharding_constraint(params, placed), state, value

    losses = []
    for _ in range(STEPS):
        # Each process reads its own part of the batch.
        tokens = np.asarray(batch_of(SHAPE, BATCH))
        part = np.split(tokens, jax.process_count())[jax.process_index()]
        split = NamedSharding(mesh, P("devices"))
        tokens = jax.make_array_from_process_local_data(split, part)
        params, state, value = step(params, state, tokens)
        losses.append(float(value))
    leaves = jax.tree.leaves(jax.jit(lambda x: x, out_shardings=whole)(params))
    held = sum(x.addressable_shards[0].data.nbytes for x in arrays_of(state))
    total = sum(x.nbytes for x in arrays_of(state))
    flat = np.concatenate([np.asarray(x).ravel() for x in leaves])
    return {"losses": np.array(losses), "params": flat, "share": np.array(held / total)}


def train_workers(name: str) -> dict[str, np.ndarray]:
    """The losses and the parameters of four workers, on any number of processes."""
    workers = Workers(name, count=4)
    params, state = workers.start()
    losses, evaluated = [], params
    for i in range(4):
        value, evaluated, params, state = workers.step(i, params, state)
        losses.append(value)
    return {"losses": np.array(losses), "params": flat(evaluated)}


def arrays_of(tree):
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


@contextlib.contextmanager
def connected(address: str, processes: int, rank: int) -> Iterator[None]:
    """Connects this process to the others, and waits for them at the end."""
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, processes, rank, initialization_timeout=60)
    assert jax.process_count() == processes == jax.device_count()
    yield
    if processes > 1:
        jax.distributed.shutdown()


def main(address: str, processes: str, rank: str, file: str) -> None:
    with connected(address, int(processes), int(rank)):
        found = {name: train(name) for name in TRAINED}
        found |= {name: train_workers(name) for name in METHODS}
        results = {
            f"{name}/{key}": x for name in found for key, x in found[name].items()
        }
        if jax.process_index() == 0:
            np.savez(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
