"""Schedules in users' classes: each is evaluated, or `init` says that it is not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import eqopt
from eqopt.schedules import Linear

from . import user_classes as user


PARAMS = {"w": jnp.ones(3)}
LINE = Linear(1.0, 0.0, 4)


def falling(count):
    return 1 - jnp.asarray(count, jnp.float32) / 4


class Here(eqopt.AbstractLeafwise):
    """Its annotations are not strings, and a function may define it."""

    decay: float | Array

    def init(self, params):
        return None

    def leafwise(self, state, params=None, **extra):
        return eqopt.Leafwise(user.damp, state, {"decay": self.decay})


class Mine(eqopt.schedules.AbstractSchedule):
    start: float

    def __call__(self, count):
        return self.start * falling(count)


NUMBERS = [user.Plain, user.Documented, user.Alias, Here]
OTHERS = [user.Unresolvable, user.Unannotated]
CASES = [(cls, x) for cls in NUMBERS for x in (LINE, Mine(1.0), falling)]
CASES += [(cls, x) for cls in OTHERS for x in (LINE, Mine(1.0))]


@pytest.mark.parametrize(("cls", "schedule"), CASES)
def test_schedules_in_fields(cls, schedule):
    opt = eqopt.Chain(eqopt.Identity(), cls(schedule))
    with pytest.raises(
        TypeError, match=rf"{cls.__name__}: `decay` is a sch.*Scheduled"
    ):
        opt.init(PARAMS)
    opt = eqopt.Scheduled(opt)
    state = opt.init(PARAMS)
    place = ".transformations[1].decay"
    assert list(state.hyperparams) == [place]
    for i in range(2):
        updates, state = opt.update(PARAMS, state, PARAMS)
        np.testing.assert_allclose(updates["w"], falling(i))
        assert state.hyperparams[place] == falling(i)


def test_functions_that_a_class_calls_itself_are_left_alone():
    for decay in (LINE, falling):
        opt = eqopt.Scheduled(user.Evaluates(decay))
        state = opt.init(PARAMS)
        assert not state.hyperparams
        updates, _ = opt.update(PARAMS, state, PARAMS)
        np.testing.assert_allclose(updates["w"], 1)


def test_functions_that_are_not_schedules():
    model = eqx.nn.Linear(2, 2, key=jax.random.key(0))  # which is callable
    opt = user.WithFunctions(
        0.5,
        mask=lambda params: params,
        distance=jnp.subtract,
        anything=jnp.tanh,
        reference=model,
        dtype=float,
    )
    updates, _ = opt.update(PARAMS, opt.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["w"], 0.5)
    assert not eqopt.Scheduled(opt).init(PARAMS).hyperparams


def test_recipes():
    """The parts of an optimizer determine which of its schedules they evaluate."""
    opt = user.Recipe(LINE)
    assert eqopt.tree.get(opt.init(PARAMS), "learning_rate") == 1.0
    scheduled = eqopt.Scheduled(user.Recipe(LINE, decay=falling))
    assert list(scheduled.init(PARAMS).hyperparams) == [".decay"]
    with pytest.raises(TypeError, match=r"`decay` is a schedule.*Scheduled"):
        user.Recipe(LINE, decay=falling).init(PARAMS)
    with pytest.raises(TypeError, match=r"`step_size` is a sch.*Scheduled"):
        user.Derived(LINE).init(PARAMS)
    opt = eqopt.Scheduled(user.Derived(LINE))
    state = opt.init(PARAMS)
    for i in range(2):
        updates, state = opt.update(PARAMS, state, PARAMS)
        np.testing.assert_allclose(updates["w"], 1 - falling(i))
