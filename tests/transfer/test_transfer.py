"""Hyperparameters of larger runs: numbers of the papers' programs, and laws."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

import eqopt
from eqopt.transfer import (
    Factors,
    Plan,
    PowerLaw,
    Settings,
    complete_p,
    find_best,
    fit,
    hyper_p,
    marin,
    rescale,
)


BASE = Plan(tokens=1e9, batch_tokens=2**19, width=256, depth=4)
TUNED = Settings(1e-3, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)
RULES = "half_life", "square_root", "sde", "sdew", "rate"
with_batch = lambda factor: dataclasses.replace(BASE, batch_tokens=factor * 2**19)


def close(found, expected, **options):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for x, y in pairs:
        assert isinstance(x, float) and x == pytest.approx(y, **options)


#
# Numbers from the programs that define the rules
#


@pytest.mark.parametrize(
    ("tokens", "width", "batch", "adam", "muonh", "eps", "b2"),
    [
        (1.4e9, 512, 131072, 0.0022873, 0.0099115, 1.0e-15, 0.999),
        (2e10, 1024, 2**20, 0.0020395, 0.0088378, 1.3363e-15, 0.99203),
        (1.007e13, 2560, 3.355e7, 0.00086117, 0.0037317, 5.3011e-15, 0.95),
    ],
)
def test_marin(tokens, width, batch, adam, muonh, eps, b2):
    plan = Plan(tokens, batch, width)
    close(marin(plan), Settings(adam, 0.9062, b2, eps), rel=2e-5)
    close(marin(plan, "adamh"), Settings(muonh, 0.9062, b2, eps), rel=2e-5)
    close(marin(plan, "muonh"), Settings(muonh, 0.95, b2, eps), rel=2e-5)
    assert marin(Plan(1e6, 1e6, 64), "muonh").learning_rate == 0.05
    assert marin(Plan(1e6, 1024, 64)).b2 == 0.9999


def test_hyper_p():
    rate = lambda batch, tokens, depth: hyper_p()(Plan(tokens, batch, depth=depth))
    assert rate(2**21, 9.5e9, 8) == 6e-4
    assert rate(2**21, 9.5e10, 8) == pytest.approx(2.871781e-4)
    assert rate(2**22, 9.5e10, 16) == pytest.approx(2.871781e-4)
    assert rate(2**21, 2e10, 24) == pytest.approx(2.729811e-4)


def test_complete_p():
    wide = dataclasses.replace(BASE, width=1024, depth=32)
    for alpha, residual, rate, of_vectors in (
        (1.0, 0.125, 0.25, 1.0),
        (0.5, 0.35355339, 0.08838835, 0.35355339),
    ):
        found = complete_p(BASE, wide, alpha=alpha)
        assert found.residual == pytest.approx(residual)
        assert found.logits == 0.25
        close(found.hidden, Factors(0.5, rate, 4.0, residual / 4))
        close(found.vector, Factors(1.0, of_vectors, 0.0, residual / 4))
        # Equation 40: outside the branches, epsilon does not depend on the depth.
        close(found.embedding, Factors(eps=0.25))
        close(found.output, Factors(eps=0.25))
        close(found.final_norm, Factors(weight_decay=0.0, eps=0.25))


@pytest.mark.parametrize(
    ("rule", "factor", "expected"),
    [
        ("square_root", 4, (2e-3, 0.6, 0.8, 5e-9, 0.1)),
        ("square_root", 0.25, (5e-4, 0.975, 0.9875, 2e-8, 0.1)),
        ("sde", 4, (2e-3, 0.9, 0.8, 5e-9, 0.1)),
        ("sdew", 4, (1e-3, 0.9, 0.9, 5e-9, 0.2)),
        ("half_life", 4, (2e-3, 0.9, 0.81450625, 5e-9, 0.1)),
        ("half_life", 0.25, (5e-4, 0.9, 0.98725854, 2e-8, 0.1)),
        ("rate", 4, (2e-3, 0.9, 0.95, 1e-8, 0.1)),
    ],
)
def test_batch_rules(rule, factor, expected):
    options = {"batch_rule": rule, "weight_decay": "batch_rule"}
    found = rescale(TUNED, BASE, with_batch(factor), **options)
    close(found, Settings(*expected), rel=1e-8)


def test_the_half_life_is_constant():
    for factor in (0.25, 1, 64):
        b2 = rescale(TUNED, BASE, with_batch(factor)).b2
        tokens = factor * 2**19 * math.log(0.5) / math.log(b2)
        assert tokens == pytest.approx(7_084_917, abs=1)


def test_timescale_of_the_decay():
    assert rescale(TUNED, BASE, with_batch(4)).weight_decay == pytest.approx(0.2)
    longer = dataclasses.replace(BASE, tokens=1e10)
    assert rescale(TUNED, BASE, longer).weight_decay == pytest.approx(0.01)


#
# Laws
#

LAW = PowerLaw(BASE, 1e-3, tokens=-0.3, batch_tokens=0.4, depth=-0.5)
LATER = Plan(tokens=3e9, batch_tokens=2**20, width=512, depth=6)
LAST = Plan(tokens=7e9, batch_tokens=1.5 * 2**20, width=2048, depth=12)
CHOICES = [
    {"batch_rule": rule, "rate": rate, "weight_decay": decay}
    for rule in RULES
    for rate in (None, LAW)
    for decay in ("timescale", "batch_rule")
]


@pytest.mark.parametrize("choice", CHOICES)
def test_laws_of_scale(choice):
    assert rescale(TUNED, BASE, BASE, **choice) == TUNED
    between = rescale(TUNED, BASE, LATER, **choice)
    found = rescale(TUNED, BASE, LAST, **choice)
    close(rescale(between, LATER, LAST, **choice), found)
    if choice["weight_decay"] == "timescale":
        scales = [
            plan.batch_tokens / (s.learning_rate * s.weight_decay * plan.tokens)
            for plan, s in ((BASE, TUNED), (LATER, between), (LAST, found))
        ]
        assert scales == pytest.approx([scales[0]] * 3)
    if choice["rate"] is not None:
        of_law = LAW(LAST) / LAW(BASE)
        assert found.learning_rate == pytest.approx(1e-3 * of_law)


@pytest.mark.parametrize("optimizer", ["adam", "muon", "sphere"])
@pytest.mark.parametrize("decay", ["constant", "per_width"])
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_laws_of_complete_p(optimizer, decay, alpha):
    choice = {"optimizer": optimizer, "weight_decay": decay, "alpha": alpha}
    factors = lambda base, plan: complete_p(base, plan, **choice)
    close(
        jax.tree.map(lambda x, y: x * y, factors(BASE, LATER), factors(LATER, LAST)),
        factors(BASE, LAST),
    )
    same = factors(BASE, BASE)
    assert {*jax.tree.leaves(same)} <= {0.0, 1.0}
    assert same.hidden.weight_decay == (optimizer != "sphere")
    hidden = factors(BASE, dataclasses.replace(BASE, width=1024)).hidden
    assert hidden.learning_rate == (0.25 if optimizer == "adam" else 1.0)
    product = 0.0 if optimizer == "sphere" else 1.0 if decay == "constant" else 0.25
    assert hidden.learning_rate * hidden.weight_decay == product
    applied = factors(BASE, LAST).hidden.apply(TUNED)
    assert (applied.b1, applied.b2) == (TUNED.b1, TUNED.b2)
    assert applied.eps == pytest.approx(1e-8 * factors(BASE, LAST).hidden.eps)


def test_settings_are_arguments_of_optimizers():
    opt = eqopt.AdamW(**vars(TUNED))
    assert (opt.learning_rate, opt.b2, opt.weight_decay) == (1e-3, 0.95, 0.1)
    assert Plan(10, 4).steps == 2.5


#
# Fits
#


def test_fit_finds_a_law():
    plans = [Plan(t, b, w) for t in (1e6, 4e6) for b in (2e3, 9e3) for w in (32, 64)]
    law = PowerLaw(plans[0], 2e-3, tokens=-0.32, batch_tokens=0.5, width=-0.15)
    found = fit(plans, [law(plan) for plan in plans])
    for name in ("tokens", "batch_tokens", "width"):
        assert getattr(found.law, name) == pytest.approx(getattr(law, name))
    far = Plan(1e9, 1e5, 512)
    assert found.law(far) == pytest.approx(law(far))
    assert found.r_squared == pytest.approx(1) and found.spread(far) < 1.001
    level = fit(plans, [2.0] * 8, ["tokens"])
    assert (level.law.tokens, level.r_squared) == (pytest.approx(0), 1.0)


def test_fit_is_ordinary_least_squares():
    """Slope, standard errors and R² against the textbook's formulas for a line."""
    tokens = np.array([1e6, 2e6, 4e6, 8e6, 1.6e7])
    values = np.array([8e-3, 6.1e-3, 5.2e-3, 4e-3, 3.5e-3])
    found = fit([Plan(t, 1e4, depth=3) for t in tokens], values.tolist())
    x, y = np.log(tokens), np.log(values)
    sxx = np.sum((x - x.mean()) ** 2)
    slope = np.sum((x - x.mean()) * (y - y.mean())) / sxx
    rest = y - y.mean() - slope * (x - x.mean())
    variance = np.sum(rest**2) / 3
    assert found.law.tokens == pytest.approx(slope)
    assert found.law.value == pytest.approx(math.exp(y.mean()))
    assert found.errors == pytest.approx({"tokens": math.sqrt(variance / sxx)})
    assert found.r_squared == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)
    t = math.log(1e9) - x.mean()
    spread = math.exp(math.sqrt(variance / 5 + variance / sxx * t**2))
    assert found.spread(Plan(1e9, 1e4)) == pytest.approx(spread)
    assert found.law.base.depth == pytest.approx(3)  # it is the same in all plans


