"""One of two workers of DiLoCo: trains until it is killed, or continues from files.

`python -m tests.distributed.restart ADDRESS PROCESSES RANK FILE`
"""

import dataclasses
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eqopt import checkpoint

from .worker import connected
from .workers import Workers, flat


EVERY, MORE = 2, 4  # steps between outer steps, and steps after the restart


def common_step(folder: pathlib.Path, processes: int) -> int:
    """The last step after which all processes have written a file; 0 if there is none."""
    steps = [
        {int(path.stem) for path in (folder / str(rank)).glob("*.eqx")}
        for rank in range(processes)
    ]
    return max(set.intersection(*steps), default=0)


def part_here(tree: Any) -> Any:
    """The values of this worker, and what all workers share."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def train_until_killed(workers: Workers, folder: pathlib.Path, rank: int) -> None:
    now = workers.start()
    (folder / str(rank)).mkdir()
    for i in range(1000):
        _, _, *now = workers.step(i, *now)
        if (i + 1) % EVERY == 0:
            path = folder / str(rank) / f"{i + 1}.eqx"
            checkpoint.save(path, part_here(tuple(now)))
        time.sleep(0.02)


def continued(workers: Workers, first: int, params: Any, state: Any) -> np.ndarray:
    """The outer parameters at step `first`, and after each further step."""
    found = [flat(state.slow)]
    for i in range(first, first + MORE):
        _, outer, params, state = workers.step(i, params, state)
        found.append(flat(outer))
    return np.stack(found)


def restarted(workers: Workers, folder: pathlib.Path, rank: int) -> dict[str, Any]:
    """Twice, once without the files of worker 1, and each time what is expected."""
    last = common_step(folder, workers.count)
    start = now = workers.start()
    for i in range(last):  # without an interruption
        _, _, *now = workers.step(i, *now)
    params, state = now

    def loaded(rank):
        return checkpoint.load(folder / str(rank) / f"{last}.eqx", part_here(start))

    def placed(part):
        place = lambda x, like: jax.make_array_from_process_local_data(
            like.sharding, np.asarray(x), like.shape
        )
        return jax.tree.map(place, part, start)

    results = {
        "expected": continued(workers, last, params, state),
        "found": continued(workers, last, *placed(loaded(rank))),
    }
    # The outer parameters and the rest are in any file; the inner state is a new one.
    own, shared = loaded(0)
    if rank == 1:
        own = jax.tree.map(lambda x: x[None], shared.slow)
        inner_state = part_here(start[1]).inner_state
        shared = dataclasses.replace(shared, inner_state=inner_state)
    results["found, lost"] = continued(workers, last, *placed((own, shared)))

    @jax.jit
    def with_new_state(state, new):
        is_first = lambda x: jnp.arange(2).reshape(-1, *[1] * (x.ndim - 1)) == 0
        mixed = lambda x, y: jnp.where(is_first(x), x, y)
        return jax.tree.map(mixed, state.inner_state, new.inner_state)

    mixed = dataclasses.replace(state, inner_state=with_new_state(state, start[1]))
    results["expected, lost"] = continued(workers, last, params, mixed)
    return results


def main(address: str, processes: str, rank: str, file: str) -> None:
    folder = pathlib.Path(file).parent
    with connected(address, int(processes), int(rank)):
        workers = Workers("DiLoCo", int(processes))
        if common_step(folder, int(processes)) == 0:
            train_until_killed(workers, folder, int(rank))
        results = restarted(workers, folder, int(rank))
        if int(rank) == 0:
            np.savez(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
