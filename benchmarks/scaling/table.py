"""Measures each layout on several devices, next to one device."""

import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax

import eqopt

from ..pages import markdown
from .collectives import sent
from .layouts import LAYOUTS, mesh_of
from .program import Program, bytes_per_device, compiled
from .transformer import Shape


SHAPE = Shape(vocabulary=512, width=128, heads=8, hidden=384, layers=4, length=64)
BATCH = 16


class Row(NamedTuple):
    """One layout: times in seconds, and bytes on one device."""

    name: str
    devices: int
    seconds: float
    sent: dict[str, float]
    params: int
    state: int


def measured(devices: int, rounds: int) -> list[Row]:
    """One device first, then all layouts, with the same batch."""
    first = "one device", LAYOUTS["data parallel"], 1
    rest = ((name, layout, devices) for name, layout in LAYOUTS.items())
    return [_row(name, layout, n, rounds) for name, layout, n in (first, *rest)]


def _row(name, layout, devices, rounds):
    opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3))
    program = compiled(layout, opt, SHAPE, BATCH, mesh_of(devices))
    params, state, _ = program.shapes
    sizes = bytes_per_device(params), bytes_per_device(state)
    seconds = statistics.median(_times(program, rounds))
    return Row(name, devices, seconds, sent(program.collectives), *sizes)


def _times(program: Program, rounds: int) -> Iterator[float]:
    params, state, tokens = program.start()
    for i in range(rounds + 2):
        start = time.perf_counter()
        params, state, value = program.step(params, state, tokens)
        jax.block_until_ready((params, state, value))
        if i >= 2:  # the first two are a warm-up
            yield time.perf_counter() - start


def table(rows: list[Row]) -> str:
    head = ["Layout", "Devices", "Step, relative to one device"]
    head += ["Sent per device and step: all-reduce", "all-gather", "other"]
    head += ["Parameters per device", "State per device"]
    lines = []
    for row in rows:
        named = [row.sent.get(kind, 0) for kind in ("all-reduce", "all-gather")]
        other = sum(row.sent.values()) - sum(named)
        sizes = map(megabytes, (*named, other, row.params, row.state))
        time = f"{row.seconds / rows[0].seconds:.2f}"
        lines.append([row.name, str(row.devices), time, *sizes])
    return markdown(head, lines)


def megabytes(size: float) -> str:
    return f"{size / 1e6:.2f} MB" if size else "0"
