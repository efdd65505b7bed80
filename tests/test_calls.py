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
everywhere = lambda value: lambda params: jax.tree.map(lambda _: value, params)
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
    with pytest.raises(ValueError, match="differentiated") as error:
        opt.step(NOTHING, state, MODEL)
    where = ".layers[0].bias" if name == "Partition" else ".layers[0].weight"
    assert str(error.value) == (
        f"{name}.step: `grads` has no array, so nothing would be trained, but `params` "
        f"has parameters, such as `{where}`. Was the loss differentiated with respect "
        "to a part of the model without parameters? Pass the part to be trained first: "
        "`grads = eqx.filter_grad(loss_fn)(model)`. If nothing is to be trained in this "
        "step, do not call it."
    )
    with pytest.raises(ValueError, match=f"{name}.update: `updates` has no array"):
        opt.update(updates=NOTHING, state=state, params=MODEL, value=1.0)
    with pytest.raises(ValueError, match=f"{name}.step: `grads` has no array"):
        eqx.filter_jit(opt.step)(None, state, MODEL)


def test_no_update_at_all():
    with pytest.raises(ValueError, match="apply_updates: `updates` has no array, so"):
        eqopt.apply_updates(MODEL, NOTHING)
    # The gradients themselves do not say that there is something to train.
    ADAM.update(NOTHING, ADAM.init(MODEL))


TOLD = {
    "Freeze": eqopt.Chain(ADAM, eqopt.Freeze(everywhere(True))),
    "SelectiveTransform": eqopt.SelectiveTransform(ADAM, freeze_mask=everywhere(True)),
    "SetToZero": eqopt.Partition({"a": eqopt.SetToZero()}, everywhere("a")),
}


@pytest.mark.parametrize("name", TOLD)
def test_frozen(name):
    opt = TOLD[name]
    new, _ = opt.step(NOTHING, opt.init(ARRAYS), ARRAYS)
    assert eqx.tree_equal(new, ARRAYS)


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


def test_a_check_that_fails_leaves_nothing_behind():
    for _ in range(2):
        with pytest.raises(ValueError, match="has no array"):
            ADAM.step(NOTHING, ADAM.init(MODEL), MODEL, value=1.0)


def other_states():
    many = jax.tree.map(lambda p: jnp.stack([p] * 3), ARRAYS)
    population = jax.vmap(ADAM.init)(many)
    is_population = "a population. Then call the optimizer under `eqx.filter_vmap`"
    whole, blocks = eqopt.Shampoo(0.1), eqopt.Shampoo(0.1, block_size=2)
    counts = r"Adam: `state\[0\].count` has shape \[3\], but \[\] for these parameters"
    factors = (
        r"Shampoo: `state\[0\].factors.layers\[0\].weight\[0\]` has shape \[4, 4\]"
    )
    return {
        "one model": (ADAM, population, ARRAYS, f"{counts}.*{is_population}"),
        "population": (ADAM, population, many, f"{counts}.*{is_population}"),
        "blocks": (blocks, whole.init(ARRAYS), ARRAYS, f"{factors}.*same model"),
    }


@pytest.mark.parametrize("name", ["one model", "population", "blocks"])
def test_a_state_with_more_axes(name):
    opt, state, params, message = other_states()[name]
    with pytest.raises(ValueError, match=message):
        opt.step(params, state, params)


class Needing(eqopt.AbstractTransformation):
    """Needs an extra argument."""

    def init(self, params):
        return None

    def update(self, updates, state, params=None, *, entropy, **extra):
        return eqopt.tree.scale(entropy, updates), state


def test_a_missing_extra_argument_is_in_the_call_to_make():
    with pytest.raises(TypeError) as error:
        Needing().update(ARRAYS, None, MODEL)
    assert "'entropy'. Call `opt.update(grads, state, model, entropy=...)`" in str(
        error.value
    )


class Returning(eqopt.AbstractTransformation):
    """Returns what it was made with."""

    result: Any

    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        return self.result


class ReturningLeafwise(eqopt.AbstractLeafwise):
    result: Any

    def init(self, params):
        return None

    def leafwise(self, state, params=None, **extra):
        return self.result


@pytest.mark.parametrize(
    "result, said",
    [
        (None, "None of type NoneType"),
        ({"a": jnp.ones(2), "b": jnp.ones(2)}, "of type dict"),
        (jnp.ones(2), "Array([1., 1.], dtype=float32) of type ArrayImpl"),
        (ARRAYS, "a module `MLP` of type MLP"),
    ],
)
@pytest.mark.parametrize("in_chain", [True, False])
def test_an_update_that_returns_no_pair(result, said, in_chain):
    opt = Returning(result)
    opt = eqopt.Chain(eqopt.Clip(1.0), opt, eqopt.SGD(1.0)) if in_chain else opt
    with pytest.raises(TypeError) as error:
        opt.step(ARRAYS, opt.init(MODEL), MODEL)
    text = str(error.value)
    assert text.startswith(
        "Returning.update: it must return a pair of the updates and the new state, but "
        "returned "
    )
    assert said in text


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
    with pytest.raises(TypeError, match=r"^AddOther: `other` is .* in `reads`; `p` is"):
        opt.update(ARRAYS, opt.init(MODEL), MODEL)


OF_ONE = {
    "Adam": ADAM,
    "Chain": eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), ADAM),
    "Flatten": eqopt.Flatten(ADAM),
    "LBFGS": eqopt.LBFGS(linesearch=None, learning_rate=0.1),
    "Masked": eqopt.Masked(eqopt.DPSGD(0.1, 1.0, 1.0, key=0), is_matrix),
    "Mechanic": eqopt.Mechanic(eqopt.DPSGD(0.1, 1.0, 1.0, key=0)),
    "MultiSteps": eqopt.MultiSteps(eqopt.DPSGD(0.1, 1.0, 1.0, key=0), 2),
    "Muon": eqopt.Muon(0.1),
    "Prodigy": eqopt.Prodigy(),
}


@pytest.mark.parametrize("name", OF_ONE)
def test_gradients_of_examples(name):
    opt = OF_ONE[name]
    grads = jax.tree.map(lambda p: jnp.stack([p] * 5), ARRAYS)
    grads = eqx.tree_at(lambda m: m.layers[0].weight, grads, replace=None)
    if name == "Flatten":
        grads = jax.tree.map(lambda p: jnp.stack([p] * 5), ARRAYS)
    with pytest.raises(ValueError, match="gradients of single examples") as error:
        opt.step(grads, opt.init(MODEL), MODEL)
    message = str(error.value)
    where = "weight" if name == "Flatten" else "bias"
    shapes = "[5, 4, 3] for [4, 3]" if name == "Flatten" else "[5, 4] for [4]"
    assert f"{shapes} at `.layers[0].{where}`" in message
    assert message.startswith(name)
    is_private = name in ("Masked", "Mechanic", "MultiSteps")
    part = "begin with it, outside of other parts and wrappers: `eqopt.Chain(Differ"
    assert (part in message, "mean" in message) == (is_private, not is_private)


def test_another_error_with_gradients_of_examples():
    def fails(updates, params):
        raise ValueError("mine")

    opt = eqopt.Chain(
        eqopt.aggregating.AveragePerElementUpdates(), eqopt.Stateless(fails)
    )
    grads = jax.tree.map(lambda p: jnp.stack([p] * 5), ARRAYS)
    with pytest.raises(ValueError, match="mine"):
        opt.step(grads, opt.init(MODEL), MODEL)
