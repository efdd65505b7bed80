"""Draws the variance of estimators of gradients over the width of the distribution.

python docs/examples/draw_estimators.py estimators.svg
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eqopt import monte_carlo


MEAN = jnp.ones(1)
SCALES = jnp.geomspace(0.03, 10, 31)
NUM_SAMPLES = 4000
ROUNDING = 1e-6
FUNCTIONS = {
    r"$f(x) = (x - 3)^2$": lambda x: (x[0] - 3) ** 2,
    r"$f(x) = \cos(2 x)$": lambda x: jnp.cos(2 * x[0]),
    r"$f(x) = \exp(-x^2 / 2)$": lambda x: jnp.exp(-(x[0] ** 2) / 2),
}


def baseline(estimator, function, *args):
    """With the baseline of a run that has gone on for long."""
    params, build, key, num_samples = args
    samples = build(*params).sample(key, (num_samples,))
    state = monte_carlo.MovingAvgBaselineState(
        jnp.mean(jax.vmap(function)(samples)), 1.0
    )
    return monte_carlo.control_variates_jacobians(
        function,
        monte_carlo.moving_avg_baseline,
        estimator,
        *args,
        control_variate_state=state,
    )[0]


def delta(estimator, function, *args, **kwargs):
    make = monte_carlo.control_delta_method
    return monte_carlo.control_variates_jacobians(
        function, make, estimator, *args, **kwargs
    )[0]


SCORE = monte_carlo.score_function_jacobians
PATHWISE = monte_carlo.pathwise_jacobians
MEASURE = monte_carlo.measure_valued_jacobians
ESTIMATED = {"estimate_cv_coeffs": True, "estimate_cv_coeffs_num_samples": 1000}
# One colour to an estimator, and one kind of line to a control variate.
ESTIMATORS = {
    "score function": (SCORE, "#d95f02", "-"),
    "score function, baseline": (partial(baseline, SCORE), "#d95f02", "--"),
    "score function, delta method": (partial(delta, SCORE), "#d95f02", ":"),
    "the same, β estimated": (partial(delta, SCORE, **ESTIMATED), "#d95f02", "-."),
    "pathwise": (PATHWISE, "#1f4e9c", "-"),
    "pathwise, delta method": (partial(delta, PATHWISE), "#1f4e9c", ":"),
    "measure-valued": (MEASURE, "#1b9e77", "-"),
    "measure-valued, not coupled": (partial(MEASURE, coupling=False), "#1b9e77", "--"),
}


def variances(function, estimator) -> np.ndarray:
    """By the mean and by the logarithm of the scale, for each of the scales."""

    def at(scale):
        params = (MEAN, jnp.log(scale)[None])
        build = monte_carlo.MultiNormalDiag
        jacobians = estimator(function, params, build, jax.random.key(0), NUM_SAMPLES)
        return jnp.stack([jnp.var(j) for j in jacobians])

    found = np.asarray(jax.jit(lambda: jax.lax.map(at, SCALES))())
    # A logarithm has no place for what is zero but for rounding errors.
    return np.where(found > ROUNDING, found, np.nan)


def draw(axes: Axes, lines, row: int) -> None:
    for label, (values, colour, dash) in lines.items():
        axes.plot(
            SCALES, values[:, row], dash, color=colour, linewidth=1.6, label=label
        )
    axes.set(xscale="log", yscale="log", ylim=(1e-5, 1e5))
    axes.set_xlabel(r"standard deviation $\sigma$", fontsize=9.5)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if any(np.isnan(values[:, row]).all() for values, _, _ in lines.values()):
        note = "with the delta method: 0"
        axes.text(0.95, 0.04, note, fontsize=9, ha="right", transform=axes.transAxes)


def main(output: str) -> None:
    figure = Figure(figsize=(10.5, 7.2), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    for column, (title, function) in enumerate(FUNCTIONS.items()):
        lines = {
            label: (variances(function, estimator), colour, dash)
            for label, (estimator, colour, dash) in ESTIMATORS.items()
        }
        for row, parameter in enumerate([r"$\mu$", r"$\log \sigma$"]):
            axes = panels[row, column]
            draw(axes, lines, row)
            axes.label_outer()
            if row == 0:
                axes.set_title(title, fontsize=11)
            if column == 0:
                axes.set_ylabel(f"variance, by {parameter}", fontsize=9.5)
    handles, labels = panels[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
