"""Training runs: losses over time, and final losses over learning rates."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import ArrayLike, Float

from .._types import RealScalarLike
from ._axes import axes_or_current


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

    An `ImportError` without matplotlib; a `ValueError` if there are no losses, if
    `steps` is not a vector, or if an array of losses has another number of axes, or
    another number of points than `steps`.
    """
    name = "training_curves"
    points = None if steps is None else np.asarray(steps)
    if points is not None and points.ndim != 1:
        raise ValueError(
            f"eqopt.plot.{name}: `steps` must be a vector of numbers, but has shape "
            f"{points.shape}."
        )
    arrays = _arrays(losses, name, None if points is None else len(points), "steps")
    axes = axes_or_current(axes, name)
    for label, values in arrays.items():
        at = np.arange(1, values.shape[1] + 1) if points is None else points
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

    An `ImportError` without matplotlib; a `ValueError` if there are no losses, if an
    array of losses has another number of axes, or another number of entries than
    `rates`, or if a rate is not positive.
    """
    name = "learning_rates"
    at = np.asarray(rates, np.float64)
    if at.ndim != 1 or not (at > 0).all():
        raise ValueError(
            f"eqopt.plot.{name}: `rates` must be a vector of positive numbers, but is "
            f"{rates}."
        )
    arrays = _arrays(losses, name, len(at), "rates")
    axes = axes_or_current(axes, name)
    for label, values in arrays.items():
        [line] = _line(axes, at, values, label, marker="o", markersize=3)
        failed = at[~np.isfinite(values).all(0)]
        # In axes coordinates, so that it is at the edge for all losses.
        axes.plot(
            failed,
            np.full(len(failed), 0.98),
            "x",
            color=line.get_color(),
            markersize=4,
            transform=axes.get_xaxis_transform(),
        )
    axes.set_xscale("log")
    _finish(axes, arrays, "learning rate", target)
    return axes


def _arrays(
    losses: Mapping[str, Numbers], name: str, size: int | None, of: str
) -> dict[str, Float[np.ndarray, "seeds points"]]:
    if not losses:
        raise ValueError(
            f"eqopt.plot.{name}: `losses` is empty. Pass the losses of at least one run "
            'by its name: `{"Adam": losses}`.'
        )
    arrays = {}
    for label, given in losses.items():
        try:
            values = np.asarray(given, np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"eqopt.plot.{name}: the losses of {label!r} must be an array of "
                f"numbers, but are not: {error}."
            ) from None
        if values.ndim not in (1, 2) or (size is not None and values.shape[-1] != size):
            wanted = "n" if size is None else str(size)
            also = "" if size is None else f" for the {size} `{of}`"
            raise ValueError(
                f"eqopt.plot.{name}: the losses of {label!r} must have the shape "
                f"({wanted},) or (seeds, {wanted}){also}, but have {values.shape}."
            )
        arrays[label] = np.atleast_2d(values)
    return arrays


def _line(axes: Any, at: Any, values: Any, label: str, **style: Any) -> Any:
    is_finite = np.isfinite(values).all(0)
    shown = np.where(is_finite, values, np.nan)
    lines = axes.plot(at, shown.mean(0), label=label, linewidth=1.4, **style)
    if len(values) > 1:
        ends = shown.min(0), shown.max(0)
        axes.fill_between(at, *ends, color=lines[0].get_color(), alpha=0.2, linewidth=0)
    return lines


def _finish(
    axes: Any, arrays: Mapping[str, Any], xlabel: str, target: RealScalarLike | None
) -> None:
    if target is not None:
        axes.axhline(target, color="0.5", linewidth=1, linestyle="--")
    finite = np.concatenate([values[np.isfinite(values)] for values in arrays.values()])
    if finite.size and finite.min() > 0:
        axes.set_yscale("log")
        if finite.max() < 30 * finite.min():  # plain numbers, where they fit
            axes.yaxis.set_major_formatter("{x:.3g}")
            axes.yaxis.set_minor_formatter("{x:.3g}")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("loss")
    axes.legend()
