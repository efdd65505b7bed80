"""The search box finds each entry of the API by what it is called here and elsewhere."""

import collections
import importlib
import json
import operator
import re
import string

import pytest

from ..methods import METHODS
from ..methods.method import Method
from .browser import in_chromium, needs_chromium
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
    for case in method.torch.values():
        assert any(re.match(rf"torch\.optim\.{case.name}\b", name) for name in found)


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
            words(found[key], separator) for key in ("title", "text")
        ]
        for found in index["docs"]
    }
    for public in PUBLIC - NAMESPACES:
        for name in [public, *ELSEWHERE.get(public, [])]:
            phrase = f" {' '.join(words(name, separator))} "
            title, text = (f" {' '.join(found)} " for found in entries[public])
            assert phrase in title, (public, name)
            assert phrase in text or name == public, (public, name)


@pytest.mark.slow
def test_entries_say_which_file_they_are_in(index):
    for found in index["docs"]:
        public = found["location"].partition("#")[2]
        if public in PUBLIC - NAMESPACES:
            sources = re.findall(r"Source: <code>(.*?)</code>\.", found["text"])
            assert len(sources) == 1 and (ROOT / sources[0]).is_file(), public


SEARCH = """
  document.getElementById("__search").click();
  const box = document.querySelector(".md-search__input");
  const list = document.querySelector(".md-search-result__list");
  const entriesOf = async (query) => {
    list.replaceChildren();  // what was found for the query before
    for (let i = 0; i < 100; i++) {
      if (i % 20 == 0) {
        box.value = query;
        box.dispatchEvent(new Event("keyup", { bubbles: true }));
      }
      await new Promise(done => setTimeout(done, 1));
      const links = [...list.querySelectorAll("a.md-search-result__link")];
      const entries = links.map(link => link.PART).filter(part => part);
      if (entries.length) return entries.slice(0, 5);
    }
    return [];
  };
  for (let i = 0; i < 50 && !(await entriesOf("optimizer")).length; i++);
  const found = {};
  for (const query of QUERIES) found[query] = await entriesOf(query);
  return found;
"""


def names_by_entry() -> dict[str, set[str]]:
    """For each name that a user may type, the entries that should come first."""
    typed = collections.defaultdict(set)
    for public in PUBLIC - NAMESPACES:
        for name in (public, *ELSEWHERE.get(public, [])):
            typed[name].add(public)
            if "." in name:
                typed[name.partition("(")[0].rpartition(".")[2]].add(public)
    return typed


def searched(site, profile, queries: list[str], part="hash") -> dict[str, list[str]]:
    """The first entries that the search box shows for each query: a part of links."""
    script = SEARCH.replace("QUERIES", json.dumps(queries)).replace("PART", part)
    return in_chromium(site / "index.html", script, profile)


RANKS = """<!doctype html><body>
<script>window.Worker = class extends EventTarget { postMessage() {} };</script>
<script src="SITE/javascripts/names_first.js"></script>
<script src="SITE/search/search_index.js"></script>
</body>"""

RANK = """
  const pages = Object.groupBy(__index.docs.reverse(), (x) => x.location.split("#")[0]);
  const found = {};
  for (const query of QUERIES) {
    const worker = new Worker();
    worker.postMessage({ type: 2, data: query });
    const items = Object.values(pages).map((all) => all.map((x) => ({ ...x, score: 1 })));
    worker.dispatchEvent(new MessageEvent("message", { data: { data: { items } } }));
    found[query] = items.flat().find((x) => x.location.includes("#")).location;
  }
  return found;
"""


@needs_chromium
@pytest.mark.slow
def test_names_come_first(site, tmp_path):
    """Whatever the search finds, and in any order: here, it finds all entries."""
    typed = names_by_entry()
    assert len(typed) > 1500
    page = tmp_path / "ranks.html"
    page.write_text(RANKS.replace("SITE", site.as_uri()))
    script = RANK.replace("QUERIES", json.dumps(sorted(typed)))
    found = in_chromium(page, script, tmp_path / "profile")
    late = {
        query: found[query]
        for query, entries in typed.items()
        if found[query].partition("#")[2] not in entries
    }
    assert not late


@needs_chromium
@pytest.mark.slow
def test_every_entry_comes_first_under_each_of_its_names(site, tmp_path):
    """In the search box, for one name in eight, because each takes 50 ms.

    From the disk, where the browser has no worker for it.
    """
    typed = names_by_entry()
    found = searched(site, tmp_path, sorted(typed)[::8])
    late = {
        query: entries
        for query, entries in found.items()
        if not entries or entries[0].removeprefix("#") not in typed[query]
    }
    assert not late


@needs_chromium
@pytest.mark.slow
def test_other_entries_and_pages_are_still_found(site, tmp_path):
    found = searched(site, tmp_path, ["Adam", "successive halving"])
    assert {"#eqopt.AMSGrad", "#eqopt.RAdam"} & {*found["Adam"]}
    assert found["successive halving"][0] == "#successive-halving"


@needs_chromium
@pytest.mark.slow
def test_a_first_letter_or_digit_is_enough(site, tmp_path):
    """All words of the site are looked up here: one that has no page is an error."""
    found = searched(site, tmp_path, [*string.ascii_lowercase, *string.digits])
    assert not [query for query, entries in found.items() if not entries]


GUIDES = {
    "8 bit": "half_precision",
    "8 bits": "half_precision",
    "LoRA": "parameter_groups",
    "adapter": "parameter_groups",
    "L-BFGS-B": "minimising",
    "change optimizer": "checkpoints",
    "checkpoint": "checkpoints",
    "checkpoints": "checkpoints",
    "custom optimizer": "writing_a_transformation",
    "data parallel": "scaling_out",
    "flax": "plain_jax",
    "hyperparameter search": "sweeping",
    "learning rate": "scheduling",
    "learning rate schedule": "scheduling",
    "log": "logging",
    "log gradient norm": "logging",
    "log learning rate": "logging",
    "loss spike": "skipping",
    "multiple GPUs": "scaling_out",
    "own optimizer": "writing_a_transformation",
    "wandb": "logging",
    "weight decay": "transformations",
}


@needs_chromium
@pytest.mark.slow
def test_topics_lead_to_their_guides(site, tmp_path):
    found = searched(site, tmp_path, [*GUIDES], part="pathname")
    first = {topic: pages[0].rpartition("/")[2] for topic, pages in found.items()}
    assert first == {topic: f"{guide}.html" for topic, guide in GUIDES.items()}
