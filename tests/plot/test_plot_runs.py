"""Training runs and states: what is drawn, and what is said of what cannot be."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import eqopt


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


@pytest.mark.parametrize("target", [2, np.float32(2), jnp.array(2.0)])
def test_a_target_is_any_number(axes, target):
    eqopt.plot.training_curves({"a": [3.0, 1.0]}, target=target, axes=axes)
    eqopt.plot.learning_rates([0.1, 1.0], {"a": [3.0, 1.0]}, target=target, axes=axes)
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert [set(map(float, line.get_ydata())) for line in dashed] == [{2.0}, {2.0}]


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


def test_memory_without_parameters(axes):
    state = eqopt.Adam(0.1).init({"w": np.ones(3, np.float32)})
    eqopt.plot.state_memory({"Adam": eqopt.tree.nbytes(state)}, axes=axes)
    assert axes.get_xlabel() == "bytes"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: eqopt.plot.training_curves({"a": 1.0}),
            r"losses of 'a' must have the shape \(points,\) or \(seeds, points\), "
            r"but have \(\)",
        ),
        (
            lambda: eqopt.plot.training_curves({"a": [1.0, 2.0]}, steps=[1, 2, 3]),
            r"\(3,\) or \(seeds, 3\), but have \(2,\)",
        ),
        (
            lambda: eqopt.plot.learning_rates([0.1], {"a": [1.0, 2.0]}),
            r"\(1,\) or \(seeds, 1\), but have \(2,\)",
        ),
        (
            lambda: eqopt.plot.learning_rates([0.0, 1.0], {"a": [1.0, 2.0]}),
            "`rates` must be a vector of positive numbers",
        ),
        (
            lambda: eqopt.plot.learning_rates({"a": [1.0]}, [0.1]),  # type: ignore
            r"learning_rates: `rates` must be .*, but is {'a': \[1.0\]} of type dict",
        ),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize("name", ["training_curves", "state_memory"])
def test_without_matplotlib(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib.* `pip install matplotlib`"):
        getattr(eqopt.plot, name)({})
