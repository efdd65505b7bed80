"""Calls without gradients, and methods that return something wrong, are errors."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
import pytest

import eqopt
from eqopt.interop.optax import to_optax


MODEL = eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0))
ARRAYS = eqx.filter(MODEL, eqx.is_inexact_array)
NOTHING = jax.tree.map(lambda _: None, ARRAYS)
ADAM = eqopt.Adam(1e-3)
is_matrix = lambda params: jax.tree.map(lambda p: p.ndim == 2, params)
by_shape = lambda params: jax.tree.map(lambda p: "ab"[p.ndim == 2], params)


class Quiet(eqopt.AbstractWrapper):
    """Passes no updates on to its inner transformation."""

    inner: eqopt.AbstractTransformation

    def init(self, params):
        return QuietState(self.inner.init(params))

    def handle(self, call, state):
        nothing = jax.tree.map(lambda _: None, call.updates)
        call._replace(updates=nothing).run(self.inner, state.inner_state)
        return call.unchanged(), state


class QuietState(eqx.Module):
    inner_state: eqopt.ScaleByAdamState | tuple


UNTOLD = {
    "Adam": ADAM,
    "AdamW": eqopt.AdamW(1e-3),
    "Chain": eqopt.Chain(eqopt.Clip(1.0), ADAM),
    "Lookahead": eqopt.Lookahead(ADAM, 2, 0.5),
    "Masked": eqopt.Masked(ADAM, is_matrix),
    "Partition": eqopt.Partition({"a": ADAM, "b": eqopt.SetToZero()}, by_shape),
    "Quiet": Quiet(ADAM),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_no_gradient_at_all(name):
    opt = UNTOLD[name]
    state = opt.init(MODEL)
    with pytest.raises(ValueError, match="Differentiate") as error:
        opt.step(NOTHING, state, MODEL)
    assert str(error.value) == (
        f"{name}: `grads` has no array, so nothing would be trained, but `params` "
        "has parameters, such as `.layers[0].weight`. Differentiate the loss with "
        "respect to the model, or to its trained part: `eqx.filter_grad(loss_fn)(model)`."
    )
    with pytest.raises(ValueError, match=f"{name}: `updates` has no array"):
        opt.update(updates=NOTHING, state=state, params=MODEL, value=1.0)
    with pytest.raises(ValueError, match=f"{name}: `grads` has no array"):
        eqx.filter_jit(opt.step)(None, state, MODEL)


def test_no_update_at_all():
    with pytest.raises(ValueError, match="apply_updates: `updates` has no array, so"):
        eqopt.apply_updates(MODEL, NOTHING)
    # The gradients themselves do not say that there is something to train.
    ADAM.update(NOTHING, ADAM.init(MODEL))


def test_parts_without_gradients():
    """Of a model, of the groups of an optimizer, and of what a wrapper passes on."""
    grads = jax.tree.map(lambda p: p if p.ndim == 2 else None, ARRAYS)
    groups = eqopt.Partition({"a": eqopt.AdamW(1e-3), "b": ADAM}, by_shape)
    masked = eqopt.Masked(eqopt.Lookahead(ADAM, 2, 0.5), lambda p: by_hand(p, 1))
    for opt in (ADAM, groups, masked, Quiet(ADAM), Quiet(Quiet(ADAM))):
        new, _ = opt.step(grads, opt.init(MODEL), MODEL, value=1.0)
        assert jnp.array_equal(new.layers[0].bias, MODEL.layers[0].bias)
        assert not jnp.array_equal(new.layers[0].weight, MODEL.layers[0].weight)


def by_hand(params, ndim):
    return jax.tree.map(lambda p: p.ndim == ndim, params)


def test_parts_by_hand():
    """A group without parameters is no mistake."""
    for opt in (ADAM, eqopt.Chain(eqopt.Clip(1.0), ADAM)):
        new, _ = opt.step(NOTHING, opt.init(NOTHING), NOTHING)
        assert jax.tree.leaves(new) == []
    transforms = {"a": to_optax(ADAM), "b": optax.sgd(0.1), "c": to_optax(ADAM)}
    tx = optax.partition(transforms, by_shape)
    tx.update(ARRAYS, tx.init(ARRAYS), ARRAYS)


class ReturningLeafwise(eqopt.AbstractLeafwise):
    result: Any

    def init(self, params):
        return None

    def leafwise(self, state, params=None, **extra):
        return self.result


@pytest.mark.parametrize("result", [None, (ARRAYS, None)], ids=["nothing", "a pair"])
def test_a_leafwise_that_returns_something_else(result):
    opt = ReturningLeafwise(result)
    with pytest.raises(TypeError, match=r"must return an `eqopt\.Leafwise`"):
        opt.update(ARRAYS, opt.init(MODEL), MODEL)


@eqopt.equation
def add(g, *, other):
    return g


class AddOther(eqopt.AbstractLeafwise):
    other: Any

    def init(self, params):
        return None

    def leafwise(self, state, params=None, **extra):
        return eqopt.Leafwise(add, shared={"other": self.other})


@pytest.mark.parametrize(
    "other",
    [MODEL, {"a": jnp.ones(2)}, (jnp.ones(2), 1.0)],
    ids=["model", "dict", "pair"],
)
def test_a_tree_among_the_shared_values(other):
    opt = AddOther(other)
    with pytest.raises(TypeError, match=r"^AddOther: `other` is .* in `reads`"):
        opt.update(ARRAYS, opt.init(MODEL), MODEL)


@pytest.mark.parametrize("loss", [1.0, jnp.ones(())], ids=["float", "array"])
@pytest.mark.parametrize("opt", [ADAM, eqopt.Lookahead(ADAM, 2, 0.5)])
def test_the_loss_is_no_gradient(opt, loss):
    state = opt.init(MODEL)
    for grads, found in (loss, "one number"), ((loss, ARRAYS), "a pair of a number"):
        with pytest.raises(
            ValueError, match=f"`grads` is {found}.*the gradients alone"
        ):
            opt.step(grads, state, MODEL)


def test_models_that_are_numbers_or_pairs():
    for params in (jnp.ones(()), (jnp.ones(()), {"a": jnp.ones(2)})):
        new, _ = ADAM.step(params, ADAM.init(params), params)
        assert jax.tree.structure(new) == jax.tree.structure(params)
