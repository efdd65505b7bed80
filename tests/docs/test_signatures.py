"""The docstring of a class explains every argument, and so does its page."""

import ast
import functools
import inspect
import math
import re
import textwrap
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt

from ..methods import METHODS
from .pages import ROOT
from .test_pages import PUBLIC, resolve


@functools.cache
def written(name):
    """The docstring of a public class as an editor reads it in the source file."""
    cls = resolve(name)
    with open(inspect.getsourcefile(cls), encoding="utf-8") as file:
        found = [
            node
            for node in ast.walk(ast.parse(file.read()))
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__
        ]
    [node] = found
    return ast.get_docstring(node) or ""


def section(doc):
    return re.split(r"\n\n(?!- )\S", doc.partition("**Arguments:**\n\n")[2])[0].rstrip()


def explained(name):
    """The items of the list of arguments: the names, and what is said about them."""
    doc = written(name)
    if name in RESULTS:
        doc = doc.replace("**Attributes:**", "**Arguments:**")
    found = []
    for item in re.split(r"\n+(?=- )", section(doc)):
        names, colon, text = item.removeprefix("- ").partition(":")
        assert colon and re.fullmatch(r"`\w+`(,\s+`\w+`)*", names), item
        found.append((re.findall(r"`(\w+)`", names), " ".join(text.split())))
    return found


def defaults(name):
    parameters = inspect.signature(resolve(name)).parameters.values()
    return {p.name: p.default for p in parameters}


# What functions return: their docstrings list attributes.
RESULTS = {
    "eqopt.BacktrackingLinesearchInfo",
    "eqopt.LookaheadParams",
    "eqopt.ZoomLinesearchInfo",
    "eqopt.aggregating.GradientNoiseScale",
    "eqopt.groups.MupFactors",
    "eqopt.groups.Route",
    "eqopt.transfer.Fit",
    "eqopt.transfer.RoleFactors",
    "eqopt.tree.ByteCount",
    "eqopt.tree.MigrationPlan",
}


def is_called_by_users(name):
    # States are made by `init`, selectors and rules by functions.
    if name.endswith(("State", "groups.Selector", "groups.MatrixRules")):
        return False
    cls = resolve(name)
    return isinstance(cls, type) and "__init__" in vars(cls) and bool(defaults(name))


def is_optimizer(name):
    cls = resolve(name)
    if name.removeprefix("eqopt.") in METHODS:
        return True
    is_recipe = isinstance(cls, type) and issubclass(cls, eqopt.AbstractOptimizer)
    return is_recipe and cls is not eqopt.AbstractOptimizer


CLASSES = sorted(filter(is_called_by_users, PUBLIC))
OPTIMIZERS = sorted(filter(is_optimizer, PUBLIC))


@pytest.mark.parametrize("name", CLASSES)
def test_every_argument_is_explained_once_and_in_order(name):
    found = explained(name)
    names = [argument for arguments, _ in found for argument in arguments]
    assert sorted(names) == sorted(defaults(name))
    firsts = [arguments[0] for arguments, _ in found]
    assert firsts == [argument for argument in defaults(name) if argument in firsts]
    for arguments, text in found:
        assert not text.lower().startswith("see "), arguments


# The default is 2^15 in the text, or "much larger than Adam's".
OTHERWISE = {("eqopt.DynamicLossScale", "init_scale"), ("eqopt.ScaleByYogi", "eps")}


@pytest.mark.parametrize("name", CLASSES)
def test_every_default_is_explained(name):
    for arguments, text in explained(name):
        for argument in arguments:
            default = defaults(name)[argument]
            is_required = default is inspect.Parameter.empty
            assert is_required or re.search("[Dd]efault|`None`", text), argument
            # The number itself, so that a wrong default differs from the text.
            if isinstance(default, int | float) and (name, argument) not in OTHERWISE:
                whole = int(default) if default % 1 == 0 else default
                text = text.replace(",000", "000")
                assert states(text, default) or states(text, whole), argument


def shown(default):
    """A default as docstrings show it; empty if it is not a simple value."""
    if default is None or isinstance(default, bool):
        return f"`{default}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    if isinstance(default, int | float) and math.isfinite(default):
        return re.sub(r"e\+?(-?)0*", r"e\1", repr(default))
    return ""


def states(text, default):
    """Whether an explanation says that this is the default."""
    value = re.escape(shown(default))
    after = rf"(?:[^.]|\.\S)*?(?<![\w.-]){value}(?![\w-]|\.\d)"
    return bool(re.search(rf"\b[Dd]efaults? to{after if value else ' '}", text))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_docstring_of_an_optimizer_is_complete_in_the_source(name):
    doc = written(name)
    of = {argument: text for names, text in explained(name) for argument in names}
    for argument, default in defaults(name).items():
        text = of.pop(argument)
        assert not re.match("see ", text, re.IGNORECASE), argument
        assert default is inspect.Parameter.empty or states(text, default), argument
    assert not of
    assert '!!! abstract "One step"' in doc
    assert "!!! example" in doc and "```bibtex" in doc
    assert "**When to use it:** " in doc
    assert not re.search(r"which\s+ha(s|ve)\s+the\s+(equation|reference)", doc)


class Model(eqx.Module):
    """What the examples call `model`."""

    body: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self):
        body, head = jax.random.split(jax.random.key(0))
        self.body = eqx.nn.Linear(3, 4, key=body)
        self.head = eqx.nn.Linear(4, 2, key=head)

    def __call__(self, x):
        return self.head(jax.nn.tanh(self.body(x)))


def loss(model, batch):
    return jnp.mean(jax.vmap(model)(batch) ** 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.costly
def test_the_example_of_an_optimizer_runs(name):
    """It is traced, which is faster than to run it."""
    [code] = re.findall(
        r"!!! example\n\n    ```python\n(.*?)\n    ```", written(name), re.DOTALL
    )
    code = compile(textwrap.dedent(code), name, "exec")
    found = {}

    def run(model, batch):
        # A module, so that functions in the example say where they come from.
        module = types.ModuleType("example")
        vars(module).update(eqopt=eqopt, eqx=eqx, jax=jax, jnp=jnp)
        vars(module).update(model=model, batch=batch, loss=loss)
        vars(module).update(is_real=jnp.ones(5), loss_fn=lambda m: loss(m, batch))
        vars(module).update(grads=eqx.filter_grad(loss)(model, batch))
        exec(code, vars(module))
        found.update(vars(module))
        return eqx.filter(module.model, eqx.is_array)

    model = Model()
    new = eqx.filter_eval_shape(run, model, jnp.zeros((5, 3)))
    assert jax.tree.structure(new) == jax.tree.structure(
        eqx.filter(model, eqx.is_array)
    )
    assert hasattr(found["opt"], "init")


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
