"""Draws losses over their argument: of an error, and of a margin.

python docs/examples/draw_losses.py losses.svg
"""

import sys

import jax.numpy as jnp
from matplotlib.figure import Figure

from eqopt import losses


REGRESSION = {
    "squared_error": losses.squared_error,
    "l2_loss": losses.l2_loss,
    "huber_loss": losses.huber_loss,
    "log_cosh": losses.log_cosh,
}
MARGIN = {
    "sigmoid_binary_cross_entropy": lambda x: losses.sigmoid_binary_cross_entropy(x, 1),
    "sigmoid_focal_loss": lambda x: losses.sigmoid_focal_loss(x, 1),
    "hinge_loss": lambda x: losses.hinge_loss(x, 1),
    "sparsemax_loss": lambda x: losses.sparsemax_loss(x, 1),
    "perceptron_loss": lambda x: losses.perceptron_loss(x, 1),
}
# Told apart by eyes that see no colours, too.
COLOURS = ["#1f4e9c", "#d95f02", "#1b9e77", "#7a3b8f", "#555555"]
DASHES = ["-", "--", "-", "-.", ":"]


def draw(axes, title, xlabel, functions, x):
    for (name, fn), colour, dash in zip(
        functions.items(), COLOURS, DASHES, strict=False
    ):
        axes.plot(x, fn(x), dash, color=colour, linewidth=1.8, label=name)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(xlabel, fontsize=10)
    axes.set_ylabel("loss", fontsize=10)
    axes.set_ylim(-0.1, 4)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, framealpha=1)


def main(output: str) -> None:
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = jnp.linspace(-3.5, 3.5, 141)
    draw(left, "of an error", "predictions - targets", REGRESSION, x)
    draw(right, "of a margin", "score of a positive example", MARGIN, x)
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