def test_find_best():
    rates = 2.0 ** np.arange(-8, -2)
    losses = (np.log(rates) - math.log(0.02)) ** 2
    assert find_best(rates.tolist(), losses.tolist()) == pytest.approx(0.02)
    assert find_best([1, 2, 8], [3.0, 1.0, np.nan]) == 2.0
    assert 2 < find_best([1, 2, 8], [3.0, 1.0, 1.5]) < 8


def test_plot():
    plans = [Plan(t, b) for t in (1e6, 2e6, 4e6) for b in (1e4, 4e4)]
    values = [1e-3 * (p.tokens / 1e6) ** -0.3 * (p.batch_tokens / 1e4) for p in plans]
    values[0] *= 1.1
    found = fit(plans, values)
    axes = eqopt.plot.power_law(
        found, over="tokens", until=Plan(3.2e7, 1e5), axes=Figure().subplots()
    )
    line, points = axes.get_lines()
    x, y = line.get_data()
    assert (x.min(), x.max()) == pytest.approx((1e6, 3.2e7))
    # At the geometric mean of the batches, a line of the law through what it explains.
    at = Plan(3.2e7, found.law.base.batch_tokens)
    assert y[-1] == pytest.approx(found.law(at))
    [band] = axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() >= y[0] * found.spread(
        dataclasses.replace(at, tokens=1e6)
    ) * (1 - 1e-9)
    for x, y, plan, value in zip(*points.get_data(), plans, values, strict=True):
        moved = dataclasses.replace(found.law.base, tokens=plan.tokens)
        assert x == plan.tokens
        assert y / found.law(moved) == pytest.approx(value / found.law(plan))
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "tokens")
    with pytest.raises(ValueError, match=r"one of \['tokens', 'batch_tokens'\]"):
        eqopt.plot.power_law(found, over="width", axes=axes)


