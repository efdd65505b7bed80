"""`help` explains every argument of a class, and so does its page."""

import inspect
import pydoc
import re
import subprocess
import sys

import equinox as eqx
import pytest

import eqopt
from eqopt._arguments.explanations import completed, explanations, shown

from .pages import ROOT
from .test_pages import PUBLIC, resolve


def written(name):
    """The docstring of a public class as written in its source."""
    doc = vars(resolve(name))["__doc__"]
    return getattr(doc, "written", doc)


def defaults(name):
    parameters = inspect.signature(resolve(name)).parameters.values()
    return {p.name: p.default for p in parameters}


def explained(name):
    """The explanations of all arguments in `help`, with none left to other classes."""
    doc = inspect.getdoc(resolve(name))
    if name in RESULTS:
        doc = doc.replace("**Attributes:**", "**Arguments:**")
    return explanations(doc, defaults(name), {}.__getitem__)


# What functions return: their docstrings list attributes.
RESULTS = {
    "eqopt.BacktrackingLinesearchInfo",
    "eqopt.LookaheadParams",
    "eqopt.ZoomLinesearchInfo",
    "eqopt.aggregating.GradientNoiseScale",
    "eqopt.groups.MupFactors",
    "eqopt.groups.Route",
    "eqopt.tree.ByteCount",
    "eqopt.tree.MigrationPlan",
}


def is_called_by_users(name):
    # States are made by `init`, selectors and rules by functions.
    if name.endswith(("State", "groups.Selector", "groups.MatrixRules")):
        return False
    cls = resolve(name)
    return isinstance(cls, type) and "__init__" in vars(cls) and bool(defaults(name))


CLASSES = sorted(filter(is_called_by_users, PUBLIC))


@pytest.mark.parametrize("name", CLASSES)
def test_every_argument_is_explained_once_and_in_order(name):
    found = explained(name)
    names = [argument for e in found for argument in e.names]
    assert sorted(names) == sorted(defaults(name))
    firsts = [e.names[0] for e in found]
    assert firsts == [argument for argument in defaults(name) if argument in firsts]


@pytest.mark.parametrize("name", CLASSES)
def test_every_default_is_explained(name):
    for e in explained(name):
        for argument in e.names:
            is_required = defaults(name)[argument] is inspect.Parameter.empty
            assert is_required or re.search("[Dd]efault|`None`", e.text), argument


# The text about the default is the class's own.
OTHER_DEFAULTS = {("eqopt.AdEMAMix", "alpha"), ("eqopt.SOAPMuon", "coefficients")}


@pytest.mark.parametrize("name", CLASSES)
def test_what_another_class_says_of_an_argument_is_true_here(name):
    for e in explanations(written(name), defaults(name), written):
        if not e.origin:
            continue
        there = explanations(written(e.origin), defaults(e.origin), written)
        # Both, or none, of two arguments that are explained together.
        assert e.names in [other.names for other in there]
        mentioned = {*re.findall(r"`(\w+)`", e.text)} & {*defaults(e.origin)}
        assert mentioned <= {*defaults(name)}, e.text
        for argument in e.names:
            if "efault" in e.text and (name, argument) not in OTHER_DEFAULTS:
                assert defaults(name)[argument] == defaults(e.origin)[argument]


@pytest.fixture(scope="module")
def documented():
    """The package as the documentation has it."""
    griffe = pytest.importorskip("griffe")
    config = (ROOT / "mkdocs.yml").read_text()
    extensions = re.findall(r"^ +- (docs/_griffe/\S+)$", config, re.MULTILINE)
    return griffe.load(
        "eqopt",
        search_paths=[str(ROOT / "src")],
        extensions=griffe.load_extensions(*(str(ROOT / e) for e in extensions)),
        allow_inspection=False,
    )


def section(doc):
    return re.split(r"\n\n(?!- )\S", doc.partition("**Arguments:**\n\n")[2])[0].rstrip()


