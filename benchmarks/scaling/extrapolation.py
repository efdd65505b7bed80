"""Estimates for models with 7 and 70 billion parameters, from small models.

The bytes that are sent are counted in programs compiled for accelerators. For parameters
and gradients, they are a linear function of the number of parameters; for activations,
of the number of tokens, in each layer. Two sizes determine each slope.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import eqopt

from ..pages import markdown
from .collectives import SENT, sent
from .experts import exchanged
from .layouts import LAYOUTS, mesh_of
from .program import bytes_in, bytes_per_device, compiled
from .transformer import Shape


NAMES = ("data parallel", "ZeRO-1", "fully sharded (FSDP)")
# With fewer tokens for this width, XLA would gather activations instead of weights.
SHAPE = Shape(width=64, hidden=192, layers=2, length=64)
DEVICES = (8, 64, 512)


class Large(NamedTuple):
    """A large model: the number of its parameters, of its layers, and its width."""

    parameters: float
    layers: int
    width: int


MODELS = {"7B": Large(7e9, 32, 4096), "70B": Large(70e9, 80, 8192)}


class Slopes(NamedTuple):
    """Bytes per byte of parameters, on several devices."""

    sent: dict[str, float]  # by one device and step
    state: float  # on one device


def slopes(name: str, devices: list[Any]) -> Slopes:
    """How fast the bytes grow with the bytes of the parameters."""
    wide = SHAPE._replace(width=2 * SHAPE.width, hidden=2 * SHAPE.hidden)
    (n1, sent1, state1), (n2, sent2, state2) = (
        _counted(name, shape, devices) for shape in (SHAPE, wide)
    )
    kinds = sorted({*sent1, *sent2})
    grown = {k: (sent2.get(k, 0) - sent1.get(k, 0)) / (n2 - n1) for k in kinds}
    return Slopes(grown, (state2 - state1) / (n2 - n1))


def _counted(
    name: str, shape: Shape, devices: list[Any]
) -> tuple[int, dict[str, float], int]:
    mesh, opt = mesh_of(len(devices), devices=devices), eqopt.AdamW(1e-3)
    program = compiled(LAYOUTS[name], opt, shape, _batch(devices), mesh)
    params, state, _ = program.shapes
    return bytes_in(params), sent(program.collectives), bytes_per_device(state)


def _batch(devices: list[Any]) -> int:
    return 2 * len(devices)


def of_activations(devices: list[Any]) -> dict[str, float]:
    """What one device sends for a token and a layer, relative to its activations.

    Tensor parallelism: for a token of the batch. Experts: for a token of this device.
    """
    (few, more), (short, long) = (2, 4), (SHAPE.length, 2 * SHAPE.length)

    def of_layer(length: int) -> float:
        shapes = (SHAPE._replace(layers=n, length=length) for n in (more, few))
        each = (_counted("tensor parallel", x, devices)[1] for x in shapes)
        of_more, of_few = (sum(x.values()) for x in each)
        return (of_more - of_few) / (more - few)

    tokens = (long - short) * _batch(devices)
    (sent1, own1), (sent2, own2) = (exchanged(devices, n) for n in (1024, 2048))
    return {
        "tensor parallel, a token of the batch": (of_layer(long) - of_layer(short))
        / (4 * SHAPE.width * tokens),
        "experts, a token of the device": (sent2 - sent1) / (own2 - own1),
    }


def extrapolated(devices: list[Any]) -> dict[str, str]:
    """Tables of the slopes and of the estimates, by the name of their place."""
    found = {name: slopes(name, devices) for name in NAMES}
    return {
        "slopes": markdown(*_of_slopes(found)),
        "large": markdown(*_of_layouts(found)),
        "activations": markdown(*_of_activations(of_activations(devices))),
    }


def _of_slopes(found: Mapping[str, Slopes]) -> tuple[list[str], list[list[str]]]:
    kinds = [x for x in SENT if any(round(s.sent.get(x, 0), 3) for s in found.values())]
    head = ["Layout", *kinds, "all that is sent, $c$", "state, $s$"]
    lines = []
    for name, slope in found.items():
        of_kinds = [slope.sent.get(kind, 0) for kind in kinds]
        numbers = (*of_kinds, sum(slope.sent.values()), slope.state)
        lines.append([name, *(f"{x:.3f}" for x in numbers)])
    return head, lines


def _of_layouts(found: Mapping[str, Slopes]) -> tuple[list[str], list[list[str]]]:
    head = ["Layout", "Devices"]
    for model in MODELS:
        head += [f"{model}: sent per step", f"{model}: state per device"]
    lines = []
    for name, slope in found.items():
        for n in DEVICES:
            # All rings send a share of (n - 1) / n, and were counted on 8 devices.
            factor = sum(slope.sent.values()) / (7 / 8) * (n - 1) / n
            shared = 1.0 if name == "data parallel" else 8 / n
            cells = []
            for model in MODELS.values():
                size = 4 * model.parameters / 1e9
                cells += [f"{size * factor:.0f} GB"]
                cells += [f"{size * slope.state * shared:.2f} GB"]
            lines.append([name, str(n), *cells])
    return head, lines


def _of_activations(found: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    head = ["Layout", "Sent for a token and a layer, relative to its activations"]
    head += [f"{model}: for 1000 tokens" for model in MODELS]
    lines = []
    for name, size in found.items():
        each = (4 * size * x.width * x.layers * 1000 for x in MODELS.values())
        lines.append([name, f"{size:.2f}", *(f"{x / 1e9:.2f} GB" for x in each)])
    return head, lines
