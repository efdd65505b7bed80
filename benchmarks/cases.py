"""The benchmarks, one row for each."""

import functools
from typing import Literal, NamedTuple

from tests.methods import BY_FAMILY
from tests.methods.method import Method

from . import gradients, lbfgs, losses
from .contestants import (
    ADAMW,
    APPLY_IF_FINITE,
    BESIDE_ADAMW,
    CLIP_ADAMW,
    CONDITIONALLY_TRANSFORM,
    FLATTEN,
    LOOKAHEAD,
    MOMENTUM,
    MULTI_STEPS,
    MULTI_STEPS_MUON,
    MULTI_STEPS_UPDATE,
    MUON,
    Optax,
    Pair,
)
from .measures import (
    Measure,
    eager,
    few_small_leaves,
    importing,
    large_leaves,
    square_leaves,
    stepping,
    tracing,
    tracing_cold,
)
from .optimizers import OPTIMIZERS


class Case(NamedTuple):
    """One benchmark.

    **Attributes:**

    - `name`: the name for `--only`.
    - `what`: the name in the table; `{size}`, `{leaves}` and `{few}` are filled in.
    - `measure`: the function that measures.
    - `ratio`: the target for the time of eqopt, as a multiple of the other time.
    - `temporary`: the target for the temporary memory of eqopt, as a multiple of the
        memory of the parameters.
    - `against`: the library to compare with.
    - `statistic`: which statistic of all timed calls counts.
    - `nearest`: what Optax has instead, if it does not have the optimizer.
    """

    name: str
    what: str
    measure: Measure
    ratio: float | None = None
    temporary: float | None = None
    against: str = "Optax"
    statistic: Literal["best", "median"] = "best"
    nearest: str = ""


# For each name, a description and the code that creates it in either library.
SMALL = {
    "adam": ("Adam", "eqopt.Adam(1e-3)", "optax.adam(1e-3)"),
    "adamw": ("AdamW", "eqopt.AdamW(1e-3)", "optax.adamw(1e-3)"),
    "clip-adamw": (
        "clip + AdamW",
        "eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3))",
        "optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))",
    ),
    "lion": ("Lion", "eqopt.Lion(1e-3)", "optax.lion(1e-3)"),
    "momentum": (
        "SGD + momentum",
        "eqopt.SGD(1e-3, momentum=0.9)",
        "optax.sgd(1e-3, momentum=0.9)",
    ),
}

# What wrappers that Optax does not have are compared with: AdamW of eqopt without them.
ALONE = "AdamW"

