"""`init` of every transformation rejects what would fail in the first step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt import AbstractTransformation, groups
from eqopt._arguments.annotations import kinds

from .registry import REGISTRY, TELLING, concrete_transformations, law
from .subjects import params_of


WITHOUT_PARAMETERS = [
    ({"a": 1.0}, r"1\.0 of type float at `\['a'\]`"),
    (eqx.nn.MLP, r"the class MLP at `\(the root\)`"),
    ([jnp.arange(3), "b"], r"an array of dtype int32 at `\[0\]`.*floating-point"),
    (jnp.tanh, "at `\\(the root\\)`"),
]


@law(TELLING)
def test_trees_without_parameters(row):
    opt = row()
    for params, message in WITHOUT_PARAMETERS:
        with pytest.raises(
            ValueError, match=f"`params` has no parameters: .*{message}"
        ):
            opt.init(params)


# `Snapshot(tree)` measures the first parameter, so it needs one.
@pytest.mark.parametrize(
    "row",
    [row for row in REGISTRY if row.name != "Snapshot(tree)"],
    ids=lambda row: row.name,
)
def test_a_part_of_a_model_may_be_without_parameters(row):
    eqx.filter_eval_shape(row().init, {"a": None})


# Fields that hold a tree like the parameters, or a function of them.
LIKE_PARAMETERS = {"labels", "factors", "weight_dimension_numbers"}


def _wrong_fields():
    """Each such field, with a transformation in the registry that has it."""
    seen = {}

    def visit(node):
        if isinstance(node, AbstractTransformation):
            for name, kind in kinds(type(node)).items():
                if kind == "mask" or name in LIKE_PARAMETERS:
                    seen.setdefault((type(node).__name__, name), node)
        return False

    for row in REGISTRY:
        opt = row()
        jax.tree.leaves(opt, is_leaf=visit)
    return seen


WRONG_FIELDS = _wrong_fields()


def test_every_class_with_such_a_field_is_seen():
    found = {
        (cls.__name__, name)
        for cls in concrete_transformations()
        for name, kind in kinds(cls).items()
        if kind == "mask" or name in LIKE_PARAMETERS or "mask" in name.split("_")
    }
    assert found <= set(WRONG_FIELDS)


@pytest.mark.parametrize("place", WRONG_FIELDS, ids=".".join)
def test_fields_that_do_not_fit_the_parameters(place):
    node, (_, name) = WRONG_FIELDS[place], place
    for wrong in (groups.path("biass"), {"matrix": True, "else": True}):
        opt = eqx.tree_at(
            lambda node: getattr(node, name), node, wrong, is_leaf=lambda x: x is None
        )
        with pytest.raises(ValueError, match=r"biass|another tree structure"):
            eqx.filter_eval_shape(opt.init, params_of())


def test_error_of_a_misspelt_path():
    model = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"path\('biass'\).*\.layers\[0\]\.weight"):
        eqopt.AdamW(1e-3, mask=groups.path("biass")).init(model)
