"""Where the values come from that an equation shares among all leaves."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Inexact

import eqopt
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


@pytest.mark.parametrize("is_masked", [True, {"w": True, "b": False}])
def test_within_masks(is_masked):
    assert pressed(eqopt.Masked(Press(), is_masked)) == 2


def test_a_schedule_is_not_taken_for_a_number():
    opt = Press(Linear(1.0, 0.0, 4))
    with pytest.raises(TypeError, match="`factor` is a schedule, which Press does not"):
        opt.init(GRADS)
    with pytest.raises(TypeError, match="`factor` is a function, where the equation"):
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
