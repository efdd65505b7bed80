"""Schedules for any hyperparameter: when they are evaluated, and what is recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.schedules import AbstractStatefulSchedule, Linear

from ..test_temporary_memory import temporary


PARAMS = {"w": jnp.arange(4.0), "b": jnp.ones(2)}


def falling(count):
    return 0.9 - 0.1 * jnp.asarray(count, jnp.float32)


class HalvedWhenWorse(AbstractStatefulSchedule):
    init_value: float = 1.0

    def init(self):
        return jnp.asarray(self.init_value), jnp.asarray(jnp.inf)

    def update(self, state, *, value, **extra):
        rate, best = state
        return jnp.where(value > best, rate / 2, rate), jnp.minimum(value, best)

    def __call__(self, state, **extra):
        return state[0]


def test_the_values_in_use_are_in_the_state():
    opt = eqopt.Scheduled(eqopt.Adam(0.1, b2=falling))
    state = opt.init(PARAMS)
    assert list(state.hyperparams) == [".b2"]
    for i in range(3):
        assert state.hyperparams[".b2"] == falling(max(0, i - 1))
        _, state = opt.step(PARAMS, state, PARAMS)
    assert eqopt.tree.get(state, "hyperparams")[".b2"] == falling(2)


@pytest.mark.parametrize(
    ("inner", "places"),
    [
        (eqopt.Adam(Linear(0.1, 0.0, 3)), []),
        (eqopt.Partition({"a": eqopt.Scale(falling)}, "a"), ["[0].step_size"]),
        (eqopt.NamedChain(cap=eqopt.Clip(falling)), ["[0].max_delta"]),
        (eqopt.Masked(eqopt.Trace(falling), True), [".inner.decay"]),
        (eqopt.MultiSteps(eqopt.Lion(0.1, b1=falling), 2), [".inner.b1"]),
        (eqopt.Lookahead(eqopt.SGD(0.1), 2, falling), [".slow_step_size"]),
        (eqopt.Scheduled(eqopt.Trace(falling)), [".inner.decay"]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_finds_all_schedules_that_no_class_evaluates_itself(inner, places):
    opt = eqopt.Scheduled(inner)
    state = opt.init(PARAMS)
    found = [name.removeprefix(".transformations") for name in state.hyperparams]
    assert found == places
    _, new = opt.step(PARAMS, state, PARAMS)
    assert jax.tree.structure(new) == jax.tree.structure(state)


def test_a_class_that_evaluates_a_schedule_counts_its_own_steps():
    """The learning rate counts Adam's steps, and the decay counts all calls."""
    rate, decay = Linear(0.1, 0.0, 4), Linear(0.9, 0.5, 4)
    opt = eqopt.Scheduled(eqopt.MultiSteps(eqopt.SGD(rate, momentum=decay), 2))
    state, params = opt.init(PARAMS), PARAMS
    for _ in range(4):
        params, state = opt.step(PARAMS, state, params)
    assert state.hyperparams[".inner.momentum"] == decay(3)
    assert eqopt.tree.get(state, "learning_rate") == rate(1)


def test_stateful_schedules_see_extra_arguments():
    opt = eqopt.Scheduled(eqopt.SGD(HalvedWhenWorse(0.8)))
    params, state, rates = PARAMS, opt.init(PARAMS), []
    for value in (3.0, 2.0, 4.0, 4.0, 1.0):
        params, state = opt.step(PARAMS, state, params, value=jnp.asarray(value))
        rates.append(float(eqopt.tree.get(state, "learning_rate")))
    np.testing.assert_allclose(rates, [0.8, 0.8, 0.8, 0.4, 0.2])
    assert state.hyperparams[".learning_rate"] == rates[-1]


def test_a_schedule_without_scheduled_is_an_error():
    message = (
        r"AdamW: `b1` is a schedule, which AdamW does not evaluate. Wrap the whole"
    )
    with pytest.raises(TypeError, match=message):
        eqopt.AdamW(0.1, b1=falling).init(PARAMS)
    state = eqopt.AdamW(0.1).init(PARAMS)
    for call in ("step", "update"):
        with pytest.raises(TypeError, match=message):
            getattr(eqopt.AdamW(0.1, b1=falling), call)(PARAMS, state, PARAMS)


def test_schedules_take_no_temporary_memory():
    opt = eqopt.AdamW(1e-3, b1=Linear(0.8, 0.9, 100), eps=falling)
    assert temporary(eqopt.Scheduled(opt)) < 0.01


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.SGD(HalvedWhenWorse()),
        eqopt.AdamW(0.1, weight_decay=eqopt.AddDecayedWeights(HalvedWhenWorse())),
    ],
    ids=repr,
)
def test_a_stateful_schedule_without_scheduled_is_an_error(opt):
    with pytest.raises(TypeError, match=r"in `eqopt.Scheduled\(optimizer\)`, which"):
        opt.init(PARAMS)
    jax.eval_shape(eqopt.Scheduled(opt).init, PARAMS)


def test_a_schedule_with_the_state_of_a_number():
    """The error names what takes the state over, and this works."""
    old, new = (eqopt.PolyakSGD(x) for x in (0.5, falling))
    state = old.init(PARAMS)
    message = r"`max_.*_rate` is a schedule, .*eqopt.tree.migrate\(opt, state, model\)"
    with pytest.raises(TypeError, match=message):
        new.update(PARAMS, state, PARAMS, value=1.0)
    moved = eqopt.tree.migrate(new, state, PARAMS)
    jax.eval_shape(lambda s: new.update(PARAMS, s, PARAMS, value=1.0), moved)


def test_a_schedule_of_arrays_is_an_error():
    opt = eqopt.Scheduled(eqopt.Trace(lambda count: jnp.ones(3)))
    message = r"the schedule `.decay` must return .* an array of shape \(3,\)"
    with pytest.raises(ValueError, match=message):
        opt.init(PARAMS)


@pytest.mark.parametrize(
    ("old", "place"),
    [(0.9, "hyperparams"), (HalvedWhenWorse(0.9), "hyperparams_states")],
)
def test_the_state_of_other_schedules(old, place):
    opt = eqopt.Scheduled(eqopt.Trace(falling))
    state = eqopt.Scheduled(eqopt.Trace(old)).init(PARAMS)
    message = rf"Scheduled: `state\.{place}` must .* keys"
    with pytest.raises(TypeError, match=message):
        opt.step(PARAMS, state, PARAMS)
    with pytest.raises(TypeError, match=message):
        opt.eval_params(state, PARAMS)