def test_pages_say_what_help_says(documented):
    for name in CLASSES:
        page = documented[name.removeprefix("eqopt.")].docstring.value
        assert section(page) == section(inspect.getdoc(resolve(name))), name


def test_pages_show_the_arguments_of_the_class(documented):
    """Also inherited ones, but no class variables."""
    for name in PUBLIC:
        cls = resolve(name)
        if isinstance(cls, type) and issubclass(cls, eqx.Module):
            init = documented[name.removeprefix("eqopt.")].members.get("__init__")
            shown = [p.name for p in init.parameters][1:] if init else []
            assert shown == [*inspect.signature(cls).parameters], name


def test_everybody_sees_the_whole_docstring():
    line = (
        "- `mask`: which parameters decay: a tree of Python bools like the parameters"
    )
    assert line in eqopt.AdamW.__doc__
    assert line in eqopt.AdamW(1e-3).__doc__
    assert line in inspect.getdoc(eqopt.AdamW)
    assert line in pydoc.getdoc(eqopt.AdamW)
    assert line in pydoc.render_doc(eqopt.AdamW, renderer=pydoc.plaintext)
    assert "All others" not in eqopt.AdamW.__doc__


def test_a_subclass_has_a_docstring_of_its_own():
    class Mine(eqopt.AbstractOptimizer):
        """Mine.

        **Arguments:**

        - All others: see [`eqopt.Adam`][].
        """

        learning_rate: float

        @property
        def chain(self):
            return eqopt.Chain(eqopt.ScaleByLearningRate(self.learning_rate))

    class Silent(eqopt.AbstractOptimizer):
        @property
        def chain(self):
            return eqopt.Chain(eqopt.Scale(-1.0))

    assert "All others: see" in Mine.__doc__  # what users write stays as it is
    assert Silent.__doc__ is None or "Arguments" not in Silent.__doc__


@pytest.mark.slow
def test_import_parses_no_docstring():
    code = (
        "import sys; from eqopt import *; import eqopt; eqopt.AdamW(1e-3)\n"
        "assert 'eqopt._arguments.explanations' not in sys.modules\n"
        "eqopt.AdamW.__doc__\n"
        "assert 'eqopt._arguments.explanations' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


BASE = """Steps.

**Arguments:**

- `a`, `b`: two sizes
    above 0.
- `c`: a flag.

**Raises:**

An error.
"""


def test_explanations_of_other_classes_are_put_in_order():
    doc = """Also steps.

    **Arguments:**

    - `c`: see [`eqopt.Base`][]. It is new.
    - `d`: a name.

        With more about it.
    - All others: see [`eqopt.Base`][].
    """
    arguments = {"d": "x", "a": 1.0, "b": 1e-12, "c": True}
    full = """Also steps.

    **Arguments:**

    - `d`: a name. Defaults to `"x"`.

        With more about it.
    - `a`, `b`: two sizes
        above 0. Default to 1.0 and 1e-12.
    - `c`: a flag. It is new. Defaults to `True`.
    """
    found = completed(doc, arguments, {"eqopt.Base": BASE}.__getitem__)
    assert found == inspect.cleandoc(full)


def test_an_item_in_another_form_leaves_the_docstring_as_it_is():
    for item in ("- The others are those of Base.", "- All others: as in `Base`."):
        doc = BASE.replace("- `c`: a flag.", item)
        assert completed(doc, {"a": 1}, {}.__getitem__) == doc.rstrip()
        with pytest.raises(ValueError, match="others"):
            explanations(doc, ["a"], {}.__getitem__)


@pytest.mark.parametrize(
    "default, text",
    [
        (0.1, "0.1"),
        (1e-8, "1e-8"),
        (1e20, "1e20"),
        (-3, "-3"),
        (False, "`False`"),
        ("rms", '`"rms"`'),
        (float("inf"), ""),
        (None, ""),
        ((1, 2), ""),
    ],
)
def test_defaults_are_shown_as_people_write_them(default, text):
    assert shown(default) == text
