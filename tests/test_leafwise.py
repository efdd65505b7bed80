"""`leafwise`, and where the values come from that an equation shares among all leaves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Inexact

import eqopt
from eqopt.schedules import Linear


GRADS = {"w": jnp.array([3.0, 4.0]), "b": None}


@eqopt.equation
def press(
    g: Inexact[Array, "*leaf"], *, factor: Float[Array, ""], twice: bool, way: str
) -> Inexact[Array, "*leaf"]:
    g = g if way == "up" else -g
    return factor * factor * g if twice else factor * g


class Press(eqopt.AbstractLeafwise):
    factor: Any = 2.0
    twice: bool = False
    way: str = eqx.field(static=True, default="up")
    given: Any = None

    def init(self, params):
        return None

    def leafwise(self, state, params=None, **extra):
        return eqopt.Leafwise(press, shared=self.given or {})


def pressed(opt):
    updates, _ = opt.update(GRADS, opt.init(GRADS))
    return (updates["w"] / GRADS["w"]).tolist()[0]


def test_fields_are_taken():
    assert pressed(Press()) == 2
    assert pressed(Press(jnp.asarray(2.0), twice=True, way="down")) == -4
    assert pressed(Press(3)) == 3


def test_what_is_given_comes_first():
    assert pressed(Press(given={"factor": 5.0})) == 5
    assert pressed(Press(given={"twice": True})) == 4


@pytest.mark.parametrize("is_masked", [True, {"w": True, "b": False}])
def test_within_masks(is_masked):
    assert pressed(eqopt.Masked(Press(), is_masked)) == 2


def test_a_schedule_is_not_taken_for_a_number():
    opt = Press(Linear(1.0, 0.0, 4))
    with pytest.raises(TypeError, match="`factor` is a schedule, which Press does not"):
        opt.init(GRADS)
    with pytest.raises(TypeError, match=r"Press: at .*`factor` must be .* type Linear"):
        opt.update(GRADS, None)
    assert pressed(eqopt.Scheduled(opt)) == 1


def test_neither_given_nor_a_field():
    class Empty(eqopt.AbstractStateless):
        def leafwise(self, state, params=None, **extra):
            return eqopt.Leafwise(press)

    with pytest.raises(TypeError, match="Empty: the equation `press` needs `factor`"):
        Empty().update(GRADS, None)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"Press: `factor` is .* takes numbers"):
        Press(jnp.ones(2)).update(GRADS, None)


@eqopt.equation
def pull(g, m, is_new, p, *, rate):
    return -rate * (g + m), m + g - p, jnp.zeros(())


class PullState(eqx.Module):
    m: Any
    is_new: Any


class Pull(eqopt.AbstractLeafwise):
    reads: Any = ()

    def init(self, params):
        ones = eqopt.tree.ones_like(params)
        return PullState(ones, jax.tree.map(lambda _: jnp.ones(()), ones))

    def leafwise(self, state, params=None, **extra):
        return eqopt.Leafwise(pull, state, {"rate": 0.1}, dict(self.reads))


def test_a_tree_to_read_comes_before_the_parameters_of_a_wrapper():
    ones = {"w": jnp.ones(2), "b": None}
    params = {"w": jnp.array([5.0, 7.0]), "b": None}
    inner = Pull(reads=(("p", ones),))
    _, alone = inner.step(GRADS, inner.init(params), params)
    opt = eqopt.GPA(inner, sees="z")
    _, wrapped = opt.step(GRADS, opt.init(params), params)
    assert eqx.tree_equal(wrapped.inner_state, alone)


@eqopt.equation(elementwise=True)
def heavy_ball(
    g: Inexact[Array, "*leaf"],
    trace: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    *,
    decay: Float[Array, ""],
):
    trace = decay * trace + g
    return trace + p, trace


def test_the_function_maps_an_equation_over_trees():
    updates = {"w": jnp.array([3.0, 4.0], jnp.bfloat16), "b": None, "v": jnp.ones(2)}
    trace = {"w": jnp.array([1.0, 2.0]), "b": jnp.ones(3), "v": jnp.zeros(2)}
    params = {"w": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(3), "v": jnp.ones(2)}
    new, moved = eqopt.leafwise(
        heavy_ball,
        updates,
        trace,
        reads={"p": params},
        mask={"w": True, "b": True, "v": False},
        decay=0.5,
    )
    assert new["w"].dtype == jnp.bfloat16 and moved["w"].dtype == jnp.float32
    assert (new["w"].tolist(), moved["w"].tolist()) == ([4.5, 6], [3.5, 5])
    assert new["b"] is None and moved["b"] is trace["b"]
    assert new["v"] is updates["v"] and moved["v"] is trace["v"]


def test_without_slots_it_returns_the_updates():
    updates = eqopt.leafwise(press, GRADS, factor=2.0, twice=False, way="up")
    assert updates["w"].tolist() == [6, 8] and updates["b"] is None


def test_a_module_is_passed_as_it_is():
    class Power(eqx.Module):
        exponent: Float[Array, ""]

        def __call__(self, x):
            return x**self.exponent

    @eqopt.equation
    def raised(g, *, power: Power):
        return power(g)

    updates = eqopt.leafwise(raised, GRADS, power=Power(jnp.asarray(2.0)))
    assert updates["w"].tolist() == [9, 16]


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ((), "`heavy_ball` takes the slots `trace`, but 0 trees"),
        (({"w": jnp.ones(3), "b": None},), "at `\\['w'\\]`: .*`trace` is float32"),
        (({"w": jnp.ones(2)},), "`trace` has another tree structure"),
        (
            ({"w": None, "b": None},),
            "value at `\\['w'\\]`, which has no optimizer state",
        ),
    ],
)
def test_trees_that_do_not_fit(slots, message):
    with pytest.raises((TypeError, ValueError), match=message):
        eqopt.leafwise(heavy_ball, GRADS, *slots, reads={"p": GRADS}, decay=0.5)