TABLE = (
    Case(
        "trace-step",
        "clip + AdamW, `step`, {leaves} leaves: trace + lower",
        tracing(CLIP_ADAMW, "step"),
        ratio=0.45,
    ),
    Case(
        "trace-update",
        "clip + AdamW, `update`, {leaves} leaves: trace + lower",
        tracing(CLIP_ADAMW, "update"),
        ratio=0.45,
    ),
    *(
        Case(
            f"trace-small-{name}",
            f"{what}, `step`, 20 leaves, a new process: trace + lower",
            tracing_cold(Pair(*optimizers)),
            ratio=1.5,
            statistic="median",
        )
        for name, (what, *optimizers) in SMALL.items()
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
        ratio=0.6,
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
        "multi-steps-update",
        "MultiSteps(AdamW, 8), {size} parameters: a mini-step by `update`",
        stepping(MULTI_STEPS_UPDATE, period=8),
        ratio=0.5,
    ),
    Case(
        "multi-steps-muon",
        "MultiSteps(Muon, 8), 48 matrices of 256 x 256: a mini-step",
        stepping(MULTI_STEPS_MUON, period=8, leaves=square_leaves),
        ratio=0.2,
    ),
    Case(
        "apply-if-finite",
        "ApplyIfFinite(AdamW), {size} parameters: a step",
        stepping(APPLY_IF_FINITE),
        ratio=0.6,
        temporary=0.05,
    ),
    Case(
        "lookahead",
        "Lookahead(AdamW, 5), {size} parameters: a step",
        stepping(LOOKAHEAD, period=5),
        ratio=0.6,
        temporary=0.05,
    ),
    Case(
        "conditionally-transform",
        "ConditionallyTransform(AdamW), every second step, {size} parameters: a step",
        stepping(CONDITIONALLY_TRANSFORM, period=2),
        ratio=0.75,
        temporary=0.05,
    ),
    Case(
        "flatten",
        "Flatten(AdamW), {few} small leaves: a step",
        stepping(FLATTEN, leaves=few_small_leaves),
        ratio=1.0,
    ),
    Case(
        "flatten-compile",
        "Flatten(AdamW), {few} small leaves: trace + lower + compile",
        tracing(FLATTEN, "step", compiles=True),
        ratio=1.0,
    ),
    *(
        Case(
            name,
            f"{beside.what}, {{size}} parameters: a step",
            stepping(Pair(beside.optimizer, ADAMW), period=10, compares=False),
            ratio=1.05 * beside.copies / 7,
            against=ALONE,
        )
        for name, beside in BESIDE_ADAMW.items()
    ),
    Case("momentum", "SGD + momentum, {size} parameters: a step", stepping(MOMENTUM)),
    Case(
        "muon",
        "Muon, 48 matrices of 256 x 256: a step",
        stepping(MUON, leaves=square_leaves),
        ratio=0.95,
    ),
    Case(
        "muon-compile",
        "Muon, 48 matrices of 256 x 256: trace + lower + compile",
        tracing(MUON, "step", compiles=True, leaves=square_leaves),
        ratio=0.4,
    ),
    Case(
        "lbfgs",
        "L-BFGS, a fifth of {size} parameters, a cheap loss: a step",
        lbfgs.minimising(lbfgs.bowl),
        ratio=1.0,
        temporary=6.1,
    ),
    Case(
        "lbfgs-digits",
        "L-BFGS, network of 2,410 parameters, 1797 digits: a step",
        lbfgs.minimising(lbfgs.network),
        ratio=1.0,
    ),
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

# What the README shows, in its order.
README = tuple(
    case
    for name in (
        "trace-step",
        "clip-adamw",
        "multi-steps",
        "apply-if-finite",
        "momentum",
        "muon",
        "import-all",
    )
    for case in TABLE
    if case.name == name
)


def _step(name: str, method: Method) -> Case:
    rate = 1e-3
    pair = Pair(method.ours(rate), Optax(method.theirs(rate)))
    of_matrices = method in BY_FAMILY["matrix"]
    measure = stepping(
        pair,
        examples=2 if method.per_example else None,
        compares=not method.deviates,
        leaves=square_leaves if of_matrices else large_leaves,
    )
    size = "3M" if of_matrices else "{size}"
    return Case(
        name,
        f"{name}, {size} parameters: a step",
        measure,
        ratio=method.ratio,
        nearest=method.nearest,
    )


# A step of every optimizer, in a separate table.
EVERY_OPTIMIZER = tuple(_step(*item) for item in OPTIMIZERS.items())

# Gradients, in a separate table.
GRADIENTS = (
    *(
        Case(
            f"clipped-grad-{problem.__name__}",
            f"`clipped_grad`, {what}",
            gradients.differentiating(
                problem, Pair(gradients.clipped, gradients.plain), compares=False
            ),
            ratio=2.5,
            against="the plain gradient",
        )
        for problem, what in (
            (gradients.mlp, "MLP of 1.3M parameters, 128 examples: a call"),
            (gradients.cnn, "3 convolutions, 64 images of 32 x 32: a call"),
            (gradients.transformer, "2 blocks of width 128, 16 x 64 tokens: a call"),
        )
    ),
    Case(
        "clipped-grad",
        "`clipped_grad`, the same MLP, where Optax clips 16 examples at a time: a call",
        gradients.differentiating(
            gradients.mlp,
            Pair(gradients.clipped, gradients.clipped_by_optax),
            calls=1,
        ),
        ratio=0.02,
    ),
    Case(
        "micro-grad",
        "`micro_grad`, gradients and squares, the same MLP, 16 at a time: a call",
        gradients.differentiating(
            gradients.mlp,
            Pair(gradients.squares, gradients.squares_by_optax),
            calls=1,
        ),
        ratio=0.2,
    ),
    Case(
        "ctc",
        "`ctc_loss`, 16 utterances of 400 frames, 60 labels: the gradient",
        gradients.differentiating(
            losses.utterances, Pair(losses.ctc, losses.ctc_by_optax)
        ),
        ratio=1.0,
    ),
    *(
        Case(
            f"micro-value-and-grad-{problem.__name__}",
            f"`micro_value_and_grad`, the same {what}, {size} at a time: a call",
            gradients.differentiating(
                functools.partial(problem, rows=16 * size),
                Pair(gradients.microbatched, gradients.plain),
            ),
            ratio=1.15,
            against="the plain gradient",
        )
        for problem, what, size in (
            (gradients.mlp, "MLP, 1024 examples", 64),
            (gradients.cnn, "convolutions, 1024 images", 64),
        )
    ),
)

CASES = TABLE + EVERY_OPTIMIZER + GRADIENTS
