"""Draws the schedules of eqopt, by kinds.

python docs/examples/draw_schedules.py schedules.svg
"""

import sys

from matplotlib.figure import Figure

from eqopt import plot
from eqopt.schedules import (
    SGDR,
    Constant,
    CosineDecay,
    CosineOneCycle,
    CosineRestarts,
    Cyclic,
    ExponentialDecay,
    InverseSquareRoot,
    Join,
    Linear,
    LinearOneCycle,
    MultiStep,
    PiecewiseConstant,
    PiecewiseInterpolate,
    Polynomial,
    Step,
    WarmupConstant,
    WarmupCosineDecay,
    WarmupDecay,
    WarmupExponentialDecay,
    WarmupStableDecay,
)


STEPS = 101
_CYCLE = {"init_value": 0.1, "warmup_steps": 5}

# A title, the schedules, and what to call them instead of by their classes.
PANELS = [
    (
        "down",
        [
            Constant(0.9),
            Linear(1.0, 0.0, 90),
            Polynomial(1.0, 0.0, 2, 90),
            CosineDecay(1.0, 90),
            ExponentialDecay(1.0, 20, 0.5),
        ],
        None,
    ),
    (
        "after a warm-up",
        [
            WarmupConstant(0.0, 1.0, 15),
            WarmupCosineDecay(0.0, 1.0, 15, 90),
            WarmupExponentialDecay(0.0, 1.0, 15, 20, 0.5),
            InverseSquareRoot(0.0, 1.0, 15),
        ],
        None,
    ),
    (
        "WarmupStableDecay",
        [
            WarmupStableDecay(0.0, 1.0, 15, 95, 35, cooldown=cooldown)
            for cooldown in ("linear", "cosine", "1-sqrt")
        ],
        ["linear", "cosine", "1-sqrt"],
    ),
    (
        "WarmupDecay",
        [
            WarmupDecay(95, warmup=0.1, decay=0.3),
            WarmupDecay(95, 0.1, 0.3, rewarmup=0.1, cycles=3, alpha=0.2),
            WarmupDecay(95, 15, cycles=[0.5], peak_value=0.8, alpha=0.1),
        ],
        [
            "warmup=0.1, decay=0.3",
            "... rewarmup=0.1, cycles=3, alpha=0.2",
            "warmup=15, cycles=[0.5], alpha=0.1",
        ],
    ),
    (
        "in steps and pieces",
        [
            Step(1.0, 20, 0.6),
            MultiStep(1.0, [50, 80], 0.3),
            PiecewiseConstant(0.5, {30: 1.6, 70: 0.25}),
            PiecewiseInterpolate("cosine", 0.5, {30: 1.8, 70: 0.2}),
        ],
        None,
    ),
    ("one cycle", [LinearOneCycle(95, 1.0), CosineOneCycle(95, 1.0)], None),
    (
        "restarts",
        [
            CosineRestarts(1.0, 14, 2),
            SGDR(
                [
                    {**_CYCLE, "peak_value": 0.9, "decay_steps": 40},
                    {**_CYCLE, "peak_value": 0.5, "decay_steps": 55},
                ]
            ),
        ],
        None,
    ),
    (
        "Cyclic",
        [
            Cyclic(0.1, 1.0, 12, mode="triangular"),
            Cyclic(0.1, 1.0, 12, mode="triangular2"),
            Cyclic(0.1, 1.0, 12, mode="exp_range", gamma=0.98),
        ],
        ["triangular", "triangular2", "exp_range"],
    ),
    (
        "combined",
        [
            Join([Linear(0.0, 0.9, 30), Step(0.9, 20, 0.5)], [30]),
            CosineDecay(1.0, 95) * Cyclic(0.6, 1.0, 6),
            (1.4 * CosineDecay(1.0, 95)).clip(0.1, 0.7),
        ],
        ["Join([a, b], [30])", "a * b", "(1.4 * a).clip(0.1, 0.7)"],
    ),
]


def main(output: str) -> None:
    figure = Figure(figsize=(11, 8.1), layout="constrained")
    panels = figure.subplots(3, 3, sharex=True, sharey=True)
    for axes, (title, schedules, labels) in zip(panels.flat, PANELS, strict=True):
        plot.schedule(*schedules, steps=STEPS, labels=labels, axes=axes)
        axes.set_title(title, fontsize=10, loc="left")
        axes.legend(fontsize=7.5, loc="upper right", frameon=False)
        axes.set_ylim(-0.03, 1.72)
        axes.set_yticks([0, 0.5, 1])
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.label_outer()
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
