"""The transformer of the guide, run as a reader runs it: fewer steps."""

import re

import jax.random as jr
import pytest
from tests.docs.pages import DOCS
from tests.docs.site import module

from eqopt import groups


PAGE = (DOCS / "transformer.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    return module("examples/train_transformer.py")


@pytest.mark.slow
def test_the_page_shows_the_routes(script):
    model, opt = script.Transformer(jr.key(0)), script.make_optimizer(400)
    assert str(groups.routes(opt, model)) in PAGE


@pytest.mark.usefixtures("standard_promotion")  # the model multiplies by vectors
@pytest.mark.slow
def test_trains_and_goes_on_with_another_optimizer(script, tmp_path, capsys):
    script.main(["--steps", "52", "--output", str(tmp_path)])
    shown = capsys.readouterr().out
    logged = re.findall(
        r"^grad_norm .*, loss (\S+), skipped 0, step (\d+),", shown, re.M
    )
    assert [int(step) for _, step in logged] == [1, 51]
    first, later = (float(loss) for loss, _ in logged)
    assert later < 0.7 * first
    assert re.search(
        r"learning_rate/matrices 0\.0\d+, learning_rate/rest 0\.0\d", shown
    )
    assert re.search(r"ParamEMAState +initialised", shown)
    assert re.search(r"ScaleByMuonState +taken from .*\['matrices'\]\[0\]", shown)
    last, mean = re.findall(r"(\S+) nats per byte", shown)
    assert float(last) < float(mean) < first
