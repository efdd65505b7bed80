"""Which optimizer? What the sweep trains, keeps, and says on the page."""

import dataclasses
import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from benchmarks.workloads.__main__ import IMAGES, PAGES, stored
from benchmarks.workloads.protocol import SCHEDULES, SEEDS, Cell
from benchmarks.workloads.results import Failure, read
from benchmarks.workloads.summary import mark, rows
from benchmarks.workloads.sweep import WORKLOADS

import eqopt

from ..methods import METHODS


def by_hand(workload, rate, seed):
    """AdamW with a warm-up and a cosine, in a loop as one writes it for one run."""
    model_key, batch_key = jr.split(jr.key(seed))
    model = workload.model(model_key)
    warm_up = workload.steps // 20

    def rate_at(i):
        if i < warm_up:
            return rate * i / warm_up
        share = (i - warm_up) / (workload.steps - warm_up)
        return rate * (1 + math.cos(math.pi * share)) / 2

    @eqx.filter_jit
    def train_step(model, state, i, rate):
        rows = jr.randint(
            jr.fold_in(batch_key, i), (workload.batch,), 0, len(workload.examples[0])
        )
        xs, ys = (jnp.asarray(x)[rows] for x in workload.examples)

        def mean_loss(model):
            return jnp.mean(jax.vmap(lambda x, y: workload.loss(model, (x, y)))(xs, ys))

        grads = eqx.filter_grad(mean_loss)(model)
        return eqopt.AdamW(rate).step(grads, state, model)

    validation_loss = eqx.filter_jit(workload.validation_loss)
    state, losses = eqopt.AdamW(rate).init(model), []
    for i in range(workload.steps):
        rate_now = jnp.asarray(rate_at(i), jnp.float32)
        model, state = train_step(model, state, jnp.asarray(i), rate_now)
        if (i + 1) % (workload.steps // 20) == 0:
            losses.append(float(validation_loss(model)))
    return losses


@pytest.mark.slow
def test_what_is_on_disk_is_a_plain_loop():
    """The best cell of AdamW, all three seeds; another processor rounds otherwise."""
    cell = read("tumours")["AdamW"]
    assert isinstance(cell, Cell)
    for seed, curve in zip(SEEDS, cell.curves, strict=True):
        np.testing.assert_allclose(
            curve, by_hand(WORKLOADS["tumours"](), cell.best, seed), 0.02
        )


CELL = Cell(
    "SGD",
    [0.1, 1.0],
    [0.5, math.nan],
    0.1,
    [[3.0, 1.0], [2.0, math.inf]],
    1.0,
    [1.0, 2.0],
    0.5,
    4.0,
    1.0,
)


def test_marks():
    adamw = dataclasses.replace(CELL, name="AdamW", step_ms=0.25)
    curves = [[4.0] * 10 + [1.0] * 10, [4.0] * 15 + [1.0] * 5, [4.0] * 19 + [0.5]]
    cell = dataclasses.replace(CELL, curves=curves, finals=[1.0, math.nan])
    found = mark(cell, adamw, start=8.0, target=1.0)
    assert found.by_seed == (0.55, 0.8, 1.0)
    assert found.to_target == 1.0
    assert (found.low, found.high) == (0.5, 1.0)
    assert found.robust == 0.5
    assert found.cost == 2.0
    assert found.at_edge
    results = {"digits": {"AdamW": cell, "SGD": Failure("SGD", "no")}}
    first, second = rows(results, {"digits": 8.0}, {"digits": 1.0})
    assert (first.name, first.relative, first.reached) == ("AdamW", 1.0, 1)
    assert (second.name, second.relative, second.failures) == (
        "SGD",
        math.inf,
        {"digits": "no"},
    )


def test_every_optimizer_has_a_result():
    for name in WORKLOADS:
        assert read(name).keys() == METHODS.keys()
    assert METHODS.keys() >= SCHEDULES.keys()


@pytest.mark.slow
def test_the_pages_are_what_the_results_say():
    found = stored()
    assert {name for names in PAGES.values() for name in names} == {*found.parts}
    for page, names in PAGES.items():
        for name in names:
            shown = f"<!-- {name} -->\n\n{found.parts[name]}\n\n<!-- end of {name} -->"
            assert shown in page.read_text(), name
    # Matplotlib writes each text of a picture as a comment, too.
    for picture in ("which_steps.svg", "which_rates.svg"):
        texts = re.findall("<!-- (.*?) -->", (IMAGES / picture).read_text())
        names = [text for text in texts if text in METHODS]
        assert names == [row.name for row in found.rows], picture
