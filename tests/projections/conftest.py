"""The table of projections: what each maps onto, and the other library's."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt import projections


NORMAL = np.array([0.5, -1.0, 2.0, 0.25, 1.5], np.float32)
LOWER = np.array([-1.0, -0.5, 0.0, -2.0, 0.5], np.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    """A projection of vectors of five numbers onto a set.

    `distance` says how far from the set a point is, without regard to the nearest one.
    `is_convex` is false for spheres, and `takes_trees` where
    bounds or normals would have to be such, too.
    """

    ours: Callable
    theirs: Callable
    distance: Callable
    is_convex: bool = True
    takes_trees: bool = True


def _with_scale(name, distance, scale, is_convex=True):
    return Case(
        functools.partial(getattr(projections, name), scale=scale),
        functools.partial(
            getattr(optax.projections, f"projection_{name}"), scale=scale
        ),
        functools.partial(distance, scale),
        is_convex,
    )


def _beyond(low, high, x):
    return np.max(np.maximum(np.maximum(low - x, x - high), 0))


def _simplex(s, x):
    return abs(np.sum(x) - s) + np.max(np.maximum(-x, 0))


_NORMS = {
    "l1_ball": lambda s, x: max(np.sum(np.abs(x)) - s, 0),
    "l2_ball": lambda s, x: max(np.linalg.norm(x) - s, 0),
    "linf_ball": lambda s, x: max(np.max(np.abs(x)) - s, 0),
    "hypercube": lambda s, x: _beyond(0, s, x),
    "simplex": _simplex,
    "l1_sphere": lambda s, x: abs(np.sum(np.abs(x)) - s),
    "l2_sphere": lambda s, x: abs(np.linalg.norm(x) - s),
}

CASES = {
    f"{name}-{scale}": _with_scale(name, distance, scale, "sphere" not in name)
    for name, distance in _NORMS.items()
    for scale in (0.7, 3.0)
} | {
    "non_negative": Case(
        projections.non_negative,
        optax.projections.projection_non_negative,
        lambda x: _beyond(0, np.inf, x),
    ),
    "box": Case(
        lambda x: projections.box(x, LOWER, 1.0),
        lambda x: optax.projections.projection_box(x, LOWER, 1.0),
        lambda x: _beyond(LOWER, 1.0, x),
        takes_trees=False,
    ),
    "vector": Case(
        lambda x: projections.vector(x, NORMAL),
        lambda x: optax.projections.projection_vector(x, NORMAL),
        lambda x: np.max(np.abs(x - (x @ NORMAL) / (NORMAL @ NORMAL) * NORMAL)),
        takes_trees=False,
    ),
    "hyperplane": Case(
        lambda x: projections.hyperplane(x, NORMAL, 0.3),
        lambda x: optax.projections.projection_hyperplane(x, NORMAL, 0.3),
        lambda x: abs(x @ NORMAL - 0.3),
        takes_trees=False,
    ),
    "halfspace": Case(
        lambda x: projections.halfspace(x, NORMAL, -0.3),
        lambda x: optax.projections.projection_halfspace(x, NORMAL, -0.3),
        lambda x: max(x @ NORMAL + 0.3, 0),
        takes_trees=False,
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(params=[name for name, case in CASES.items() if case.takes_trees])
def tree_case(request):
    return CASES[request.param]


@pytest.fixture
def points():
    """Points of several sizes: inside the sets, far away, and with ties and zeros."""
    random = np.random.default_rng(0)
    sizes = np.repeat([0.05, 0.5, 3.0, 50.0], 5)[:, None]
    special = [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, -2, 0, 2, 0], [0, 0.1, 0, 0, 0]]
    rows = np.concatenate([sizes * random.normal(size=(20, 5)), special])
    return jnp.asarray(rows, jnp.float32)
