"""Each law of `eqopt.testing` fails, with a sentence that says where and why."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, PyTree

import eqopt
from eqopt import testing
from eqopt.testing import _trial
from eqopt.testing._law import BY_NAME

from ..docs.pages import DOCS
from ..interpreter import interpreted
from .broken import BROKEN, Counting, Model, Momentum, Stateless


@pytest.fixture(autouse=True)
def no_compilation(monkeypatch):
    monkeypatch.setattr(_trial, "compiler", interpreted)


def sentences_of(opt, model, **arguments):
    with pytest.raises(testing.LawError) as caught:
        testing.check_laws(opt, model, **arguments)
    return caught.value.broken


@pytest.mark.parametrize(
    ("law", "opt", "part"),
    BROKEN,
    ids=[f"{type(opt).__name__}-{law}" for law, opt, _ in BROKEN],
)
@pytest.mark.costly
def test_each_law_can_fail(law, opt, part):
    with pytest.raises(testing.LawError) as caught:
        testing.check_law(law, opt, Model())
    sentence = str(caught.value)
    assert caught.value.broken == {law: sentence}
    assert sentence.startswith(f"{type(opt).__name__} breaks the law `{law}`: ")
    assert part in sentence
    # What was found where, what was expected, and the fix.
    assert re.search(r"^.*, expected .+?(; .+)?\.$", sentence)


def test_all_laws_are_broken_by_something():
    assert {law for law, _, _ in BROKEN} == set(testing.LAWS)


def test_the_page_has_all_laws():
    page = (DOCS / "api" / "testing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(name, BY_NAME[name].statement) for name in testing.LAWS]


@pytest.mark.slow
def test_what_is_right_breaks_no_law():
    testing.check_laws(Counting(), Model())
    # It maps over trees without a look at `None`, or at shapes.
    assert [*sentences_of(Momentum(), Model())] == ["partly_trained", "other_model"]


class Two(Counting):
    """Breaks two laws, and with the first one some that need a state of fixed types."""

    def after(self, count):
        return count.astype(jnp.float32) + 1

    def eval_params(self, state, params):
        return eqx.filter(params, eqx.is_array)


def test_all_broken_laws_are_reported():
    with pytest.raises(testing.LawError) as caught:
        testing.check_laws(
            Two(), Model(), only=["eval_params", "scan", "state", "step"]
        )
    assert [*caught.value.broken] == ["eval_params", "scan", "state"]
    first, *others = str(caught.value).splitlines()
    assert first == "Two breaks 3 of 4 laws."
    assert others == [*caught.value.broken.values()]


class Raises(Stateless):
    def of_leaf(self, g):
        raise RuntimeError("no such leaf. Try another one")


def test_an_error_is_told_once():
    broken = sentences_of(Raises(), Model(), only=("updates", "state"))
    raised = (
        "it raised RuntimeError (no such leaf. Try another one), expected no error; "
    )
    assert f"{raised}make" in broken["updates"]
    assert broken["state"].endswith(f"{raised}see `updates`.")


def test_names():
    laws = {"other_model": "it is for one model"}
    testing.check_laws(Momentum(), Model(), skip=laws, only=["other_model", "state"])
    testing.check_laws(Momentum(), Model(), skip="other_model", only="other_model")
    with pytest.raises(ValueError, match=r"`skip` has 'x', .* The laws are up"):
        testing.check_laws(Momentum(), Model(), skip=["x"])


class NeedsValue(Stateless):
    def update(self, updates, state, params=None, *, value, **extra):
        return eqopt.tree.scale(value, updates), None


def test_extra_arguments():
    for extra in (
        {"value": jnp.asarray(2.0)},
        lambda model: {"value": jnp.tanh(model.layer.bias[0].astype(jnp.float32))},
    ):
        testing.check_laws(
            NeedsValue(),
            Model(),
            extra=extra,
            only=["state", "hyperparameters", "vmap", "scan", "donation"],
        )
    assert "missing" in sentences_of(NeedsValue(), Model(), only="state")["state"]


def test_a_model_without_parameters():
    """It is an error of the call, and not a broken law."""
    with pytest.raises(ValueError, match="floating-point or complex arrays"):
        testing.check_laws(Stateless(), {"f": jnp.tanh})
    with pytest.raises(ValueError, match="`params` has no parameters"):
        testing.check_laws(eqopt.SGD(0.1), {"a": 1.0})


def test_no_step_is_possible():
    sentences = sentences_of(eqopt.PolyakSGD(0.1), Model(), only=["updates", "jit"])
    assert "required keyword-only argument: 'value'" in sentences["updates"]
    assert "pass extra arguments that they need as `extra`" in sentences["updates"]
    assert "see `updates`" in sentences["jit"]


class PullState(eqx.Module):
    start: PyTree


Leaf = Float[Array, "*leaf"]


@eqopt.equation
def pull(g, p, start):
    return g + 0.1 * (p - start), start


@eqopt.equation
def annotated_pull(g: Leaf, p: Leaf, start: Leaf):
    return g + 0.1 * (p - start), start


class Pull(eqopt.AbstractLeafwise):
    """Reads a slot that it does not change."""

    is_annotated: bool

    def init(self, params):
        arrays = eqx.filter(params, eqx.is_inexact_array)
        return PullState(jax.tree.map(jnp.copy, arrays))

    def leafwise(self, state, params=None, **extra):
        return eqopt.Leafwise(annotated_pull if self.is_annotated else pull, state)


def test_a_slot_that_is_only_read():
    [sentence] = sentences_of(Pull(False), Model(), only="other_model").values()
    assert sentence.endswith(
        "and annotate the slots that it only reads: `Float[Array, '*leaf']`."
    )
    testing.check_law("other_model", Pull(True), Model())


class Halves(eqopt.storage.AbstractStored):
    halves: Array

    @property
    def like(self):
        return jax.ShapeDtypeStruct(self.halves.shape, jnp.float32)

    def load(self):
        return self.halves.astype(jnp.float32)

    def store(self, new):  # type: ignore  # on purpose
        return new  # and not `Halves(...)`


class AsHalves(eqopt.storage.AbstractStateStorage):
    def keep(self, x, slot):
        return Halves(x.astype(jnp.bfloat16))


def test_a_storage_that_stores_an_array():
    opt = eqopt.StoreState(eqopt.Trace(0.9), AsHalves(), where=lambda params: True)
    [sentence] = sentences_of(opt, Model(), only="state").values()
    assert (
        "has float32[3,2] at `.inner_state.trace.layer.weight`, expected a Halves as in"
    ) in sentence
