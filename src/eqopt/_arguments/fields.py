"""Fields that determine the compiled program: masks, labels and sizes."""

import dataclasses
import typing
from types import NoneType, UnionType
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .annotations import without_bounds


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
    types = {
        field.name: without_bounds(field.type)
        for field in dataclasses.fields(cls)
        if "converter" in field.metadata
    }
    return {
        name: annotation | of_numpy
        for name, annotation in types.items()
        for plain, of_numpy in ((bool, np.bool_), (int, np.integer))
        if _kinds(annotation) - {NoneType} == {plain}
    }


def _kinds(annotation: Any) -> set[Any]:
    is_union = typing.get_origin(annotation) in (UnionType, typing.Union)
    return {*typing.get_args(annotation)} if is_union else {annotation}


def _of_python(tree: Any, choices: Any) -> Any:
    if not any(isinstance(x, choices) for x in jtu.tree_leaves(tree)):
        return tree
    return jax.tree.map(lambda x: x.item() if isinstance(x, choices) else x, tree)
