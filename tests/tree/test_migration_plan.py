"""Which parts a migration takes, its table, and its errors."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt.tree import MigratedPart, MigrationPlan, migrate, migration_plan


PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
ADAM = eqopt.Adam(0.1)
CLIPPED = eqopt.Chain(eqopt.Clip(1.0), eqopt.AdamW(0.1))
TWICE = eqopt.Chain(ADAM, ADAM)
BF16 = eqopt.Adam(0.1, mu_dtype=jnp.bfloat16)


def state_of(opt, params=PARAMS):
    return eqx.filter_eval_shape(opt.init, params)


def plan(new, opt, params=PARAMS, old=PARAMS, **given):
    """The plan for the state of `opt`, with parameters `old`."""
    return migration_plan(new, state_of(opt, old), params, **given)


def sources(new, old, **given):
    return {part.path: part.taken_from for part in plan(new, old, **given).parts}


def groups(**parts):
    names = [*parts]
    labels = {"w": names[0], "b": names[-1]}
    return eqopt.Partition(parts, lambda params: labels)


def test_the_table():
    ema = eqopt.ParamEMA(CLIPPED)
    old = eqopt.SkipStep(ADAM, eqopt.SigmaRule())
    drop = "SkipStepState", "SigmaRuleState"
    found = plan(ema, old, drop=drop)
    assert (
        str(found)
        == """\
new state           class                     values
(the root)          ParamEMAState             initialised
.inner_state[1][0]  ScaleByAdamState          taken from .inner_state[0]
.inner_state[1][2]  ScaleByLearningRateState  taken from .inner_state[1]