#
# Errors
#

together = [Plan(t, t / 100) for t in (1e6, 2e6, 4e6, 8e6)]


@pytest.mark.parametrize(
    ("fail", "says"),
    [
        (lambda: Plan(1e3, 1e6), "`batch_tokens` must be at most `tokens`"),
        (
            lambda: rescale(TUNED, BASE, with_batch(10), batch_rule="square_root"),
            "with `batch_rule='square_root'`, `b1=0.9` becomes",
        ),
        (lambda: marin(Plan(1e9, 1e6)), "marin: the plan must have a `width`."),
        (lambda: complete_p(Plan(1e9, 1e6), BASE), "one plan has `width`"),
        (lambda: fit(together, [1, 2, 3, -4]), "`values` must be 4 positive numbers"),
        (lambda: fit(together, [1, 2, 3, 4]), "do not tell tokens and batch_tokens"),
        (lambda: fit(together[:2], [1, 2], ["tokens"]), "2 points that differ in 1"),
        (lambda: find_best([1, 2, 3], [3.0, 2.0, 1.0]), "lowest at an end, 3. Extend"),
        (lambda: find_best([2, 1, 3], [3.0, 2.0, 1.0]), "3 increasing positive"),
    ],
)
def test_errors(fail, says):
    with pytest.raises(ValueError, match=r".*") as caught:
        fail()
    assert says in str(caught.value)
