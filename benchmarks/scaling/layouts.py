"""How parameters, state and batch lie on the devices, by the usual names."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import eqopt

from .transformer import Transformer


class Layout(NamedTuple):
    """A layout over one mesh axis, "devices".

    - `spec`: where a parameter is split, as a function of its key path, its shape and
        the number of devices.
    - `batch`: where the batch is.
    - `wrap`: what is put round the optimizer, a function of it and the mesh.
    """

    spec: Callable[[str, tuple[int, ...], int], P]
    batch: P
    wrap: Callable[[Any, Mesh], Any] = lambda opt, mesh: opt

    def shardings(self, model: Transformer, mesh: Mesh) -> Any:
        """Those of the parameters, in a tree of their structure."""
        place = lambda path, x: NamedSharding(
            mesh, self.spec(jtu.keystr(path), x.shape, mesh.size)
        )
        arrays = eqx.filter(model, eqx.is_inexact_array)
        return jtu.tree_map_with_path(place, arrays)


def _replicated(path: str, shape: tuple[int, ...], devices: int) -> P:
    return P()


def _fully_sharded(path: str, shape: tuple[int, ...], devices: int) -> P:
    """The first axis that can be divided."""
    for i, n in enumerate(shape):
        if n % devices == 0:
            return P(*[None] * i, "devices")
    return P()


# Of the pair of layers before and after the heads, or the hidden units, the first is
# split by its outputs and the second by its inputs, so that one sum ends the pair.
_BY_OUTPUT = (".query", ".key", ".value", ".gate", ".up", ".head")
_BY_INPUT = (".output", ".down")


def _tensor_parallel(path: str, shape: tuple[int, ...], devices: int) -> P:
    layer = path.removesuffix(".weight")
    if layer.endswith(_BY_OUTPUT):
        return P("devices", None)
    return P(None, "devices") if layer.endswith(_BY_INPUT) else P()


LAYOUTS = {
    "data parallel": Layout(_replicated, P("devices")),
    "ZeRO-1": Layout(
        _replicated, P("devices"), lambda opt, mesh: eqopt.ZeRO1(opt, "devices", mesh)
    ),
    "fully sharded (FSDP)": Layout(_fully_sharded, P("devices")),
    "tensor parallel": Layout(_tensor_parallel, P()),
}


def mesh_of(devices: int, axis_type: AxisType = AxisType.Auto) -> Mesh:
    chosen = jax.devices()[:devices]
    return jax.make_mesh(
        (devices,), ("devices",), axis_types=(axis_type,), devices=chosen
    )
