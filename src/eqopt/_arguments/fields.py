"""Fields that determine the compiled program: masks, labels and sizes."""

from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np


def static_choice(**arguments: Any) -> Any:
    """An `eqx.field` that converts NumPy bools, integers and strings to Python's.

    Equinox treats NumPy values as arrays to trace. But these fields determine the
    compiled program, which cannot depend on traced values. In a static field, neither
    can NumPy's other numbers.
    """
    choices = np.generic if arguments.get("static") else np.bool_ | np.integer | np.str_
    return eqx.field(converter=lambda tree: _of_python(tree, choices), **arguments)


def _of_python(tree: Any, choices: Any) -> Any:
    if not any(isinstance(x, choices) for x in jtu.tree_leaves(tree)):
        return tree
    return jax.tree.map(lambda x: x.item() if isinstance(x, choices) else x, tree)
