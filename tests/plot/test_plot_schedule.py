"""Curves of schedules: what is drawn, and what is said of what cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

import eqopt
from eqopt.schedules import Constant, CosineDecay, Cyclic, Linear, Step


@pytest.fixture
def axes():
    return Figure().subplots()


def texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


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


class Learned(eqopt.schedules.AbstractSchedule):
    weights: jax.Array

    def __call__(self, count):
        return self.weights.sum()


def test_a_schedule_with_matrices(axes):
    eqopt.plot.schedule(Learned(jnp.ones((2, 2))), steps=3, axes=axes)
    [line] = axes.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), 4)


def test_long_schedules(axes):
    eqopt.plot.schedule(Linear(1.0, 0.0, 2**31 - 2), steps=2**31 - 1, axes=axes)
    [line] = axes.get_lines()
    counts = line.get_xdata()
    assert (counts[0], counts[-1]) == (0, 2**31 - 2)
    assert 1000 < len(counts) <= 2000
    assert line.get_ydata()[-1] == 0


def test_counts_stop_at_the_largest(axes):
    """As in a step, whose count is an int32."""
    eqopt.plot.schedule(Linear(1.0, 0.0, 2**32), steps=2**32, axes=axes)
    [line] = axes.get_lines()
    np.testing.assert_allclose(line.get_ydata()[[0, -1]], [1.0, 0.5], rtol=1e-6)


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


def test_the_current_axes():
    try:
        axes = eqopt.plot.schedule(Constant(1.0), steps=3)
        assert eqopt.plot.schedule(Step(1.0, 2), steps=3) is axes is pyplot.gca()
        assert texts(axes) == ["Constant", "Step"]
    finally:
        pyplot.close("all")


def test_bad_input():
    with pytest.raises(TypeError, match=r"`schedules` must be .*, but is 3 of type"):
        eqopt.plot.schedule(Constant(1.0), 3)  # type: ignore
    with pytest.raises(ValueError):
        eqopt.plot.schedule(Constant(1.0), steps=3, labels=["a", "b"])
