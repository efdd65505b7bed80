"""The axes to draw in."""

import importlib
from typing import Any


def axes_or_current(axes: Any, name: str) -> Any:
    """`axes`, or pyplot's current axes. `name` is the name of the calling function."""
    if axes is not None:
        if not hasattr(axes, "plot"):
            raise TypeError(
                f"eqopt.plot.{name}: `axes` must be the axes of matplotlib to draw in, "
                f"such as `figure.subplots()`, but is of type `{type(axes).__name__}`."
            )
        return axes
    try:
        return importlib.import_module("matplotlib.pyplot").gca()
    except ImportError as error:
        raise ImportError(
            f"eqopt.plot.{name} needs matplotlib, which cannot be imported. Install it "
            "with `pip install matplotlib`."
        ) from error
