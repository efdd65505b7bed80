"""Devices to compile for, which need not exist on this machine."""

import importlib.metadata
import importlib.util
import os
import pathlib
from typing import Any, NamedTuple

from jax.experimental import topologies


class Platform(NamedTuple):
    """A device to compile for.

    - `title`: its name in text.
    - `lowering`: its platform in JAX.
    - `bandwidth`: of its memory, in bytes per second.
    - `needs`: modules of which one must be installed.
    - `install`: the command that installs it, for a version of JAX.
    """

    title: str
    lowering: str
    bandwidth: float
    needs: tuple[str, ...]
    install: str


PLATFORMS = {
    "h100": Platform(
        "an H100",
        "cuda",
        3.35e12,
        ("jax_cuda13_plugin", "jax_cuda12_plugin"),
        # Neither the CUDA libraries nor a driver are needed to compile.
        "pip install --no-deps jax-cuda13-plugin=={jax} jax-cuda13-pjrt=={jax}",
    ),
    "tpu": Platform(
        "a TPU v5e", "tpu", 819e9, ("libtpu",), 'pip install "jax[tpu]=={jax}"'
    ),
}
TARGET = pathlib.Path(__file__).parent / "h100.txtpb"

# Read by the plugins when they start: there is no driver, and no metadata of a machine.
_ENVIRONMENT = {
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def is_installed(name: str) -> bool:
    """Whether this machine can compile for `name`, a key of `PLATFORMS`."""
    return any(importlib.util.find_spec(module) for module in PLATFORMS[name].needs)


def device(name: str) -> Any:
    """A device to compile for. Call it before JAX makes its first array.

    `name` is a key of `PLATFORMS`.
    """
    platform = PLATFORMS[name]
    if not is_installed(name):
        command = platform.install.format(jax=importlib.metadata.version("jax"))
        raise ModuleNotFoundError(
            f"compiling for {platform.title} needs the module "
            f"{' or '.join(platform.needs)}, which is not installed. Run: {command}"
        )
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    if platform.lowering == "cuda":
        found = topologies.get_topology_desc(
            "", "cuda", target_config=TARGET.read_text(), topology="1x1x1"
        )
    else:
        found = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return found.devices[0]
