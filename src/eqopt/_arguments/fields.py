"""Fields that determine the compiled program: masks, labels and sizes."""

import dataclasses
from types import NoneType
from typing import Any, Union

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .annotations import parts_of


def static_choice(**arguments: Any) -> Any:
    """An `eqx.field` that converts NumPy bools, integers and strings to Python's.

    Equinox treats NumPy values as arrays to trace. But these fields determine the
    compiled program, which cannot depend on traced values. In a static field, neither
    can NumPy's other numbers.
    """
    choices = np.generic if arguments.get("static") else np.bool_ | np.integer | np.str_
    return eqx.field(converter=lambda tree: _of_python(tree, choices), **arguments)


def types_of_choices(cls: type) -> dict[str, Any]:
    """What the constructor accepts for bools and integers that a field converts.

    Equinox writes `Any` for a field with a converter, and a text would be `True`. A
    class with fields for `int | np.integer` explains other values itself.
    """
    types = {}
    for field in dataclasses.fields(cls):
        parts, _ = parts_of(field.type)
        for plain, of_numpy in ((bool, np.bool_), (int, np.integer)):
            if "converter" in field.metadata and {*parts} - {NoneType} == {plain}:
                types[field.name] = Union[(*parts, of_numpy)]
    return types


def _of_python(tree: Any, choices: Any) -> Any:
    if not any(isinstance(x, choices) for x in jtu.tree_leaves(tree)):
        return tree
    return jax.tree.map(lambda x: x.item() if isinstance(x, choices) else x, tree)