old state           class                     values
(the root)          SkipStepState             dropped
.rule_state         SigmaRuleState            dropped"""
    )
    assert found == MigrationPlan(
        (
            MigratedPart("", "ParamEMAState", None),
            MigratedPart(".inner_state[1][0]", "ScaleByAdamState", ".inner_state[0]"),
            MigratedPart(
                ".inner_state[1][2]", "ScaleByLearningRateState", ".inner_state[1]"
            ),
        ),
        (("", "SkipStepState"), (".rule_state", "SigmaRuleState")),
    )
    assert str(plan(ema, ema)).count("taken from (the root)") == 1


def test_places_relative_to_each_other():
    places = "[0][0]", "[0][1]", "[1][0]", "[1][1]"
    for new, start in (
        (eqopt.ParamEMA(TWICE), ".inner_state"),
        (eqopt.Chain(eqopt.Clip(1.0), TWICE), "[1]"),
    ):
        found = sources(new, TWICE)
        assert {start + x: x for x in places}.items() <= found.items()


def test_labels_count_more_than_positions():
    old = groups(a=ADAM, b=ADAM)
    new = eqopt.Chain(eqopt.Clip(1.0), groups(a=eqopt.AdamW(0.1), b=eqopt.AdamW(0.1)))
    assert sources(new, old) == {
        "[1].inner_states['a'][0]": ".inner_states['a'][0]",
        "[1].inner_states['a'][2]": ".inner_states['a'][1]",
        "[1].inner_states['b'][0]": ".inner_states['b'][0]",
        "[1].inner_states['b'][2]": ".inner_states['b'][1]",
    }
    assert sources(eqopt.Lookahead(old, 5, 0.5), old, drop=[]) == {
        "": None,
        **{f".fast_state{path}": path for path in sources(old, old)},
    }
    # A group with another name is the one that is left over.
    renamed = sources(groups(a=ADAM, c=ADAM), old)
    assert renamed[".inner_states['c'][0]"] == ".inner_states['b'][0]"


def test_paths_inside_other_paths():
    """Inner paths of `take` are exceptions from outer ones."""
    take = {"[1]": "[0]", "[1][1]": None, "[0]": "[1]"}
    assert sources(TWICE, TWICE, take=take, drop="[0][1]") == {
        "[0][0]": "[1][0]",
        "[0][1]": "[1][1]",
        "[1][0]": "[0][0]",
        "[1][1]": None,
    }


def test_entries_of_drop():
    for drop in (
        eqopt.ParamEMAState,
        ["ParamEMAState"],
        ["ParamEMAState.count", ".weight_sum", "ParamEMAState.average"],
    ):
        found = plan(ADAM, eqopt.ParamEMA(ADAM), drop=drop)
        assert found.dropped == (("", "ParamEMAState"),)
    found = plan(ADAM, ADAM, drop="[0].mu['w']")
    assert found.dropped == (("[0].mu['w']", "ScaleByAdamState"),)
    assert found.parts[0].initialised == ("[0].mu['w']",)


def test_classes_that_a_notebook_defines_again():
    def define():
        class HeavyState(eqx.Module):
            trace: jax.Array

        return HeavyState

    define.__qualname__ = "define"
    old, new = define(), define()
    init = lambda _: (None, new(jnp.zeros(2)))
    moved = migrate(
        type("Opt", (), {"init": staticmethod(init)})(), old(jnp.ones(2)), 0
    )
    assert isinstance(moved[1], new) and jnp.array_equal(moved[1].trace, jnp.ones(2))


WRONG = {
    "a value without a place": (
        lambda: plan(ADAM, eqopt.ParamEMA(ADAM)),
        "the new optimizer has no place for these values of the old state: "
        "ParamEMAState at `(the root)`. To omit them, pass "
        "`drop=['ParamEMAState']`. To move them, pass `take`.",
    ),
    "one of several of a class": (
        lambda: plan(ADAM, TWICE, take={"": "[1]"}),
        "ScaleByAdamState at `[0][0]`, ScaleByLearningRateState at `[0][1]`. To "
        "omit them, pass `drop=['[0][0]', '[0][1]']`.",
    ),
    "two candidates": (
        lambda: plan(ADAM, TWICE),
        "it is unclear which ScaleByAdamState to take: the new state has "
        "`[0]`, and the old one `[0][0]`, `[1][0]`. Say which, "
        "`take={'[0]': '[0][0]'}`, or `None` instead of the second path to initialise.",
    ),
    "another shape": (
        lambda: plan(ADAM, ADAM, {**PARAMS, "b": jnp.ones(5)}),
        "the old state has float32[2] at `[0].mu['b']`, but the new one has "
        "float32[5] at `[0].mu['b']`, and 1 more differ. Pass the old "
        "model and dtypes, or initialise what differs: "
        "`drop=[\"[0].mu['b']\", \"[0].nu['b']\"]`.",
    ),
    "several values with other shapes": (
        lambda: plan(ADAM, ADAM, {"w": jnp.ones(5), "b": jnp.ones(5)}),
        "and 3 more differ. Pass the old model and dtypes, or initialise what differs: "
        "`drop=['ScaleByAdamState.mu', 'ScaleByAdamState.nu']`.",
    ),
    "a path that the new state lacks": (
        lambda: plan(CLIPPED, ADAM, take={"[0]": "[0]"}),
        "`take` has the path '[0]', but the new state has no part there. Did "
        "you mean '[1][0]'",
    ),
    "paths of different classes": (
        lambda: plan(ADAM, ADAM, take={"[0]": "[1]"}),
        "`take` has '[0]': '[1]', but these have no class in common: "
        "ScaleByAdamState in the new state, and ScaleByLearningRateState in the old one. "
        "To initialise: `take={'[0]': None}`.",
    ),
    "nothing to drop": (
        lambda: plan(ADAM, eqopt.ParamEMA(ADAM), drop=eqopt.ParamEMA),
        "`drop` has 'ParamEMA', but the old state has no such class, field or "
        "path. Did you mean 'ParamEMAState'?",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.filterwarnings("ignore:Partition")
def test_errors(case):
    call, message = WRONG[case]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


def test_the_advice_about_dtypes_works():
    state = ADAM.init(PARAMS)
    cast = eqopt.tree.cast(eqopt.tree.get(state, "mu"), jnp.bfloat16)
    moved = migrate(BF16, eqopt.tree.set(state, mu=cast), PARAMS)
    assert eqx.tree_equal(moved, BF16.init(PARAMS), typematch=True)
