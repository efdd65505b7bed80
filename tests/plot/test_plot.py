"""What is drawn of training runs, states and schedules."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import eqopt
from eqopt.schedules import Constant, CosineDecay, Cyclic, Linear, Step


@pytest.fixture
def axes():
    return Figure().subplots()


def texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_curves(axes):
    one, several = [3.0, 2.0, 1.0], np.array([[4.0, 3.0, 2.0], [2.0, 1.0, 1.0]])
    losses = {"one": one, "several": several}
    found = eqopt.plot.training_curves(
        losses, steps=range(10, 40, 10), target=1.5, axes=axes
    )
    assert found is axes
    first, second, dashed = axes.get_lines()
    np.testing.assert_array_equal(first.get_xdata(), [10, 20, 30])
    np.testing.assert_array_equal(first.get_ydata(), one)
    np.testing.assert_array_equal(second.get_ydata(), [3.0, 2.0, 1.5])
    assert set(dashed.get_ydata()) == {1.5}
    [band] = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 4.0)
    assert texts(axes) == ["one", "several"]
    assert axes.get_yscale() == "log"


def test_curves_that_leave_out_what_is_not_finite(axes):
    losses = {"a": [-1.0, np.nan, 2.0]}
    eqopt.plot.training_curves(losses, axes=axes)
    [line] = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(line.get_ydata(), [-1.0, np.nan, 2.0])
    assert axes.get_yscale() == "linear"


def test_learning_rates(axes):
    rates = [0.1, 1.0, 10.0]
    losses = {"a": [3.0, 1.0, np.inf], "b": [[2.0, 2.0, 1.0], [4.0, 2.0, 1.0]]}
    eqopt.plot.learning_rates(rates, losses, axes=axes)
    a, failed_a, b, failed_b = axes.get_lines()
    np.testing.assert_array_equal(a.get_ydata(), [3.0, 1.0, np.nan])
    np.testing.assert_array_equal(failed_a.get_xdata(), [10.0])
    np.testing.assert_array_equal(b.get_ydata(), [3.0, 2.0, 1.0])
    assert len(failed_b.get_xdata()) == 0
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert texts(axes) == ["a", "b"]


def counted(opt, groups=None):
    model = eqx.nn.Linear(4, 3, key=jax.random.key(0))
    state = eqx.filter_eval_shape(opt.init, model)
    return eqopt.tree.nbytes(state, model, groups)


def test_memory_by_slot(axes):
    counts = {"Adam": counted(eqopt.Adam(0.1)), "Lion": counted(eqopt.Lion(0.1))}
    eqopt.plot.state_memory(counts, axes=axes)
    ends = dict.fromkeys(counts, 0.0)
    for bars in axes.containers:
        for name, bar in zip(counts, bars, strict=True):
            ends[name] = max(ends[name], bar.get_x() + bar.get_width())
    for name, count in counts.items():
        assert ends[name] == pytest.approx(count.total / 15)
    assert "ScaleByAdamState.mu" in texts(axes)
    assert axes.get_xlabel() == "bytes per parameter"


def test_memory_by_group(axes):
    labels = lambda model: eqx.tree_at(
        lambda m: (m.weight, m.bias), model, ("matrices", "vectors")
    )
    eqopt.plot.state_memory({"Adam": counted(eqopt.Adam(0.1), labels)}, axes=axes)
    assert texts(axes) == ["(none)", "matrices", "vectors"]
    matrices = axes.containers[1]
    assert matrices[0].get_width() == pytest.approx(2 * 4 * 12 / 15)


def test_draws_every_value(axes):
    fall, flat = CosineDecay(1.0, 50), lambda count: 0.5
    assert eqopt.plot.schedule(fall, flat, steps=60, axes=axes) is axes
    first, second = axes.get_lines()
    np.testing.assert_array_equal(first.get_xdata(), np.arange(60))
    np.testing.assert_allclose(
        first.get_ydata(), [float(fall(t)) for t in range(60)], atol=1e-6
    )
    np.testing.assert_array_equal(second.get_ydata(), 0.5)
    assert texts(axes) == ["CosineDecay", "<lambda>"]
    assert axes.get_xlabel() == "steps"


def test_long_schedules(axes):
    eqopt.plot.schedule(Linear(1.0, 0.0, 2**31 - 2), steps=2**31 - 1, axes=axes)
    [line] = axes.get_lines()
    counts = line.get_xdata()
    assert (counts[0], counts[-1]) == (0, 2**31 - 2)
    assert 1000 < len(counts) <= 2000
    assert line.get_ydata()[-1] == 0


def test_labels(axes):
    namesakes = Step(1.0, 5), Step(1.0, jnp.asarray(9)), Constant(0.3)
    eqopt.plot.schedule(*namesakes, steps=9, axes=axes)
    assert texts(axes) == ["Step(step_size=5)", "Step(step_size=9)", "Constant"]
    same = Cyclic(0.0, 1.0, 3), Cyclic(0.0, 1.0, 3)
    axes = eqopt.plot.schedule(*same, steps=9, axes=Figure().subplots())
    assert texts(axes) == ["Cyclic", "Cyclic"]
    axes.clear()
    eqopt.plot.schedule(*same, steps=9, labels=["a", "b"], axes=axes)
    assert texts(axes) == ["a", "b"]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: eqopt.plot.training_curves({"a": [1.0, 2.0]}, steps=[1, 2, 3]),
            "must have same first dimension",
        ),
        (lambda: eqopt.plot.schedule(Constant(1.0), steps=3, labels=[]), "shorter"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="matplotlib"):
        eqopt.plot.training_curves({})
