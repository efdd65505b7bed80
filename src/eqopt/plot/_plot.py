"""Pictures of training runs, power laws, schedules and states, with matplotlib."""

import dataclasses
import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from .._errors import InputError
from .._types import RealScalarLike, Schedule
from ..transfer import Fit, Plan
from ..tree import ByteCount


Numbers: TypeAlias = ArrayLike | Sequence[Any]


def training_curves(
    losses: Mapping[str, Numbers],
    *,
    steps: Numbers | None = None,
    target: RealScalarLike | None = None,
    axes: Any = None,
) -> Any:
    """Compares training runs: a line for each, and a band for several seeds.

    Lines are means over seeds, and bands range from the lowest to the highest. Losses
    that are not finite are omitted.

    !!! example

        ```python
        losses = {"Adam": adam_losses, "Muon": muon_losses}
        eqopt.plot.training_curves(losses, steps=range(0, 1000, 50), target=0.1)
        ```

    It needs matplotlib: `pip install matplotlib`.

    **Arguments:**

    - `losses`: the losses of each run, by the name for the legend: an array of shape
        (points,) or (seeds, points).
    - `steps`: the numbers of steps at these points, in increasing order. Defaults to 1,
        2, ….
    - `target`: a loss to draw a dashed line at.
    - `axes`: the `matplotlib.axes.Axes` to draw in. Defaults to the current ones.

    **Returns:**

    The axes. If all losses are positive, their scale is logarithmic.

    **Raises:**

    An `ImportError` without matplotlib; a `ValueError` if an array of losses has another
    number of axes, or another number of points than `steps`.
    """
    arrays, axes = _arrays(losses), _axes_or_current(axes)
    for label, values in arrays.items():
        at = np.arange(1, values.shape[1] + 1) if steps is None else np.asarray(steps)
        _line(axes, at, values, label)
    _finish(axes, arrays, "steps", target)
    return axes


def learning_rates(
    rates: Numbers,
    losses: Mapping[str, Numbers],
    *,
    target: RealScalarLike | None = None,
    axes: Any = None,
) -> Any:
    """Draws final losses over learning rates, to show how sensitive they are.

    A line ends where the loss is no longer finite; a cross at the upper edge marks
    learning rates with which training fails. With several seeds, the line is their
    mean, and a band ranges from the lowest to the highest.

    !!! example

        ```python
        rates = np.geomspace(1e-4, 1e-1, 7)
        eqopt.plot.learning_rates(rates, {"Adam": final_losses})
        ```

    It needs matplotlib: `pip install matplotlib`.

    **Arguments:**

    - `rates`: the learning rates, a vector of positive numbers.
    - `losses`: the final losses, by the name for the legend: an array of shape (rates,)
        or (seeds, rates). They may be infinite or NaN.
    - `target`: a loss to draw a dashed line at.
    - `axes`: the `matplotlib.axes.Axes` to draw in. Defaults to the current ones.

    **Returns:**

    The axes. If all finite losses are positive, their scale is logarithmic.

    **Raises:**

    An `ImportError` without matplotlib; a `ValueError` if an array of losses has another
    number of axes, or another number of entries than `rates`.
    """
    at, arrays = np.asarray(rates, np.float64), _arrays(losses)
    axes = _axes_or_current(axes)
    for label, values in arrays.items():
        [line] = _line(axes, at, values, label, marker="o", markersize=3)
        failed = at[~np.isfinite(values).all(0)]
        # In axes coordinates, so that it is at the edge for all losses.
        height, edge = np.full(len(failed), 0.98), axes.get_xaxis_transform()
        style = {"color": line.get_color(), "markersize": 4}
        axes.plot(failed, height, "x", transform=edge, **style)
    axes.set_xscale("log")
    _finish(axes, arrays, "learning rate", target)
    return axes


def _arrays(losses: Mapping[str, Numbers]) -> dict[str, np.ndarray]:
    """The losses of each label, of shape `(seeds, points)`."""
    return {x: np.atleast_2d(np.asarray(y, float)) for x, y in losses.items()}


def _line(axes: Any, at: Any, values: Any, label: str, **style: Any) -> Any:
    is_finite = np.isfinite(values).all(0)
    shown = np.where(is_finite, values, np.nan)
    lines = axes.plot(at, shown.mean(0), label=label, linewidth=1.4, **style)
    if len(values) > 1:
        ends = shown.min(0), shown.max(0)
        axes.fill_between(at, *ends, color=lines[0].get_color(), alpha=0.2, linewidth=0)
    return lines


def _finish(axes, arrays, xlabel, target) -> None:
    if target is not None:
        axes.axhline(target, color="0.5", linewidth=1, linestyle="--")
    finite = np.concatenate([values[np.isfinite(values)] for values in arrays.values()])
    if finite.size and finite.min() > 0:
        axes.set_yscale("log")
        if finite.max() < 30 * finite.min():  # plain numbers, where they fit
            axes.yaxis.set_major_formatter("{x:.3g}")
            axes.yaxis.set_minor_formatter("{x:.3g}")
    axes.set(xlabel=xlabel, ylabel="loss")
    axes.legend()


