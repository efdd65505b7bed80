"""Fields of what decides on the program that is compiled: masks, labels and sizes."""

from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np


def static_choice(**arguments: Any) -> Any:
    """An `eqx.field` that turns NumPy's bools, integers and strings into Python's.

    To Equinox those are arrays, to be traced; what is compiled cannot depend on them.
    """
    return eqx.field(converter=_python_numbers, **arguments)


def _python_numbers(tree: Any) -> Any:
    if not any(map(_is_numpy_choice, jtu.tree_leaves(tree))):
        return tree
    return jax.tree.map(lambda x: x.item() if _is_numpy_choice(x) else x, tree)


def _is_numpy_choice(x: Any) -> bool:
    return isinstance(x, np.bool_ | np.integer | np.str_)
