"""Estimates for models with 7 and 70 billion parameters, from small models.

The bytes that are sent are counted in compiled programs of small transformers. They are a
linear function of the number of parameters, and two sizes determine its slope.
"""

from typing import NamedTuple

import jax

import eqopt

from .collectives import sent
from .layouts import LAYOUTS, mesh_of
from .program import bytes_per_device, compiled
from .transformer import Shape


# Tensor parallelism also sends activations, so it has no such slope.
NAMES = ("data parallel", "ZeRO-1", "fully sharded (FSDP)")
# With fewer tokens for this width, XLA would gather activations instead of weights.
SMALL, LARGE = (
    Shape(width=width, hidden=3 * width, layers=2, length=64) for width in (64, 128)
)
MODELS = {"7B": 7e9, "70B": 70e9}
DEVICES = (8, 64, 512)


class Slopes(NamedTuple):
    """Bytes per byte of parameters, on several devices."""

    sent: dict[str, float]  # by one device and step
    state: float  # on one device


def slopes(name: str, devices: int = 8) -> Slopes:
    """How fast the bytes grow with the bytes of the parameters."""
    (n1, sent1, state1), (n2, sent2, state2) = (
        _counted(name, shape, devices) for shape in (SMALL, LARGE)
    )
    kinds = sorted({*sent1, *sent2})
    grown = {k: (sent2.get(k, 0) - sent1.get(k, 0)) / (n2 - n1) for k in kinds}
    return Slopes(grown, (state2 - state1) / (n2 - n1))


def _counted(name, shape, devices):
    opt = eqopt.AdamW(1e-3)
    program = compiled(LAYOUTS[name], opt, shape, 2 * devices, mesh_of(devices))
    whole = sum(x.nbytes for x in jax.tree.leaves(program.arguments[0]))
    state = bytes_per_device(program.arguments[1])
    return whole, sent(program.collectives), state


def extrapolated() -> str:
    """Tables of the slopes and of the estimates."""
    found = {name: slopes(name) for name in NAMES}
    lines = [
        "| Layout | all-reduce | all-gather | all that is sent, $c$ | state, $s$ |",
        "|:--|--:|--:|--:|--:|",
    ]
    for name, slope in found.items():
        kinds = [slope.sent.get(kind, 0) for kind in ("all-reduce", "all-gather")]
        numbers = (*kinds, sum(slope.sent.values()), slope.state)
        lines.append(f"| {name} | {' | '.join(f'{x:.3f}' for x in numbers)} |")
    lines += [
        "",
        "| Layout | Devices | "
        + " | ".join(f"{m}: sent per step | {m}: state per device" for m in MODELS)
        + " |",
        "|:--|--:" + "|--:|--:" * len(MODELS) + "|",
    ]
    for name, slope in found.items():
        for n in DEVICES:
            # All rings send a share of (n - 1) / n, and were counted on 8 devices.
            factor = sum(slope.sent.values()) / (7 / 8) * (n - 1) / n
            shared = 1.0 if name == "data parallel" else 8 / n
            cells = [
                f"{4 * size * factor / 1e9:.0f} GB | "
                f"{4 * size * slope.state * shared / 1e9:.2f} GB"
                for size in MODELS.values()
            ]
            lines.append(f"| {name} | {n} | {' | '.join(cells)} |")
    return "\n".join(lines)
