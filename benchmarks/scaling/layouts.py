"""Layouts of parameters, state and batch on the devices, by their usual names."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import eqopt

from .transformer import Transformer


AXIS = "devices"


class Layout(NamedTuple):
    """A layout over the mesh axis `AXIS`.

    - `spec`: the partition of a parameter, as a function of its key path, its shape and
        the number of devices.
    - `batch`: the partition of the batch.
    - `wrap`: a function of the optimizer and the mesh that wraps the optimizer.
    """

    spec: Callable[[str, tuple[int, ...], int], P]
    batch: P
    wrap: Callable[[Any, Mesh], Any] = lambda opt, mesh: opt

    def shardings(self, model: Transformer, mesh: Mesh) -> Any:
        """The shardings of the parameters, as a tree with their structure."""
        place = lambda path, x: NamedSharding(
            mesh, self.spec(jtu.keystr(path), x.shape, mesh.size)
        )
        arrays = eqx.filter(model, eqx.is_inexact_array)
        return jtu.tree_map_with_path(place, arrays)


def _replicated(path: str, shape: tuple[int, ...], devices: int) -> P:
    return P()


def _fully_sharded(path: str, shape: tuple[int, ...], devices: int) -> P:
    """Splits the first axis whose size is divisible by the number of devices."""
    for i, n in enumerate(shape):
        if n % devices == 0:
            return P(*[None] * i, AXIS)
    return P()


# In each pair of layers, before and after the heads or the hidden units, the first layer
# is split by outputs and the second by inputs. So each pair needs a single sum.
_BY_OUTPUT = (".query", ".key", ".value", ".gate", ".up", ".head")
_BY_INPUT = (".output", ".down")


def _tensor_parallel(path: str, shape: tuple[int, ...], devices: int) -> P:
    layer = path.removesuffix(".weight")
    if layer.endswith(_BY_OUTPUT):
        return P(AXIS, None)
    return P(None, AXIS) if layer.endswith(_BY_INPUT) else P()


LAYOUTS = {
    "data parallel": Layout(_replicated, P(AXIS)),
    "ZeRO-1": Layout(
        _replicated, P(AXIS), lambda opt, mesh: eqopt.ZeRO1(opt, AXIS, mesh)
    ),
    "fully sharded (FSDP)": Layout(_fully_sharded, P(AXIS)),
    "tensor parallel": Layout(_tensor_parallel, P()),
}


def mesh_of(
    size: int, axis_type: AxisType = AxisType.Auto, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh of the first devices, by default of this process."""
    chosen = (jax.devices() if devices is None else devices)[:size]
    return jax.make_mesh((size,), (AXIS,), axis_types=(axis_type,), devices=chosen)
