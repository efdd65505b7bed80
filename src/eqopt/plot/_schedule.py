"""Curves of schedules."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments.checks import may_be_model
from .._trees.leaves import briefly
from .._types import Schedule
from ._axes import axes_or_current


# As many as there are pixels to tell them apart.
_MOST_POINTS = 2000
_LARGEST = np.iinfo(np.int32).max


def schedule(
    *schedules: Schedule,
    steps: int,
    labels: Sequence[str] | None = None,
    axes: Any = None,
) -> Any:
    """Draws the values of one or several schedules over the number of steps.

    !!! example

        ```python
        from eqopt.schedules import CosineDecay, Linear

        eqopt.plot.schedule(CosineDecay(1e-3, 900), Linear(1e-3, 0.0, 900), steps=1000)
        ```

    It needs matplotlib: `pip install matplotlib`.

    **Arguments:**

    - `schedules`: one or more schedules, or any functions of a 0-d integer array that
        return a number or a 0-d array and work under `jax.vmap`.
    - `steps`: the number of steps to draw, an integer of at least 1. If there are more
        than 2000, only as many points are drawn as can be distinguished.
    - `labels`: a string for each schedule, for the legend. Defaults to the names of the
        classes or functions, with the fields that differ if names are equal.
    - `axes`: the `matplotlib.axes.Axes` to draw in. Defaults to the current ones.

    **Returns:**

    The axes. Their figure can be saved by `axes.figure.savefig("schedules.svg")`.

    **Raises:**

    An `ImportError` without matplotlib; a `TypeError` if a schedule is not a function;
    a `ValueError` if there is no schedule, if `steps` is less than 1, or if the numbers
    of labels and schedules differ.
    """
    _check(schedules, steps, labels)
    axes = axes_or_current(axes, "schedule")
    spread = np.linspace(0, steps - 1, min(steps, _MOST_POINTS))
    counts = np.rint(spread).astype(np.int64)
    names = default_labels(schedules) if labels is None else labels
    for each, name in zip(schedules, names, strict=True):
        axes.plot(counts, np.asarray(_curve(each, counts)), label=name)
    axes.set_xlabel("steps")
    axes.set_ylabel("value")
    axes.legend()
    return axes


def default_labels(schedules: Sequence[Schedule]) -> list[str]:
    """Names of classes and functions; equal names get the fields that differ."""
    names = [getattr(s, "__name__", type(s).__name__) for s in schedules]
    counts = Counter(names)
    return [
        name + _differences(each, [s for s in schedules if type(s) is type(each)])
        if counts[name] > 1
        else name
        for each, name in zip(schedules, names, strict=True)
    ]


def _differences(each: Schedule, kin: Sequence[Schedule]) -> str:
    if not isinstance(each, eqx.Module):
        return ""
    shown = []
    for field in dataclasses.fields(each):
        texts = [_text(getattr(other, field.name)) for other in kin]
        if len(set(texts)) > 1:
            shown.append(f"{field.name}={_text(getattr(each, field.name))}")
    return f"({', '.join(shown)})" if shown else ""


def _text(value: Any) -> str:
    is_scalar = isinstance(value, Array | np.ndarray) and value.ndim == 0
    return repr(value.item() if is_scalar else value)


def _curve(
    each: Callable[[Any], Any], counts: Int[np.ndarray, " points"]
) -> Float[Array, " points"]:
    value = lambda count: jnp.asarray(each(count)).astype(jnp.float32)
    # The counts of optimizers also stop at the largest one.
    return jax.vmap(value)(jnp.asarray(np.minimum(counts, _LARGEST), jnp.int32))


def _check(schedules: Sequence[Any], steps: int, labels: Sequence[str] | None) -> None:
    if not schedules:
        raise ValueError(
            "eqopt.plot.schedule: there must be at least one schedule to draw. Pass "
            "them first: `eqopt.plot.schedule(CosineDecay(1e-3, 900), steps=1000)`."
        )
    for i, each in enumerate(schedules):
        if not callable(each) or isinstance(each, type) or may_be_model(each):
            raise TypeError(
                "eqopt.plot.schedule: the schedules must be functions of the count, "
                f"but number {i} is {briefly(each)}. For a fixed value, use "
                "`Constant(...)`."
            )
    if steps < 1:
        raise ValueError(
            f"eqopt.plot.schedule: `steps` must be at least 1, but is {steps}."
        )
    if labels is not None and len(labels) != len(schedules):
        raise ValueError(
            "eqopt.plot.schedule: `labels` must have one entry for each of the "
            f"{len(schedules)} schedules, but has {len(labels)}."
        )
