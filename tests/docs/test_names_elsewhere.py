"""The search box finds each entry of the API by what it is called here and elsewhere."""

import importlib
import json
import operator
import re

import pytest

from eqopt.interop.torch._from_torch import _RECIPES

from ..methods import METHODS
from ..methods.method import Method
from .pages import ROOT
from .site import module, site as site
from .test_pages import NAMESPACES, PUBLIC


pytest.importorskip("griffe", reason="install eqopt[docs] to build the site")
NAMES = module("_griffe/names.py")
ELSEWHERE: dict[str, list[str]] = NAMES.other_names()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_names_of_optimizers_elsewhere(method: Method):
    found = ELSEWHERE.get(f"eqopt.{method.name}", [])
    if method.in_optax:
        assert f"optax.{method.in_optax}" in found
    if method.name in _RECIPES:
        of_torch = rf"torch\.optim\.{method.name}\b"
        assert any(re.match(of_torch, name) for name in found)


def test_they_are_of_public_names():
    assert ELSEWHERE.keys() <= PUBLIC
    assert len(ELSEWHERE) > 200


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
def test_names_in_torch_exist():
    torch = pytest.importorskip("torch")
    importlib.import_module("torch.distributed.optim")
    importlib.import_module("torch.optim.swa_utils")
    for names in NAMES.OTHERS.values():
        for name in names:
            if "." in name:
                path, _, _ = name.removeprefix("torch.").partition("(")
                assert callable(operator.attrgetter(path)(torch)), name


def words(text: str, separator: str) -> list[str]:
    """Words as the search box makes them of a text or of a query."""
    plain = re.sub(r"<[^>]*>", " ", text)
    return [word for word in re.split(separator, plain.lower()) if word]


@pytest.fixture(scope="module")
def index(site):
    return json.loads((site / "search" / "search_index.json").read_text())


@pytest.mark.slow
def test_a_search_finds_the_entry(index):
    separator = index["config"]["separator"]
    entries = {
        found["location"].partition("#")[2]: [
            f" {' '.join(words(found[key], separator))} " for key in ("title", "text")
        ]
        for found in index["docs"]
    }
    for public in PUBLIC - NAMESPACES:
        for name in [public, *ELSEWHERE.get(public, [])]:
            phrase = f" {' '.join(words(name, separator))} "
            title, text = entries[public]
            assert phrase in title, (public, name)
            assert phrase in text or name == public, (public, name)


@pytest.mark.slow
def test_entries_say_which_file_they_are_in(index):
    for found in index["docs"]:
        public = found["location"].partition("#")[2]
        if public in PUBLIC - NAMESPACES:
            sources = re.findall(r"Source: <code>(.*?)</code>\.", found["text"])
            assert len(sources) == 1 and (ROOT / sources[0]).is_file(), public
