"""The house: floors, kinds of classes, and one place for each public name."""

import ast
import dataclasses
import graphlib
import inspect
import pathlib
import subprocess
import sys

import equinox as eqx
import pytest

import eqopt
from eqopt import AbstractTransformation
from eqopt._annotations import kinds

from ..laws.registry import concrete_transformations


SRC = pathlib.Path(eqopt.__file__).parent
MODULES = sorted(SRC.rglob("*.py"))
STUBS = sorted(SRC.rglob("*.pyi"))

# Each floor may import from those before it, and its rooms from one another.
FLOORS = [
    {
        "_types",
        "_fields",
        "_lazy",
        "_names",
        "_typecheck",
        "_jax_internals",
        "_caches",
        "_explanations",
    },
    {
        "numerics",
        "_storage",
        "_cpu",
        "_construction",
        "_owners",
        "_leaves",
        "_layers",
        "_masks",
        "_control",
        "_equations",
        "_kernels",
        "_narrowing",
        "_matrices",
        "_explicit",
        "_annotations",
        "_checks",
        "_state_dtypes",
        "_dimension_numbers",
        "_extras",
    },
    {"_random", "_threefry"},
    {"storage"},
    {"_misfits", "_runs", "_stages", "_pipeline", "_reductions"},
    {"_apply", "_transformation", "_wrapper", "_matrixwise", "tree"},
    {"schedules", "losses", "microbatching", "groups"},
    {
        "projections",
        "linear_algebra",
        "assignment",
        "second_order",
        "perturbations",
        "monte_carlo",
    },
    {"_combinators"},
    {"_transforms", "_linesearch"},
    {"_wrappers", "aggregating"},
    {"_optimizers/moments", "_optimizers/own_decay"},
    {"_optimizers/measured"},
    {"_optimizers/sgd", "_optimizers/adaptive"},
    {"_optimizers/adam"},
    {
        "_optimizers/layerwise",
        "_optimizers/matrix",
        "_optimizers/parameter_free",
        "_optimizers/polyak",
        "_optimizers/schedule_free",
        "_optimizers/second_order",
        "_optimizers/sign",
    },
    {"interop", "plot", "checkpoint"},
]
FLOOR_OF = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}

# What an abstract class does by default, and a subclass may do better.
DEFAULTS = {"step", "eval_params", "_feed", "_finish"}


# A room may have more files than this, if there is a reason.
MANY = 20
CROWDED = {
    SRC: "the core: one file for each idea that all rooms stand on",
}


def name_of(path):
    """The module at `path`, as what is after `eqopt` in its full name."""
    *parts, last = path.relative_to(SRC).with_suffix("").parts
    return (*parts, last) if last != "__init__" else tuple(parts)


def room_of(module):
    """Where a module stands in `FLOORS`; those of `_optimizers` are rooms themselves."""
    return "/".join(module[: 2 if module[0] == "_optimizers" else 1])


PATHS = {name_of(path): path for path in MODULES}


def imports(module, paths=PATHS):
    """The modules of eqopt that a module imports from, inside functions, too.

    What it takes from a package is in the module that the stub of the package names.
    """
    path = paths[module]
    package = module if path.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) + 1 - node.level]
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield origin(base, alias.name, paths)


def origin(package, name, paths):
    """The module that has a name which is imported from a module or package."""
    if (*package, name) in paths:
        return (*package, name)
    stub = paths[package].with_suffix(".pyi")
    if stub.exists():
        for node in ast.parse(stub.read_text()).body:
            if name in [alias.name for alias in node.names] and node.module:
                return (*package, *node.module.split("."))
    return package


IMPORTS = {module: set(imports(module)) - {()} for module in PATHS if module}


@pytest.mark.parametrize("module", IMPORTS, ids="/".join)
def test_imports_run_downward(module):
    room = room_of(module)
    if room == "_optimizers":  # holds nothing but rooms
        return
    assert room in FLOOR_OF, f"{room} stands on no floor"
    rooms = {room_of(other) for other in IMPORTS[module]}
    above = {other for other in rooms if FLOOR_OF[other] > FLOOR_OF[room]}
    assert not above


def by_room():
    """What `IMPORTS` says, of rooms."""
    rooms = {}
    for module, others in IMPORTS.items():
        found = rooms.setdefault(room_of(module), set())
        found.update({room_of(other) for other in others} - {room_of(module)})
    return rooms


@pytest.mark.parametrize("graph", [IMPORTS, by_room()], ids=["modules", "rooms"])
def test_no_circles(graph):
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"they import one another: {error.args[1]}")


def test_circles_are_seen(tmp_path):
    """Also if one of the imports is inside a function, and by way of a package."""
    files = {
        "room/__init__.py": "",
        "room/__init__.pyi": "from ._a import f as f",
        "room/_a.py": "def f():\n    from . import _b",
        "room/_b.py": "from ..room import f",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    room = tmp_path / "room"
    paths = {("room",): room / "__init__.py"}
    paths |= {("room", name): room / f"{name}.py" for name in ("_a", "_b")}
    graph = {module: set(imports(module, paths)) for module in paths}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph).prepare()


def test_rooms_are_no_corridors():
    """A list of more than some twenty files is to be sorted by what they are about."""
    folders = {path.parent for path in MODULES}
    files = {folder: [*folder.glob("*.py")] for folder in folders}
    many = {folder for folder in folders if len(files[folder]) - 1 > MANY}
    assert many == CROWDED.keys()


def test_rooms_are_small():
    long = {p.name: n for p in MODULES if (n := len(p.read_text().splitlines())) > 320}
    assert not long


def origins():
    """All public names, with the stubs they stand in and what they come from."""
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


def test_public_names_are_there():
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
    """NumPy's bools in a mask are arrays to Equinox, which would trace them."""
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
        if name.endswith("State") and name != "StoreState":
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
    assert python(code).splitlines() == ["['eqopt._typecheck', 'eqopt._lazy']", "False"]


def test_checks_can_be_turned_off():
    code = (
        "import eqopt, jax.numpy as jnp\n"
        "try:\n"
        "    eqopt.tree.zeros_like({}, dtype=object())\n"
        "    print('passed')\n"
        "except Exception as e: print(type(e).__name__)"
    )
    assert python(code, JAXTYPING_DISABLE="0") == "TypeCheckError"
    assert python(code, JAXTYPING_DISABLE="1") == "passed"


def test_unknown_names():
    with pytest.raises(AttributeError, match="module 'eqopt' has no attribute 'adam'"):
        eqopt.adam  # noqa: B018
