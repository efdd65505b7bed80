"""Workers with their own data, spread over all devices of all processes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.scaling.layouts import mesh_of
from jax.sharding import NamedSharding, PartitionSpec as P

import eqopt


AXIS, ROWS = "devices", 8
START = {
    "matrix": 0.1 * np.cos(np.arange(96, dtype=np.float32)).reshape(6, 16),
    "vector": np.zeros(16, np.float32),
}
# Prefixes of parameters and state: 0 where each worker has its own values. Functions,
# because optimizers may use JAX, which must first connect all processes.
METHODS = {
    "DiLoCo": lambda: (
        eqopt.DiLoCo(eqopt.AdamW(0.05), AXIS, 2),
        (0, eqopt.DiLoCoState.prefix(0, None)),
    ),
    "CompressedMean": lambda: (
        eqopt.CompressedMean(eqopt.SGD(0.1, 0.9), AXIS, eqopt.compression.PowerSGD(1)),
        (None, eqopt.CompressedMeanState.prefix(0, None)),
    ),
}


class Workers:
    """Some workers, and one compiled step for all of them."""

    def __init__(self, method: str, count: int):
        self.opt, axes = METHODS[method]()
        self.count, mesh = count, mesh_of(jax.device_count())
        self.spread = NamedSharding(mesh, P(AXIS))
        whole = NamedSharding(mesh, P())
        places = jax.tree.map(
            lambda axis: whole if axis is None else self.spread,
            axes,
            is_leaf=lambda axis: axis is None,
        )
        each = lambda _: (START, self.opt.init(START))
        start = jax.vmap(each, out_axes=axes)
        self._start = jax.jit(start, out_shardings=places)

        def step(batch, params, state):
            value, grads = jax.value_and_grad(_loss)(params, batch)
            return jax.lax.pmean(value, AXIS), *self.opt.step(grads, state, params)

        names = {"axis_name": AXIS, "spmd_axis_name": AXIS}
        mapped = jax.vmap(step, (0, *axes), (None, *axes), **names)

        def step_and_evaluate(batch, params, state):
            value, params, state = mapped(batch, params, state)
            is_own = axes[0] is not None
            of_one = jax.tree.map(lambda x: x[0], params) if is_own else params
            return value, self.opt.eval_params(state, of_one), params, state

        places = whole, whole, *places
        self._step = jax.jit(step_and_evaluate, out_shardings=places)
        self._mesh = mesh

    def start(self) -> tuple[Any, Any]:
        """Parameters and state of all workers."""
        return self._start(self._placed(np.arange(self.count, dtype=np.float32)))

    def step(self, i: int, params: Any, state: Any) -> tuple[float, Any, Any, Any]:
        """The mean loss of step `i`, the parameters to evaluate, and what follows."""
        draws = np.random.default_rng(i).normal(size=(self.count, ROWS, 6))
        x = draws.astype(np.float32)
        y = x.sum(axis=-1, keepdims=True) + np.ones(16, np.float32)
        batch = self._placed(x), self._placed(y)
        with jax.set_mesh(self._mesh):
            value, evaluated, params, state = self._step(batch, params, state)
        return float(value), evaluated, params, state

    def _placed(self, x: np.ndarray) -> jax.Array:
        """Each process gives its own part."""
        part = np.split(x, jax.process_count())[jax.process_index()]
        return jax.make_array_from_process_local_data(self.spread, part)


def _loss(params: Any, batch: Any) -> jax.Array:
    x, y = batch
    return jnp.mean((x @ params["matrix"] + params["vector"][None] - y) ** 2)


def flat(tree: Any) -> np.ndarray:
    """All numbers of a tree whose arrays every process has."""
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])
