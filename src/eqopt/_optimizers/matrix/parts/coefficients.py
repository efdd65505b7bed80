"""Published coefficients of Newton-Schulz iterations, by name."""

import contextlib
from typing import Any, Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float

from ...._errors import InputError


Rows: TypeAlias = tuple[tuple[float, float, float], ...]
Name: TypeAlias = Literal[
    "standard",
    "dion",
    "polar_express",
    "polar_express_8",
    "cans",
    "aol",
    "cubic",
    "deepseek",
    "simple",
]
Coefficients: TypeAlias = Name | tuple | Array | np.ndarray


class Table(NamedTuple):
    """Rows $(a, b, c)$, one for each step.

    **Attributes:**

    - `rows`: the coefficients.
    - `norm_factor`: a factor for the Frobenius norm at the start. If the polynomial is
        above 1 at 1, singular values that exceed 1 by a rounding error would diverge
        without it.
    - `repeats_last`: whether steps beyond the last row repeat it. Otherwise, the rows
        start again.
    - `is_coarse`: whether the authors iterate in bfloat16. The rows of CANS diverge in
        it: their first polynomial is 2 at 1, and the second has slope 13 at 2.
    """

    rows: Rows | Float[Array, "steps 3"]
    norm_factor: float = 1.0
    repeats_last: bool = False
    is_coarse: bool = False


STANDARD = (3.4445, -4.7750, 2.0315)
_QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
# Computed with a safety margin of 0.02, for which the norm factor compensates.
_POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
# Computed with a safety margin of 0.01, which these rows already include.
_POLAR_EXPRESS_8 = (
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
    (1.8726, -1.2307, 0.3585),
    (1.8564, -1.2132, 0.3568),
    (1.875, -1.25, 0.375),
)
_CANS = (
    (8.4703, -25.1081, 18.6293),
    (4.1828, -3.1087, 0.5806),
    (3.9619, -2.9541, 0.5630),
    (3.2866, -2.4647, 0.5074),
    (2.2737, -1.6447, 0.4162),
)
_AOL = (
    (4.0098, -7.0585, 2.4635),
    (3.4585, -5.5479, 2.5959),
    (2.7573, -3.2939, 1.4254),
    (2.7215, -3.0494, 1.3169),
)
_CUBIC = (
    (3.3656576, -3.3420992, 0.0),
    (2.5744352, -1.4957376, 0.0),
    (2.5368962, -1.4312570, 0.0),
    (2.4418906, -1.2764040, 0.0),
    (2.2230472, -0.9630650, 0.0),
)
_SIMPLE = (2.0, -1.5, 0.5)

TABLES: dict[str, Table] = {
    "standard": Table((STANDARD,) * 5, is_coarse=True),
    "dion": Table(_QUINTIC, is_coarse=True),
    "polar_express": Table(_POLAR_EXPRESS, 1.02, repeats_last=True, is_coarse=True),
    "polar_express_8": Table(_POLAR_EXPRESS_8, repeats_last=True),
    "cans": Table(_CANS, repeats_last=True),
    "aol": Table(_AOL, is_coarse=True),
    "cubic": Table(_CUBIC),
    "deepseek": Table(
        (STANDARD,) * 8 + (_SIMPLE,) * 2, repeats_last=True, is_coarse=True
    ),
    "simple": Table((_SIMPLE,) * 12, is_coarse=True),
}


def rows_of(owner: str, coefficients: Coefficients, steps: int | None) -> Table:
    """A table with the coefficients of all steps.

    **Raises:**

    A `ValueError` if there is no table with this name, or if the shape is wrong.
    """
    if isinstance(coefficients, str):
        if coefficients not in TABLES:
            raise InputError(
                owner,
                f"`coefficients` must be one of {[*TABLES]} or numbers, but is "
                f"{coefficients!r}.",
            )
        table = TABLES[coefficients]
    else:
        rows = given_rows(owner, "coefficients", coefficients)
        if rows.ndim == 1:
            return Table(jnp.tile(rows, (5 if steps is None else steps, 1)))
        table = Table(rows)
    if steps is None:
        return table
    rows, order = jnp.asarray(table.rows, float), np.arange(steps)
    n = len(rows)
    order = np.minimum(order, n - 1) if table.repeats_last else order % n
    return table._replace(rows=rows[order])


def given_rows(owner: str, name: str, coefficients: Any) -> Float[Array, "*steps 3"]:
    """The coefficients in the argument `name`: one row, or one row per step."""
    rows = None
    # JAX takes a text for the name of a dtype, and a name may be deprecated.
    if not any(isinstance(x, str) for x in jtu.tree_leaves(coefficients)):
        # There may be no numbers, or rows of several lengths.
        with contextlib.suppress(TypeError, ValueError):
            rows = jnp.asarray(coefficients)
    if rows is None or rows.dtype == bool or jnp.iscomplexobj(rows):
        raise InputError(
            owner,
            f"`{name}` must be three real numbers, or rows of three, but is "
            f"{coefficients!r}.",
        )
    rows = rows.astype(float)
    if rows.ndim not in (1, 2) or rows.shape[-1] != 3 or len(rows) == 0:
        raise InputError(
            owner,
            f"`{name}` must have shape (3,), or (steps, 3) for one row per "
            f"step, but has shape {rows.shape}.",
        )
    return rows
