"""Fields that determine the compiled program: masks, labels and sizes."""

from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np


def static_choice(**arguments: Any) -> Any:
    """An `eqx.field` that converts NumPy bools, integers and strings to Python's.

    Equinox treats NumPy values as arrays to trace. But these fields determine the
    compiled program, which cannot depend on traced values.
    """
    return eqx.field(converter=_python_numbers, **arguments)


def _python_numbers(tree: Any) -> Any:
    if not any(map(_is_numpy_choice, jtu.tree_leaves(tree))):
        return tree
    return jax.tree.map(lambda x: x.item() if _is_numpy_choice(x) else x, tree)


def _is_numpy_choice(x: Any) -> bool:
    return isinstance(x, np.bool_ | np.integer | np.str_)