# As many as there are pixels to tell them apart.
_MOST_POINTS = 2000


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
    a `ValueError` if the numbers of labels and schedules differ.
    """
    axes = _axes_or_current(axes)
    spread = np.linspace(0, steps - 1, min(steps, _MOST_POINTS))
    counts = np.rint(spread).astype(np.int32)
    names = default_labels(schedules) if labels is None else labels
    for each, name in zip(schedules, names, strict=True):
        value = lambda count, each=each: jnp.asarray(each(count), jnp.float32)
        axes.plot(counts, np.asarray(jax.vmap(value)(counts)), label=name)
    axes.set(xlabel="steps", ylabel="value")
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


def power_law(
    fit: Fit, *, over: str | None = None, until: Plan | None = None, axes: Any = None
) -> Any:
    """Draws a fitted power law with its points, and the error of the law as a band.

    If the law has several exponents, the line is at the geometric mean of the other
    fields. The law moves all points there, so that distances to the line stay.

    !!! example

        ```python
        from eqopt.transfer import Plan

        plans = [Plan(tokens, 2**14) for tokens in (1e6, 2e6, 4e6, 8e6)]
        fit = eqopt.transfer.fit(plans, [8e-3, 6.1e-3, 5.2e-3, 4e-3])
        eqopt.plot.power_law(fit, until=Plan(6.4e7, 2**14))
        ```

    It needs matplotlib: `pip install matplotlib`.

    **Arguments:**

    - `fit`: a result of [`eqopt.transfer.fit`][].
    - `over`: the field of the plan on the axis, one with an exponent. Defaults to the
        first.
    - `until`: the plan up to which the line is continued. Defaults to `None`: the line
        covers the points.
    - `axes`: the `matplotlib.axes.Axes` to draw in. Defaults to the current ones.

    **Returns:**

    The axes. Both scales are logarithmic.

    **Raises:**

    An `ImportError` without matplotlib; a `ValueError` if `over` has no exponent.
    """
    over = next(iter(fit.errors)) if over is None else over
    if over not in fit.errors:
        raise InputError(f"`over` must be one of {[*fit.errors]}, but is {over!r}.")
    axes = _axes_or_current(axes)
    exponent, base = getattr(fit.law, over), getattr(fit.law.base, over)
    value_at = lambda x: fit.law.value * (np.asarray(x, float) / base) ** exponent
    xs = [getattr(plan, over) for plan in fit.plans]
    ratios = [y / fit.law(plan) for y, plan in zip(fit.values, fit.plans, strict=True)]
    ys = value_at(xs) * ratios
    ends = xs if until is None else [*xs, getattr(until, over)]
    at = np.geomspace(min(ends), max(ends), 50)
    line, t = value_at(at), np.log(at / base)
    # Errors of the height at the base, the mean of the points, and of the slope.
    height = fit.covariance[0][0]
    spread = np.exp(np.sqrt(height + (fit.errors[over] * t) ** 2))
    label = f"exponent {exponent:.3f} ± {fit.errors[over]:.3f}"
    [drawn] = axes.plot(at, line, linewidth=1.4, label=label)
    style = {"color": drawn.get_color(), "linewidth": 0}
    axes.fill_between(at, line / spread, line * spread, alpha=0.2, **style)
    axes.plot(xs, ys, "o", color=drawn.get_color(), markersize=4)
    axes.set(xscale="log", yscale="log", xlabel=over.replace("_", " "))
    axes.legend()
    return axes


def state_memory(counts: Mapping[str, ByteCount], *, axes: Any = None) -> Any:
    """Draws the number of bytes of states: one bar for each, divided into parts.

    The parts are the groups of parameters, or without groups the slots of the state,
    such as `"ScaleByAdamState.mu"`.

    !!! example

        ```python
        count = lambda opt: eqopt.tree.nbytes(
            eqx.filter_eval_shape(opt.init, model), model
        )
        eqopt.plot.state_memory({"AdamW": count(adamw), "Muon": count(muon)})
        ```

    It needs matplotlib: `pip install matplotlib`.

    **Arguments:**

    - `counts`: results of [`eqopt.tree.nbytes`][], by the name of the bar. If all of
        them were called with the parameters, bars are in bytes per parameter.
    - `axes`: the `matplotlib.axes.Axes` to draw in. Defaults to the current ones.

    **Returns:**

    The axes.

    **Raises:**

    An `ImportError` without matplotlib.
    """
    axes = _axes_or_current(axes)
    per_parameter = all(count.parameters for count in counts.values())
    parts = {name: _parts(count) for name, count in counts.items()}
    left = np.zeros(len(parts))
    for part in dict.fromkeys(part for row in parts.values() for part in row):
        size = np.array([row.get(part, 0.0) for row in parts.values()])
        if per_parameter:
            size = size / [count.parameters for count in counts.values()]
        axes.barh(list(parts), size, left=left, label=part)
        left += size
    axes.invert_yaxis()
    axes.set_xlabel("bytes per parameter" if per_parameter else "bytes")
    axes.legend()
    return axes


def _parts(count: ByteCount) -> dict[str, float]:
    groups = {name for row in count.slots.values() for name in row}
    if groups <= {""}:
        return {slot: float(sum(row.values())) for slot, row in count.slots.items()}
    of = lambda group: sum(row.get(group, 0) for row in count.slots.values())
    return {group or "(none)": float(of(group)) for group in sorted(groups)}


def _axes_or_current(axes: Any) -> Any:
    """`axes`, or pyplot's current axes."""
    if axes is None:
        return importlib.import_module("matplotlib.pyplot").gca()
    return axes
