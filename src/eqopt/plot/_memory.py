"""Bytes of states."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..tree import ByteCount
from ._axes import axes_or_current


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

    An `ImportError` without matplotlib; a `ValueError` if there are no counts.
    """
    if not counts:
        raise ValueError(
            "eqopt.plot.state_memory: `counts` is empty. Pass at least one count by its "
            'name: `{"AdamW": eqopt.tree.nbytes(state, model)}`.'
        )
    axes = axes_or_current(axes, "state_memory")
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
