"""The benchmarks: one row each."""

from typing import Literal, NamedTuple

from .contestants import (
    ADAM,
    APPLY_IF_FINITE,
    CLIP_ADAMW,
    LION,
    MOMENTUM,
    MULTI_STEPS,
    Pair,
)
from .measures import Measure, eager, importing, stepping, tracing


class Case(NamedTuple):
    """One benchmark.

    **Attributes:**

    - `name`: what `--only` calls it.
    - `what`: what the table calls it; `{size}`, `{leaves}` and `{few}` are filled in.
    - `measure`: the work.
    - `ratio`: the target: eqopt's time at most this times the other's.
    - `temporary`: the target: eqopt's temporary memory below this times the parameters.
    - `against`: the other.
    - `statistic`: of all calls timed, which one counts.
    """

    name: str
    what: str
    measure: Measure
    ratio: float | None = None
    temporary: float | None = None
    against: str = "Optax"
    statistic: Literal["best", "median"] = "best"


CASES = (
    Case(
        "trace-step",
        "clip + AdamW, `step`, {leaves} leaves: trace + lower",
        tracing(CLIP_ADAMW, "step"),
        ratio=0.35,
    ),
    Case(
        "trace-update",
        "clip + AdamW, `update`, {leaves} leaves: trace + lower",
        tracing(CLIP_ADAMW, "update"),
        ratio=0.35,
    ),
    Case(
        "compile",
        "clip + AdamW, `step`, {few} leaves: trace + lower + compile",
        tracing(CLIP_ADAMW, "step", compiles=True),
    ),
    Case(
        "eager",
        "clip + AdamW, `update`, {few} leaves: eager",
        eager(CLIP_ADAMW),
        ratio=0.5,
    ),
    Case(
        "clip-adamw",
        "clip + AdamW, {size} parameters: a step",
        stepping(CLIP_ADAMW),
        ratio=0.7,
        temporary=0.01,
    ),
    Case(
        "multi-steps",
        "MultiSteps(AdamW, 8), {size} parameters: a mini-step",
        stepping(MULTI_STEPS, period=8),
        ratio=0.2,
        temporary=0.01,
    ),
    Case(
        "apply-if-finite",
        "ApplyIfFinite(AdamW), {size} parameters: a step",
        stepping(APPLY_IF_FINITE),
        ratio=0.65,
        temporary=0.05,
    ),
    Case("adam", "Adam, {size} parameters: a step", stepping(ADAM)),
    Case("lion", "Lion, {size} parameters: a step", stepping(LION)),
    Case("momentum", "SGD + momentum, {size} parameters: a step", stepping(MOMENTUM)),
    Case(
        "import",
        "`import eqopt` against `import equinox`",
        importing(Pair("import eqopt", "import equinox")),
        ratio=1.5,
        against="Equinox",
        statistic="median",
    ),
    Case(
        "import-all",
        "`from eqopt import *` against `import optax`",
        importing(Pair("from eqopt import *", "import optax")),
        statistic="median",
    ),
)
