"""Devices to compile for, which need not exist on this machine.

`python -m benchmarks.accelerators.devices` prints the packages that compiling needs.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import shlex
from typing import Any, NamedTuple

from jax.experimental import topologies


class Platform(NamedTuple):
    """A device to compile for.

    - `title`: its name in text.
    - `lowering`: its platform in JAX.
    - `bandwidth`: of its memory, in bytes per second.
    - `needs`: modules of which one must be installed.
    - `packages`: what installs it. A name without a version has the version that JAX
        requires.
    """

    title: str
    lowering: str
    bandwidth: float
    needs: tuple[str, ...]
    packages: tuple[str, ...]


PLATFORMS = {
    "h100": Platform(
        "an H100",
        "cuda",
        3.35e12,
        ("jax_cuda13_plugin", "jax_cuda12_plugin"),
        ("jax-cuda13-plugin=={jax}", "jax-cuda13-pjrt=={jax}"),
    ),
    "tpu": Platform("a TPU v5e", "tpu", 819e9, ("libtpu",), ("libtpu",)),
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


def packages(name: str) -> list[str]:
    """What to install for `name`, in the versions that belong to the installed JAX."""
    jax = importlib.metadata.version("jax")
    required = [
        requirement.partition(";")[0].strip()
        for requirement in importlib.metadata.requires("jax") or ()
    ]
    return [
        next((one for one in required if one.startswith(f"{package}=")), package)
        for package in (one.format(jax=jax) for one in PLATFORMS[name].packages)
    ]


def check_installed(name: str) -> None:
    """Raises an error with the command that installs what is missing for `name`."""
    if not is_installed(name):
        # Neither the CUDA libraries nor a driver are needed to compile.
        raise ModuleNotFoundError(
            f"compiling for {PLATFORMS[name].title} needs the module "
            f"{' or '.join(PLATFORMS[name].needs)}, which is not installed. Run: "
            f"pip install --no-deps {shlex.join(packages(name))}"
        )


def device(name: str) -> Any:
    """A device to compile for. Call it before JAX makes its first array.

    `name` is a key of `PLATFORMS`.
    """
    return connected(name, "1x1x1" if name == "h100" else "2x2")[0]


def connected(name: str, topology: str) -> list[Any]:
    """Several devices to compile for: "1x1x8" is 8 GPUs, and "4x4" is 16 TPUs."""
    platform = PLATFORMS[name]
    check_installed(name)
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    if platform.lowering == "cuda":
        text = TARGET.read_text()
        found = topologies.get_topology_desc(
            "", "cuda", target_config=text, topology=topology
        )
    else:
        found = topologies.get_topology_desc(
            platform="tpu", topology_name=f"v5e:{topology}"
        )
    return found.devices


if __name__ == "__main__":
    print(*(package for name in PLATFORMS for package in packages(name)))
