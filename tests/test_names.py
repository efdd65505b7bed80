"""A name that is missing: the error says what it is called here, and where it is."""

import importlib
import pathlib
import pkgutil
import re
import types

import optax
import pytest

import eqopt
from eqopt._names import GONE, RENAMED, meant, public_names

from .docs.pages import same_names


PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coming_from_optax.md"
ROWS = [
    (theirs, ours[0].removeprefix("eqopt."))
    for line in PAGE.read_text().splitlines()
    if line.startswith(("| `optax.", "| `eqx."))
    for ours in [re.findall(r"\[`(eqopt\.[\w.]+)`\]", line)]
    if len(ours) == 1
    for theirs in re.findall(r"`(optax\.[\w.]+)`", line.split("|")[1])
]
ROWS += [(f"optax.{name}", name) for name in same_names(PAGE)]

# Annotations, not things to call.
TYPES = {
    "ConditionFn",
    "NamedTupleKey",
    "ShouldSkipUpdateFunction",
    "TransformInitFn",
    "TransformUpdateExtraArgsFn",
    "TransformUpdateFn",
}


def names_of_optax():
    found = pkgutil.walk_packages(optax.__path__, "optax.")
    modules = [m for _, m, _ in found if "._" not in m and "test" not in m]
    for name in ["optax", *modules]:
        module = importlib.import_module(name)
        for key, value in vars(module).items():
            is_own = getattr(value, "__module__", "optax").startswith("optax")
            is_room = isinstance(value, types.ModuleType)
            if is_own and not is_room and not key.startswith("_"):
                yield key


def error_of(room, name):
    with pytest.raises(AttributeError) as raised:
        getattr(room, name)
    return str(raised.value)


def test_the_page_and_the_errors_agree():
    assert len(ROWS) > 250
    for theirs, ours in ROWS:
        found, is_sure = meant("", theirs.rpartition(".")[2])
        rooms = [x for x in found if x.rpartition(".")[0] == ours.rpartition(".")[0]]
        # If several rooms have the name, the room of the requested name decides.
        expected = meant(ours.rpartition(".")[0], theirs.rpartition(".")[2])[0]
        assert ours in (rooms or expected), theirs
        assert is_sure, theirs


def test_every_name_of_optax_leads_somewhere():
    names = set(names_of_optax())
    assert len(names) > 350
    lost = {n for n in names if not (meant("", n)[1] or n in GONE)}
    assert lost == TYPES


def test_renamed_names_are_public():
    assert set(RENAMED.values()) <= {*public_names()}
    assert not {*RENAMED} & {*GONE}


def test_every_public_name_is_found_from_everywhere():
    for name in public_names():
        last = name.rpartition(".")[2]
        assert name in meant(name.rpartition(".")[0], last.lower())[0], name


MESSAGES = {
    (eqopt, "adam"): "It is `eqopt.Adam`.",
    (eqopt, "inject_hyperparams"): "It is `eqopt.Scheduled`.",
    (eqopt, "AdamW8bit"): "`eqopt.StoreState(eqopt.AdamW(1e-3), eqopt.storage.",
    (eqopt.schedules, "CosineAnnealingLR"): "It is `eqopt.schedules.CosineDecay`.",
    (eqopt, "Linear"): "It is `eqopt.schedules.Linear`.",
    (eqopt, "safe_norm"): "It is `eqopt.numerics.safe_norm`.",
    (eqopt, "AdamX"): "Did you mean `eqopt.Adamax` or `eqopt.Adam` or",
    (eqopt, "contrib"): "All transformations are in `eqopt` itself",
}


@pytest.mark.parametrize("room, name", MESSAGES)
def test_message(room, name):
    message = error_of(room, name)
    assert f"module {room.__name__!r} has no attribute {name!r}. " in message
    assert MESSAGES[room, name] in message


@pytest.mark.parametrize("name", ["nothing_like_it", "__wrapped__"])
def test_nothing_is_made_up(name):
    assert error_of(eqopt, name).endswith(f"has no attribute {name!r}")
