"""What `python -m benchmarks.storage` trains and counts."""

import re

import pytest
from benchmarks.storage.runs import OPTIMIZERS, cost, train
from benchmarks.storage.tasks import TASKS, language
from benchmarks.storage.ways import FULL, WAYS, Way

from ..docs.pages import DOCS


IN_8_BITS, IN_4_BITS = Way("float32", "8 bits"), Way("float32", "4 bits")


def test_the_page_has_all_ways():
    _, _, text = (DOCS / "benchmarks.md").read_text().partition("<!-- storage -->")
    found = re.findall(r"^\| (\w.*?) \| (.+?) \| [\d.]+ \|", text, re.MULTILINE)
    assert found == [tuple(way) for way in WAYS]


def test_the_page_has_all_that_was_trained():
    _, _, text = (DOCS / "half_precision.md").read_text().partition("<!-- trained -->")
    found = re.findall(r"^\| (\w+), (.+?) \| [\d.]+ \(", text, re.MULTILINE)
    names = [task().name for task in TASKS.values()]
    assert found == [(name, task) for task in names for name in OPTIMIZERS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "params", "state"),
    [
        (FULL, 4, 8),
        (Way("bfloat16", "8 bits"), 2, 2 + 8 / 256),
        (Way("bfloat16, split", "8 bits"), 2, 4 + 8 / 256),
        (Way("bfloat16, Kahan", "4 bits"), 2, 3 + 8 / 128),
        (Way("bfloat16, at random", "float8"), 2, 2 + 8 / 256),
    ],
    ids=str,
)
def test_bytes_are_counted(way, params, state, monkeypatch):
    monkeypatch.setattr("benchmarks.storage.runs.LEAVES", 2)  # to compile less
    found = cost(way, rounds=1, size=2**17)
    assert found.params == params
    # Besides, there are a count and keys.
    assert state <= found.state < state + 0.001


# And whether 4 bits are good enough, as the page says.
TRAINED = {
    ("language", "AdamW"): True,
    ("language", "Muon"): False,
    ("digits", "AdamW"): False,
}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "name"), TRAINED)
def test_few_bits_train_as_float32_does(task: str, name: str):
    """8 bits: no worse than the worst of three seeds, by more than these differ.

    There are fewer steps than on the page, of fewer rows of text. The learning rate
    falls to zero in them.
    """
    found = TASKS[task]()._replace(steps=100)
    if task == "language":
        found = found._replace(
            batch=lambda seed, step: language().batch(seed, step)[::2],
            held_out=found.held_out[::8],
        )
    full = [train(found, name, FULL, seed) for seed in range(3)]
    low, _, high = sorted(run.final for run in full)
    assert high < 0.6 * full[0].losses[0]
    assert train(found, name, IN_8_BITS).final <= high + (high - low)
    if TRAINED[task, name]:
        assert train(found, name, IN_4_BITS).final <= 1.03 * full[0].final
