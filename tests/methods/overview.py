"""The tables of all optimizers in the documentation."""

import pathlib

import jax
import jax.numpy as jnp
from benchmarks.pages import markdown, with_parts

import eqopt

from . import BY_FAMILY, METHODS
from .method import Method


DOCS = pathlib.Path(__file__).parents[2] / "docs"
INDEX, TRAINING = DOCS / "api" / "optimizers" / "index.md", DOCS / "training.md"


def written() -> dict[pathlib.Path, str]:
    """The pages with the tables that the rows make."""
    tables = {family: _table(methods) for family, methods in BY_FAMILY.items()}
    return {
        INDEX: with_parts(INDEX, tables),
        TRAINING: with_parts(TRAINING, {"compared": _compared()}),
    }


def _table(methods: list[Method]) -> str:
    """A row for each optimizer, which gives it a page: `docs/_hooks/optimizers.py`."""
    lines = [
        f"| [`{m.name}`][eqopt.{m.name}] | {rate(m)} | {state(m)} | {m.idea} |"
        for m in methods
    ]
    head = ["| Optimizer | Start with | State | Idea |", "|:--|--:|--:|:--|"]
    return "\n".join([*head, *lines])


def _compared() -> str:
    """What is compared with another optimizer, because Optax does not have it."""
    by_nearest: dict[str, list[str]] = {}
    for method in METHODS.values():
        if method.nearest and method.deviates and method.rates:
            by_nearest.setdefault(method.nearest, []).append(method.name)
    lines = [[name, ", ".join(ours)] for name, ours in by_nearest.items()]
    return markdown(["In Optax", "compared with"], lines, texts=2)


def rate(method: Method) -> str:
    """The usual learning rate."""
    return f"{method.default_rate:g}".replace("e-0", "e-")


def state(method: Method) -> str:
    """Bytes of state per parameter of a matrix, and of a vector if they differ."""
    of_matrix, of_vector = (
        f"{state_bytes(method, shape):g}" for shape in ((1000, 1000), (1000 * 1000,))
    )
    return of_matrix if of_matrix == of_vector else f"{of_matrix} ({of_vector})"


def state_bytes(method: Method, shape: tuple[int, ...]) -> float:
    """Bytes of state per parameter for a float32 array of this shape, rounded."""
    params = jax.ShapeDtypeStruct(shape, jnp.float32)
    state = jax.eval_shape(method.ours(0.1).init, params)
    return round(eqopt.tree.nbytes(state).total / params.size, 1)
