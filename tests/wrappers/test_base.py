"""Users can write wrappers with only public names, on the base of the built-in ones."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree

import eqopt

from ..test_temporary_memory import temporary


PARAMS = {"w": jnp.array([3.0, 4.0]), "frozen": jnp.ones(2)}
GRADS = {"w": jnp.array([0.3, -0.4]), "frozen": None}


class EverySecondState(eqx.Module):
    is_due: Array
    inner_state: PyTree


class EverySecond(eqopt.AbstractWrapper):
    """Skips every other step, starting with the second one."""

    inner: eqopt.AbstractTransformation

    def init(self, params):
        return EverySecondState(jnp.array(True), self.inner.init(params))

    def handle(self, call, state):
        result, inner_state = call.run_if(state.is_due, self.inner, state.inner_state)
        return result, EverySecondState(~state.is_due, inner_state)


class DoubledState(eqx.Module):
    inner_state: PyTree


class Doubled(eqopt.AbstractWrapper):
    """Gives the inner transformation other updates, and may pass them on unchanged."""

    inner: eqopt.AbstractTransformation
    passes: bool = False

    def init(self, params):
        return DoubledState(self.inner.init(params))

    def handle(self, call, state):
        call = call._replace(updates=eqopt.tree.scale(2.0, call.updates))
        result, inner_state = call.run_if(
            not self.passes, self.inner, state.inner_state, call.unchanged
        )
        return result, DoubledState(inner_state)


class Both(eqopt.AbstractComposite):
    """The mean of the results of two transformations."""

    one: eqopt.AbstractTransformation
    other: eqopt.AbstractTransformation

    def init(self, params):
        return self.one.init(params), self.other.init(params)

    def handle(self, call, state):
        one, new = call.run(self.one, state[0])
        other, other_new = call.run(self.other, state[1])
        return jax.tree.map(lambda x, y: (x + y) / 2, one, other), (new, other_new)


OPTIMIZERS = [
    EverySecond(eqopt.AdamW(0.1)),
    Doubled(eqopt.AdamW(0.1)),
    Doubled(eqopt.AdamW(0.1), passes=True),
    Both(eqopt.AdamW(0.1), eqopt.SGD(0.1)),
    eqopt.Chain(eqopt.ClipByGlobalNorm(0.1), EverySecond(eqopt.AdamW(0.1))),
]


@pytest.mark.parametrize("opt", OPTIMIZERS, ids=lambda opt: type(opt).__name__)
@pytest.mark.costly
def test_one_method_serves_both_calls(opt):
    step, update = jax.jit(opt.step), jax.jit(opt.update)
    stepped, updated = PARAMS, PARAMS
    state = other = opt.init(PARAMS)
    for _ in range(3):
        stepped, state = step(GRADS, state, stepped)
        updates, other = update(GRADS, other, updated)
        updated = eqopt.apply_updates(updated, updates)
    for x, y in zip(jax.tree.leaves(stepped), jax.tree.leaves(updated), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert jax.tree.structure(state) == jax.tree.structure(other)
    assert not jnp.array_equal(stepped["w"], PARAMS["w"])
    assert jnp.array_equal(stepped["frozen"], PARAMS["frozen"])


@pytest.mark.parametrize("method", ["update", "step"])
def test_a_skipped_call(method):
    opt = EverySecond(eqopt.Adam(0.1))
    _, state = opt.step(GRADS, opt.init(PARAMS), PARAMS)
    result, new = getattr(opt, method)(GRADS, state, PARAMS)
    assert new.inner_state is state.inner_state and new.is_due
    if method == "step":
        assert result is PARAMS
    else:
        assert not result["w"].any() and result["frozen"] is None


def test_unchanged_updates():
    opt = Doubled(eqopt.Adam(0.1), passes=True)
    state = opt.init(PARAMS)
    updates, _ = opt.update(GRADS, state, PARAMS)
    assert jnp.array_equal(updates["w"], 2 * GRADS["w"])
    params, _ = opt.step(GRADS, state, PARAMS)
    assert jnp.array_equal(params["w"], PARAMS["w"] + 2 * GRADS["w"])


def test_eval_params_asks_the_inner_transformation():
    opt = EverySecond(eqopt.ParamEMA(eqopt.SGD(1.0), 0.5))
    params, state = opt.step(GRADS, opt.init(PARAMS), PARAMS)
    later, state = opt.step(GRADS, state, params)
    later, state = opt.step(GRADS, state, later)
    average = opt.eval_params(state, later)["w"]
    np.testing.assert_allclose(average, (params["w"] + 2 * later["w"]) / 3, rtol=1e-6)


def test_as_little_memory_as_built_in_wrappers():
    assert temporary(EverySecond(eqopt.AdamW(0.1))) < 0.001


def test_a_class_that_was_defined_again():
    """As by a reload, or by running a cell of a notebook again."""

    def define():
        class Again(eqx.Module):
            inner_state: PyTree

        class Around(eqopt.AbstractWrapper):
            inner: eqopt.AbstractTransformation

            def init(self, params) -> Again:
                return Again(self.inner.init(params))

            def handle(self, call, state):
                result, inner_state = call.run(self.inner, state.inner_state)
                return result, Again(inner_state)

        return Around(eqopt.Trace(0.5))

    old, new, params = define(), define(), jnp.ones(2)
    _, state = old.step(params, old.init(params), params)
    with pytest.raises(TypeError, match="another class of this name"):
        new.step(params, state, params)
    state = eqopt.tree.migrate(new, state, params)
    assert new.update(params, state)[0].tolist() == [1.5, 1.5]


SGD = eqopt.SGD(0.1)


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.Cautious(eqopt.AdamW(0.1)),
        eqopt.DiLoCo(SGD, None),
        eqopt.GPA(SGD),
        eqopt.Lookahead(SGD, 2, 0.5),
        eqopt.Mechanic(SGD),
        eqopt.OuterNesterov(SGD),
        eqopt.ParamEMA(SGD),
        eqopt.Project(SGD, eqopt.projections.non_negative),
        eqopt.SAM(SGD),
        eqopt.ScheduleFree(SGD, 0.1),
        eqopt.SODA(SGD),
        eqopt.SWA(SGD, 1),
    ],
    ids=lambda opt: type(opt).__name__,
)
def test_parameters_are_needed(opt):
    name = type(opt).__name__
    with pytest.raises(ValueError, match=f"{name}.*: the parameters are needed"):
        opt.update(PARAMS, opt.init(PARAMS))
