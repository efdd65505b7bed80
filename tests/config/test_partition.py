"""Groups of parameters by a table."""

import json

import equinox as eqx
import jax
import jax.random as jr
import pytest

import eqopt
from eqopt import config, groups
from eqopt.config import _data


MODEL = eqx.nn.MLP(2, 2, 4, 2, key=jr.key(0))
ADAMW = {"name": "AdamW", "learning_rate": 1e-3, "b2": 0.95, "weight_decay": 0.2}
LINEAR = {"name": "schedules.Linear", "init_value": 1.0, "end_value": 0.0}


def table(*rows, **keys):
    return config.load({"name": "Partition", "groups": [*rows], **keys})


def test_a_row_changes_a_shared_optimizer():
    decay = eqopt.schedules.Linear(1.0, 0.0, 10)
    muon = {"name": "Muon", "learning_rate": {**LINEAR, "transition_steps": 10}}
    opt = table(
        {
            "label": "biases",
            "paths": ["**/bias"],
            "optimizer": "adamw",
            "learning_rate_factor": 0.5,
            "weight_decay_factor": 0,
            "b2": 0.99,
        },
        {"paths": "layers/0/*", "optimizer": "adamw"},
        {"paths": "**", "optimizer": "muon", "learning_rate_factor": 0.5},
        optimizers={"adamw": ADAMW, "muon": muon},
    )
    assert opt["biases"] == eqopt.AdamW(5e-4, b2=0.99, weight_decay=0.0)
    assert opt["layers/0/*"] == eqopt.AdamW(1e-3, b2=0.95, weight_decay=0.2)
    assert eqx.tree_equal(opt["**"], eqopt.Muon(0.5 * decay)) is True
    labels = {
        "biases": groups.glob("**/bias"),
        "layers/0/*": groups.glob("layers/0/*"),
        "**": groups.glob("**"),
    }
    assert opt.labels == groups.label(labels)
    found = opt.labels(MODEL)
    assert (found.layers[0].bias, found.layers[0].weight) == ("biases", "layers/0/*")
    assert found.layers[1].weight == "**"


def test_the_table_is_written_with_whole_optimizers():
    row = {"paths": "**/bias", "optimizer": ADAMW, "weight_decay_factor": 0}
    rest = {"paths": {"name": "groups.everything"}, "optimizer": ADAMW, "label": 1}
    opt = table(row, rest)
    data = config.dump(opt)
    assert data.keys() == {"version", "name", "groups"}
    first, second = data["groups"]
    assert first.keys() == {"label", "paths", "optimizer"}
    assert first["paths"] == first["label"] == "**/bias"
    assert first["optimizer"] == _data._dumped(opt["**/bias"])
    assert second["paths"] == {"name": "groups.everything"} and second["label"] == 1
    copy = config.load(json.loads(json.dumps(data, sort_keys=True)))
    assert eqx.tree_equal(copy, opt, typematch=True) is True


def of_rank(params):
    return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "other", params)


def test_other_labels(monkeypatch):
    """Functions by name, and rules in another order than the transformations."""
    monkeypatch.setattr(_data, "_REGISTERED", {})
    config.register(of_rank)
    parts = {"other": eqopt.SGD(0.1), "matrix": eqopt.Muon(0.02)}
    rules = {"matrix": groups.glob("**/weight"), "other": groups.everything}
    for labels in (of_rank, groups.label(rules)):
        opt = eqopt.Partition(parts, labels)
        data = config.dump(opt)
        assert data.keys() == {"version", "name", "names", "transformations", "labels"}
        copy = config.load(json.loads(json.dumps(data)))
        assert eqx.tree_equal(copy, opt, typematch=True) is True


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["**/bias"], "every parameter needs one of the labels"),
        (["**/bais", "**"], r"`glob\('\*\*/bais'\)` matches no parameter"),
        (["**", "**/bias"], r"the rule `\*\*/bias` comes too late"),
    ],
)
def test_rows_that_do_not_fit_the_model(rows, message):
    opt = table(*({"paths": paths, "optimizer": ADAMW} for paths in rows))
    with pytest.raises(ValueError, match=message):
        opt.init(MODEL)
