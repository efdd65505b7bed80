"""What the page of promises says about states is true of every optimizer."""

import re

import jax
import jax.numpy as jnp

from ..methods import METHODS
from ..methods.method import Method
from .pages import DOCS


PAGE = (DOCS / "promises.md").read_text(encoding="utf-8")


def state(method: Method, dtype) -> dict[str, jax.ShapeDtypeStruct]:
    """What is in the state for one matrix of that dtype, by key path."""
    params = {"weight": jax.ShapeDtypeStruct((8, 6), dtype)}
    shapes = jax.eval_shape(method.ours(0.1).init, params)
    leaves, _ = jax.tree.flatten_with_path(shapes)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def has_copies(method: Method) -> bool:
    """Whether not all of the state for a bfloat16 matrix is in float32."""
    return any(x.dtype == jnp.bfloat16 for x in state(method, jnp.bfloat16).values())


def test_states_with_copies_are_listed():
    [listed] = re.findall(r"^- A copy of a parameter.*?(?=^- )", PAGE, re.M | re.S)
    named = re.findall(r"\[`eqopt\.(\w+)`\]", listed)
    assert named == [name for name, method in METHODS.items() if has_copies(method)]
