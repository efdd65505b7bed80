"""Each optimizer's entry has all equations of a step, and explains their symbols."""

import inspect
import re

import pytest

from ..methods import METHODS
from .test_pages import PUBLIC, resolve


def box(doc):
    found = re.search(r'!!! abstract "One step"\n\n(.*?)(?=\n\n\S|\Z)', doc, re.DOTALL)
    return inspect.cleandoc(found[1]) if found else ""


NAMES = sorted(f"eqopt.{name}" for name in METHODS)
BOXES = {name: box(inspect.getdoc(resolve(name)) or "") for name in PUBLIC}

DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
# What is no symbol: words, names of functions, and what stands below a letter.
NO_SYMBOL = re.compile(
    r"\\(?:text|operatorname\*?)\{[^}]*\}|\\(?:begin|end)\{\w+\}|\\mathcal N"
    r"|_\{[^{}]*\}|_\\?\w|\^\*|\\max|\\min|\\pi(?![a-z])"
)
SYMBOL = re.compile(
    r"(?:\\(?:hat|bar|tilde) ?)?(?:\\(?:alpha|beta|gamma|delta|Delta|varepsilon|theta"
    r"|lambda|mu|nu|xi|Pi|rho|sigma|tau|psi|eta|ell)(?![a-z])"
    r"|(?<![\\A-Za-z])[A-Za-z](?![A-Za-z]))"
)
KNOWN = {"I", "t"}


def symbols(formula):
    return {s.replace(" ", "") for s in SYMBOL.findall(NO_SYMBOL.sub(" ", formula))}


def undefined(text):
    """Symbols that are only on right hand sides, and that no sentence mentions."""
    defined = set().union(
        *map(symbols, re.findall(r"\$([^$]+)\$", DISPLAY.sub("", text)))
    )
    used = set()
    for display in DISPLAY.findall(text):
        for one in re.split(r"\\\\|&(?!=| =)|\\qquad|\\quad", display):
            left, equals, right = re.split(r"(=|\\sim|\\leftarrow|$)", one, maxsplit=1)
            used |= symbols(right)
            (defined if equals else used).update(symbols(left))
    return used - defined - KNOWN


@pytest.mark.parametrize("name", NAMES)
def test_the_entry_of_an_optimizer_has_its_equations(name):
    assert re.search(r"\b(?:p_t|x_\{k\+1\}|y_t) &?= ", BOXES[name])
    if "weight_decay" in inspect.signature(resolve(name)).parameters:
        assert r"\lambda" in BOXES[name]


# These write the equations with other letters, or in a special case.
OTHER_EQUATIONS = {"KLShampoo", "MARS", "Muown", "PolyakSGD", "StableSPAM"}
UPDATE_OF = re.compile(r"is\s+the\s+update\s+of\s+\[`(eqopt\.ScaleBy\w+)`\]")


@pytest.mark.parametrize("name", NAMES)
def test_the_box_repeats_the_equations_of_the_building_block(name):
    if name.removeprefix("eqopt.") in OTHER_EQUATIONS:
        return
    shown = " ".join(BOXES[name].split())
    for part in UPDATE_OF.findall(BOXES[name]):
        first = DISPLAY.search(inspect.getdoc(resolve(part)))
        assert " ".join(first[1].split()) in shown, part


@pytest.mark.parametrize("name", [name for name in sorted(PUBLIC) if BOXES[name]])
def test_every_symbol_is_defined(name):
    assert not undefined(BOXES[name])
