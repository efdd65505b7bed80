"""Meshes of the 8 CPU devices that the tests force."""

import contextlib
import math

import jax
from jax.sharding import AxisType


DEVICES = 8


def mesh_of(kind=AxisType.Auto, **axes):
    """A mesh of as many devices as its axes need; without axes, all are on `data`."""
    axes = axes or {"data": DEVICES}
    devices = jax.devices()[: math.prod(axes.values())]
    types = (kind,) * len(axes)
    return jax.make_mesh((*axes.values(),), (*axes,), types, devices=devices)


def entered(mesh):
    """A context in which the mesh is set, if its axes are explicit."""
    return jax.set_mesh(mesh) if mesh.explicit_axes else contextlib.nullcontext()
