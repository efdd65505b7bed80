"""Where pictures are drawn."""

import importlib
from typing import Any


def axes_or_current(axes: Any, name: str) -> Any:
    """`axes`, or the current ones of pyplot. `name` is the function that draws."""
    if axes is not None:
        return axes
    try:
        return importlib.import_module("matplotlib.pyplot").gca()
    except ImportError as error:
        raise ImportError(
            f"eqopt.plot.{name} needs matplotlib, which cannot be imported. Install it "
            "with `pip install 'eqopt[plot]'`."
        ) from error
