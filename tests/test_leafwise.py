"""Where the values come from that an equation shares among all leaves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Inexact

import eqopt
from eqopt._core.pipeline import Pipeline
from eqopt.schedules import Linear


GRADS = {"w": jnp.array([3.0, 4.0]), "b": None}


@eqopt.equation
def press(
    g: Inexact[Array, "*leaf"],
    *,
    factor: Float[Array, ""],
    twice: bool,
    way: str,
) -> Inexact[Array, "*leaf"]:
    g = g if way == "up" else -g
    return factor * factor * g if twice else factor * g


class Press(eqopt.AbstractLeafwise):
    factor: Any = 2.0
    twice: bool = False
    way: str = eqx.field(static=True, default="up")
    given: Any = None
    measured: Any = None

    def init(self, params):
        return None

    def leafwise(self, state, params=None, **extra):
        measure = self.measured and (lambda updates: self.measured)
        return eqopt.Leafwise(press, shared=self.given or {}, measure=measure)


def pressed(opt):
    updates, _ = opt.update(GRADS, opt.init(GRADS))
    return (updates["w"] / GRADS["w"]).tolist()[0]


def test_fields_are_taken():
    assert pressed(Press()) == 2
    assert pressed(Press(jnp.asarray(2.0), twice=True, way="down")) == -4
    assert pressed(Press(3)) == 3


def test_what_is_given_comes_first():
    assert pressed(Press(given={"factor": 5.0})) == 5
    assert pressed(Press(measured={"factor": 7.0})) == 7
    assert pressed(Press(given={"twice": True}, measured={"factor": 3.0})) == 9


class LargestState(eqx.Module):
    largest: Float[Array, ""]


class ScaleByLargest(eqopt.AbstractLeafwise):
    """Divides by the largest norm so far, then multiplies leaves in a mask by it."""

    mask: Any = True

    def init(self, params):
        return LargestState(jnp.zeros(()))

    def leafwise(self, state, params=None, **extra):
        def measure(updates):
            largest = jnp.maximum(state.largest, eqopt.tree.norm(updates))
            return {"factor": 1 / largest, "largest": largest}, LargestState(largest)

        static = {"twice": False, "way": "up"}
        then = eqopt.Leafwise(stretch, mask=self.mask)
        return eqopt.Leafwise(press, state, static, measure=measure, then=then)


@eqopt.equation
def stretch(g, *, largest):
    return largest * g


def test_a_measure_may_return_the_state():
    opt, state = ScaleByLargest(mask=False), LargestState(jnp.asarray(2.0))
    updates, state = opt.update(GRADS, state)
    assert updates["w"].tolist() == pytest.approx([0.6, 0.8])
    assert state.largest == 5
    updates, state = opt.update({"w": jnp.ones(2), "b": None}, state)
    assert updates["w"].tolist() == pytest.approx([0.2, 0.2])
    assert state.largest == 5


def test_what_comes_then_shares_values_but_no_mask():
    params = {"w": jnp.array([3.0, 4.0]), "v": jnp.zeros(2)}
    opt = ScaleByLargest(mask={"w": True, "v": False})
    updates, _ = opt.update({**params, "v": jnp.array([0.0, 12.0])}, opt.init(params))
    assert updates["w"].tolist() == pytest.approx([3, 4])
    assert updates["v"].tolist() == pytest.approx([0, 12 / 13])


@pytest.mark.parametrize("is_masked", [True, {"w": True, "b": False}])
def test_a_mask_around_an_equation_and_another_one(is_masked):
    opt = eqopt.Masked(ScaleByLargest(), is_masked)
    updates, state = opt.update(GRADS, opt.init(GRADS), GRADS)
    assert updates["w"].tolist() == pytest.approx([3, 4])
    assert state.inner_state.largest == 5


@pytest.mark.parametrize("is_masked", [True, {"w": True, "b": False}])
def test_within_masks(is_masked):
    assert pressed(eqopt.Masked(Press(), is_masked)) == 2


def test_a_schedule_is_not_taken_for_a_number():
    opt = Press(Linear(1.0, 0.0, 4))
    with pytest.raises(TypeError, match="`factor` is a schedule, which Press does not"):
        opt.init(GRADS)
    with pytest.raises(TypeError, match="`factor` is a function, but the equation"):
        opt.update(GRADS, None)
    assert pressed(eqopt.Scheduled(opt)) == 1


def test_neither_given_nor_a_field():
    class Empty(eqopt.AbstractStateless):
        def leafwise(self, state, params=None, **extra):
            return eqopt.Leafwise(press)

    with pytest.raises(TypeError, match="Empty: the equation `press` needs `factor`"):
        Empty().update(GRADS, None)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="Press: `factor` has shape"):
        Press(jnp.ones(2)).update(GRADS, None)


@eqopt.equation
def pull(g, m, is_new, p, *, rate):
    return -rate * (g + m), m + g - p, jnp.zeros(())


class PullState(eqx.Module):
    m: Any
    is_new: Any


class Pull(eqopt.AbstractLeafwise):
    """`is_new` becomes a constant, and `order` says when slots are stored."""

    order: Any = ()
    reads: Any = ()

    def init(self, params):
        ones = eqopt.tree.ones_like(params)
        return PullState(ones, jax.tree.map(lambda _: jnp.ones(()), ones))

    def leafwise(self, state, params=None, **extra):
        order = {name: (slot,) for name, slot in self.order}
        shared = {"rate": 0.1}
        return eqopt.Leafwise(pull, state, shared, dict(self.reads), **order)


@pytest.mark.parametrize("order", ["first", "last"])
def test_slots_that_become_constants(order):
    plain, ordered = Pull(), Pull(((order, "m"),))
    params = {"w": jnp.array([1.0, 2.0]), "b": None}
    expected = plain.step(GRADS, plain.init(params), params)
    found = jax.jit(ordered.step)(GRADS, ordered.init(params), params)
    assert eqx.tree_equal(found, expected, rtol=1e-6)


def test_an_order_for_what_is_no_slot():
    message = r"Pull: `first` and `last` .* has `m`, `is_new`, but one is 'n'"
    with pytest.raises(ValueError, match=message):
        opt = Pull((("first", "n"),))
        opt.step(GRADS, opt.init(GRADS), GRADS)


def test_a_tree_to_read_comes_before_the_parameters_of_a_wrapper():
    ones = {"w": jnp.ones(2), "b": None}
    params = {"w": jnp.array([5.0, 7.0]), "b": None}
    inner = Pull(reads=(("p", ones),))
    _, alone = inner.step(GRADS, inner.init(params), params)
    opt = eqopt.GPA(inner, sees="z")
    _, wrapped = opt.step(GRADS, opt.init(params), params)
    assert eqx.tree_equal(wrapped.inner_state, alone)


def test_parameters_are_shown_again_after_an_error():
    pipeline = Pipeline(GRADS, GRADS, {})
    with pytest.raises(ValueError), pipeline.showing(None):
        raise ValueError
    assert pipeline.params is GRADS


class Pressed(eqopt.AbstractStateless):
    """`press`, and then `press` again."""

    factor: Any = 5.0
    twice: bool = False
    way: str = eqx.field(static=True, default="up")
    how: Any = eqx.field(static=True, default_factory=dict)
    then: Any = eqx.field(static=True, default_factory=dict)

    def leafwise(self, state, params=None, **extra):
        then = eqopt.Leafwise(press, **self.then)
        return eqopt.Leafwise(press, **self.how, then=then)


@pytest.mark.parametrize(
    ("how", "then", "expected"),
    [
        ({}, {}, 25.0),
        ({"shared": {"factor": 2.0}}, {}, 4.0),
        ({"measure": lambda _: {"factor": 2.0}}, {}, 4.0),
        ({"measure": lambda _: ({"factor": 2.0}, None)}, {}, 4.0),
        ({"shared": {"factor": 2.0}}, {"shared": {"factor": 3.0}}, 6.0),
    ],
)
def test_what_is_shared_with_the_next_equation_comes_before_fields(how, then, expected):
    assert pressed(Pressed(how=how, then=then)) == expected * pressed(Press(1.0))


def test_the_next_equation_has_no_state():
    with pytest.raises(
        TypeError, match="Pressed: `then` must have no state, but has one"
    ):
        Pressed(then={"state": (1,)}).update(GRADS, None)


@pytest.mark.parametrize("found", [3.0, (None, {"factor": 2.0}), ({}, None, None)])
def test_what_a_measure_returns(found):
    message = (
        "Pressed: `measure` must return a dict of shared values, or a pair of such"
    )
    with pytest.raises(TypeError, match=message):
        Pressed(how={"measure": lambda _: found}).update(GRADS, None)
