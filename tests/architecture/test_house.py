"""The house: its floor plan, kinds of classes, and one place for each public name."""

import ast
import dataclasses
import graphlib
import inspect
import subprocess
import sys

import equinox as eqx
import pytest

import eqopt
from eqopt import AbstractTransformation
from eqopt._arguments.annotations import kinds

from ..laws.registry import concrete_transformations
from . import plan


SRC = plan.SRC
MODULES = sorted(SRC.rglob("*.py"))
STUBS = sorted(SRC.rglob("*.pyi"))

# Methods that an abstract class implements, and that a subclass may override.
DEFAULTS = {"step", "_in_turn", "eval_params", "_route", "_factor"}


@pytest.mark.parametrize("size", [1, 2, None], ids=["rooms", "families", "modules"])
def test_no_circles(size):
    try:
        graphlib.TopologicalSorter(plan.rooms(size)).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"they import one another: {error.args[1]}")


def test_the_floor_plan_is_the_one_on_the_page():
    command = "python -m tests.architecture.plan"
    assert plan.table() in plan.PAGE.read_text(), f"run `{command}`"


def origins():
    """All public names: the stub of each, the module that defines it, and the alias."""
    for stub in STUBS:
        for node in ast.parse(stub.read_text()).body:
            assert isinstance(node, ast.ImportFrom), f"{stub}: imports alone"
            for alias in node.names:
                yield stub, node.module, alias


def test_stubs_are_explicit_and_sorted():
    for stub, _, alias in origins():
        assert alias.name == alias.asname, f"{stub}: `{alias.name} as {alias.name}`"
    for stub in STUBS:
        lines = [n.module or "" for n in ast.parse(stub.read_text()).body]
        assert lines == sorted(lines), stub


def test_one_public_name_one_place():
    seen = {}
    for stub, module, alias in origins():
        if module is None:
            continue
        source = stub.parent.joinpath(*module.split("."), alias.name)
        assert source not in seen, f"{alias.name} is public twice"
        seen[source] = stub


def test_public_names_exist_and_have_docstrings():
    for stub, _, alias in origins():
        package = ".".join(stub.parent.relative_to(SRC.parent).parts)
        value = getattr(
            sys.modules[package]
            if package in sys.modules
            else __import__(package, fromlist=["_"]),
            alias.name,
        )
        assert value is not None
        assert value.__doc__, f"{package}.{alias.name} has no docstring"


def names_in(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_public_signatures_show_shapes():
    """Pages show these signatures: aliases like `Leaf` would hide the shapes."""
    hidden = []
    for stub, module, alias in origins():
        path = stub.parent.joinpath(*(module or "").split(".")).with_suffix(".py")
        for node in ast.parse(path.read_text()).body if module else ():
            if getattr(node, "name", None) != alias.name:
                continue
            for fn in [node] if isinstance(node, ast.FunctionDef) else node.body:
                if isinstance(fn, ast.FunctionDef) and not fn.name.startswith("_"):
                    seen = names_in(fn.args) | (
                        names_in(fn.returns) if fn.returns else set()
                    )
                    if seen & {"Leaf", "RealLeaf", "Scalar"}:
                        hidden.append(f"{alias.name}: {fn.name}")
    assert not hidden


def test_every_public_class_is_abstract_or_final():
    """A concrete class has no subclass, and no concrete method is overridden."""
    concrete = concrete_transformations()
    for cls in concrete:
        assert not cls.__subclasses__(), f"{cls} is concrete, and subclassed"
        for name, value in vars(cls).items():
            if name.startswith("__") or name in DEFAULTS or not callable(value):
                continue
            for base in cls.__mro__[1:]:
                if not issubclass(base, eqx.Module) or base is eqx.Module:
                    continue
                inherited = vars(base).get(name)
                if inherited is not None:
                    assert getattr(inherited, "__isabstractmethod__", False), (
                        f"{cls.__name__}.{name} overrides that of {base.__name__}"
                    )


def test_masks_are_choices():
    """A converter replaces NumPy's bools, which Equinox would trace as arrays."""
    for cls in concrete_transformations():
        for field in dataclasses.fields(cls):
            is_mask = kinds(cls)[field.name] == "mask"
            assert not is_mask or "converter" in field.metadata, (cls, field.name)


def test_abstract_classes_are_named_so():
    for room in (eqopt, eqopt.aggregating):
        for name in dir(room):
            value = getattr(room, name)
            if isinstance(value, type) and issubclass(value, AbstractTransformation):
                assert inspect.isabstract(value) == name.startswith("Abstract"), name


def test_states_are_named_after_their_transformation():
    names = set(dir(eqopt))
    for name in names:
        if name.endswith("State") and name not in ("State", "StoreState"):
            assert name.removesuffix("State") in names


def python(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    ).stdout.strip()


OPTIONAL = ["flax", "hypothesis", "matplotlib", "optax", "optimistix"]
OPTIONAL += ["orbax", "pytest", "sklearn", "torch", "tqdm"]


@pytest.mark.slow
def test_import_needs_no_optional_package():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import eqopt\n"
        "for name in dir(eqopt):\n"
        "    room = getattr(eqopt, name)\n"
        "    if type(room).__name__ == 'module': [getattr(room, n) for n in dir(room)]\n"
        f"print(sorted({OPTIONAL} & sys.modules.keys()))".replace(
            f"{OPTIONAL} &", f"set({OPTIONAL}) &"
        )
    )
    assert python(code) == "[]"


def test_rooms_are_entered_lazily():
    code = (
        "import sys, eqopt\n"
        "print([m for m in sys.modules if m.startswith('eqopt.')])\n"
        "eqopt.SGD\n"
        "print('eqopt._optimizers.adam.adam' in sys.modules)"
    )
    loaded = ["eqopt._errors", "eqopt._typecheck", "eqopt._lazy"]
    assert python(code).splitlines() == [str(loaded), "False"]
