"""Describes the machine that the numbers come from."""

import datetime
import os
import pathlib
import platform
from importlib.metadata import version
from typing import Any

import jax
import jaxtyping


def describe() -> dict[str, Any]:
    """The machine and the versions, by name."""
    device = jax.devices()[0]
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_gb": _memory_gb(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "device": f"{device.platform} ({device.device_kind})",
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "equinox")},
        **{name: version(name) for name in ("eqopt", "optax")},
        "type_checks": not jaxtyping.config.jaxtyping_disable,
        "date": datetime.date.today().isoformat(),
    }


def in_one_line(machine: dict[str, Any]) -> str:
    return (
        "{cpu}, {cores} cores, {memory_gb} GB, {device}; eqopt {eqopt}, optax {optax}, "
        "jax {jax}, Python {python}; type checks {checks}; {date}"
    ).format(**machine, checks="on" if machine["type_checks"] else "off")


def _cpu_model() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int | None:
    # The cores that this process may use: in a container, they can be fewer than all.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_gb() -> int | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return round(total / 1e9)
