"""The mesh over whose axes a wrapper divides work or state."""

from typing import Any

import jax

from .._errors import InputError


def mesh_with(axis_name: str | tuple[str, ...], mesh: Any, purpose: str) -> Any:
    """The mesh that is set, or else `mesh`. It has the axes, and they are not manual.

    `purpose`: what happens along the axes, for messages.
    """
    here = jax.sharding.get_abstract_mesh()
    mesh = mesh if here.empty else here
    if mesh is None:
        raise InputError(
            f"`mesh` is None, and no mesh is set. Pass the mesh over which {purpose}, "
            "or set it with `jax.set_mesh(mesh)`."
        )
    if here.empty and mesh.explicit_axes:
        raise InputError(
            f"`mesh` has explicit axes, {mesh.explicit_axes}, but is not set. Set it "
            "with `jax.set_mesh(mesh)`."
        )
    for one in axis_names(axis_name):
        if one not in mesh.axis_names:
            raise InputError(
                f"`axis_name` is {axis_name!r}, but the mesh has the axes "
                f"{mesh.axis_names}. Pass the name of the axis over which {purpose}."
            )
        if one in mesh.manual_axes:
            raise InputError(
                f"the axis {one!r} is manual inside `jax.shard_map`, so XLA does not "
                "know how arrays are sharded. Call `step` outside it."
            )
    return mesh


def axis_names(name: str | tuple[str, ...]) -> tuple[str, ...]:
    return (name,) if isinstance(name, str) else name
