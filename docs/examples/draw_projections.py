"""Draws projections in the plane: sets, points, and where they land.

python docs/examples/draw_projections.py projections.svg
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eqopt import projections


NORMAL = jnp.array([0.5, 1.0])
SETS = {
    "non_negative(x)": projections.non_negative,
    "box(x, -1.2, [0.4, 1])": lambda x: projections.box(x, -1.2, jnp.array([0.4, 1.0])),
    "hypercube(x)": projections.hypercube,
    "linf_ball(x)": projections.linf_ball,
    "l2_ball(x)": projections.l2_ball,
    "l2_sphere(x)": projections.l2_sphere,
    "l1_ball(x)": projections.l1_ball,
    "l1_sphere(x)": projections.l1_sphere,
    "simplex(x)": projections.simplex,
    "vector(x, a)": lambda x: projections.vector(x, NORMAL),
    "hyperplane(x, a, 0.5)": lambda x: projections.hyperplane(x, NORMAL, 0.5),
    "halfspace(x, a, 0.5)": lambda x: projections.halfspace(x, NORMAL, 0.5),
}


def draw(axes: Axes, title: str, project, points) -> None:
    """A panel: the set is where a fine grid of points does not move."""
    ticks = jnp.linspace(-2.1, 2.1, 141)
    grid = jnp.stack(jnp.meshgrid(ticks, ticks), -1).reshape(-1, 2)
    moves = jnp.linalg.norm(jax.vmap(project)(grid) - grid, axis=1).reshape(141, 141)
    # A line has no area: what is nearly in the set is drawn, too.
    axes.contourf(ticks, ticks, moves, [-1, 0.04], colors=["#9db8de"])
    for start, end in zip(points, jax.vmap(project)(points), strict=True):
        axes.plot(*np.stack([start, end]).T, color="#8a8a8a", linewidth=0.9)
        axes.plot(*start, "o", color="white", markeredgecolor="#444444", markersize=4)
        axes.plot(*end, "o", color="#d95f02", markersize=4)
    axes.set_title(title, fontsize=9.5, family="monospace")
    axes.set(xlim=(-2.1, 2.1), ylim=(-2.1, 2.1), aspect="equal")
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
    axes.tick_params(labelsize=7, length=2)
    axes.axhline(0, color="#dddddd", linewidth=0.6, zorder=0)
    axes.axvline(0, color="#dddddd", linewidth=0.6, zorder=0)


def main(output: str) -> None:
    angles = np.arange(10) * 2 * np.pi / 10 + 0.25
    radii = np.where(np.arange(10) % 2 == 0, 1.85, 1.3)
    outer = radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    inner = [[0.3, 0.2], [-0.25, -0.4]]
    points = jnp.asarray(np.concatenate([outer, inner]), jnp.float32)
    figure = Figure(figsize=(10.5, 8), layout="constrained")
    for axes, (title, project) in zip(
        figure.subplots(3, 4).flat, SETS.items(), strict=True
    ):
        draw(axes, title, project, points)
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
