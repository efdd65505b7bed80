"""Draws the path of each optimizer on two functions of the plane, a sheet per family.

python -m docs.examples.draw_paths docs/images          # all, some minutes
python -m docs.examples.draw_paths docs/images adam     # one family
"""

import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.optimizers import evaluate
from benchmarks.workloads.protocol import schedule
from contourpy import contour_generator
from tests.methods import BY_FAMILY
from tests.methods.method import Method


class Problem(NamedTuple):
    """A function of two numbers, which are a matrix of one column.

    **Attributes:**

    - `fn`: the function.
    - `start`, `minimum`: where paths begin, and where they should end.
    - `steps`: how many there are.
    - `view`: the part of the plane that is drawn: left, right, bottom, top.
    - `levels`: where contour lines are.
    """

    fn: Callable
    start: tuple[float, float]
    minimum: tuple[float, float]
    steps: int
    view: tuple[float, float, float, float]
    levels: tuple[float, ...]

    def loss(self, params, example):
        return self.fn(*params[:, 0])

    mean_loss = loss


def quadratic(x, y):
    """Curvatures 1 and 50, in directions that are no axes."""
    u, v = 0.8 * x + 0.6 * y, 0.8 * y - 0.6 * x
    return (u**2 + 50 * v**2) / 2


def rosenbrock(x, y):
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


PROBLEMS = {
    "quadratic": Problem(
        quadratic, (-1.6, -0.2), (0, 0), 200, (-2, 1, -1.5, 1), (0.05, 0.5, 2, 6, 14)
    ),
    "rosenbrock": Problem(
        rosenbrock,
        (-1.2, 1.0),
        (1, 1),
        600,
        (-1.8, 1.8, -1, 2),
        (0.3, 3, 20, 90, 300),
    ),
}
EXAMPLES = 8  # of which each has the same loss
FACTORS = [10 ** (i / 2) for i in range(-4, 7)]  # of the usual learning rate

WIDTH, HEIGHT, GAP, TITLE, NOTE, COLUMNS = 108, 90, 6, 16, 13, 3


def path(method: Method, problem: Problem) -> tuple[float, np.ndarray]:
    """The best learning rate of eleven, and the points that it leads to.

    With the best one, the mean logarithm of the function over all steps is lowest. They
    lie around the usual one and have the schedule of the workloads.
    """

    def run(rate):
        opt = method.ours(schedule(method.name, rate, problem.steps))
        params = jnp.asarray(problem.start, jnp.float32)[:, None]
        state = opt.init(params)
        arrays, static = eqx.partition((params, state), eqx.is_array)

        def step(arrays, _):
            params, state = eqx.combine(arrays, static)
            grads, extra = evaluate(method, problem, params, jnp.zeros(EXAMPLES))
            params, state = opt.step(grads, state, params, **extra)
            arrays = eqx.filter((params, state), eqx.is_array)
            return arrays, opt.eval_params(state, params)[:, 0]

        _, points = jax.lax.scan(step, arrays, length=problem.steps)
        return jnp.concatenate([params.T, points])

    rates = [method.default_rate * factor for factor in FACTORS]
    points = np.asarray(jax.jit(jax.vmap(run))(jnp.asarray(rates, jnp.float32)))
    # What ends lowest often leaps about before that; this asks for a short way, too.
    with np.errstate(invalid="ignore", over="ignore"):
        heights = problem.fn(*np.moveaxis(points.astype(float), 2, 0))
        means = np.log(heights + 1e-3).mean(1)
    best = int(np.argmin(np.nan_to_num(means, nan=np.inf)))
    return rates[best], points[best]


def on_sheet(problem: Problem, points: np.ndarray) -> np.ndarray:
    left, right, bottom, top = problem.view
    x = (points[:, 0] - left) / (right - left) * WIDTH
    y = (top - points[:, 1]) / (top - bottom) * HEIGHT
    return np.stack([x, y], 1)


def line(points: np.ndarray, distance: float) -> str:
    """Points of the sheet, at least so far from one another."""
    points = np.clip(points[np.isfinite(points).all(1)], -WIDTH, 2 * WIDTH)
    kept = [points[0]]
    for point in points[1:]:
        if np.abs(point - kept[-1]).max() >= distance:
            kept.append(point)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in [*kept, points[-1]])


def background(name: str, problem: Problem) -> str:
    """The contour lines, which every path on this function has behind it."""
    left, right, bottom, top = problem.view
    x, y = np.linspace(left, right, 109), np.linspace(bottom, top, 91)
    contours = contour_generator(x, y, problem.fn(*np.meshgrid(x, y)))
    lines = [
        f'<polyline points="{line(on_sheet(problem, found), 2.5)}"/>'
        for level in problem.levels
        for found in contours.lines(level)
    ]
    [[x, y]] = on_sheet(problem, np.array([problem.minimum], float))
    cross = f"M{x - 3:.1f},{y:.1f}h6m-3,-3v6"
    return (
        f'<g id="{name}"><rect width="{WIDTH}" height="{HEIGHT}" class="frame"/>'
        f'<g class="contour">{"".join(lines)}</g><path d="{cross}" class="minimum"/></g>'
    )


def tile(method: Method) -> str:
    """The name of an optimizer, and its path on both functions."""
    parts = [f'<text y="11" class="name">{method.name}</text>']
    for i, (name, problem) in enumerate(PROBLEMS.items()):
        rate, points = path(method, problem)
        points, shown = on_sheet(problem, points), f"{float(f'{rate:.2g}'):g}"
        parts.append(
            f'<g transform="translate({i * (WIDTH + GAP)},{TITLE})">'
            f'<use href="#{name}"/><g clip-path="url(#inside)">'
            f'<polyline points="{line(points, 0.8)}" class="path"/>'
            f'<circle cx="{points[0, 0]:.1f}" cy="{points[0, 1]:.1f}" r="2"/></g>'
            f'<text y="{HEIGHT + 10}" class="rate">learning rate {shown}</text></g>'
        )
    return "".join(parts)


STYLE = (
    "text{font-family:sans-serif;fill:#222}.name{font-size:12px;font-weight:bold}"
    ".rate{font-size:8.5px;fill:#666}.frame{fill:#fff;stroke:#bbb}"
    ".contour{fill:none;stroke:#9db8de;stroke-width:.7}"
    ".path{fill:none;stroke:#d95f02;stroke-width:1.1}circle{fill:#222}"
    ".minimum{stroke:#1f4e9c;stroke-width:1.2}"
)


def sheet(methods: list[Method]) -> str:
    across, down = 2 * WIDTH + 3 * GAP, TITLE + HEIGHT + NOTE + GAP
    rows = -(-len(methods) // COLUMNS)
    width, height = COLUMNS * across, rows * down
    tiles = [
        f'<g transform="translate({i % COLUMNS * across + GAP},{i // COLUMNS * down})">'
        f"{tile(method)}</g>"
        for i, method in enumerate(methods)
    ]
    defined = "".join(background(*item) for item in PROBLEMS.items())
    clip = f'<clipPath id="inside"><rect width="{WIDTH}" height="{HEIGHT}"/></clipPath>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            f"<style>{STYLE}</style><defs>{clip}{defined}</defs>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *tiles,
            "</svg>\n",
        ]
    )


def main(folder: str, *families: str) -> None:
    for family in families or BY_FAMILY:
        output = pathlib.Path(folder) / f"paths_{family}.svg"
        output.write_text(sheet(BY_FAMILY[family]))


if __name__ == "__main__":
    main(*sys.argv[1:])
