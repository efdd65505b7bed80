"""Extra arguments of `update` and `step`: nothing is ignored in silence."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt
from eqopt._arguments.extra import EXTRAS
from eqopt.interop.optax import from_optax, to_optax


PARAMS = {"w": jnp.ones(2)}
ADAM = eqopt.Adam(1e-3)
NEVER = eqopt.SkipStep(ADAM, lambda value, norm: norm < 0)


class Reader(eqopt.AbstractTransformation):
    """Reads an argument that eqopt does not have."""

    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda g: extra["loss"] * g, updates), state


class Recipe(eqopt.AbstractOptimizer):
    learning_rate: float = 0.1

    @property
    def chain(self):
        return eqopt.Chain(
            *map(self.part, (eqopt.ScaleByAdam, eqopt.ScaleByLearningRate))
        )


def step(opt, /, **extra):
    return opt.step(PARAMS, opt.init(PARAMS), PARAMS, **extra)


def step_in_optax(opt, /, **extra):
    tx = optax.chain(optax.clip(1.0), to_optax(opt))
    return tx.update(PARAMS, tx.init(PARAMS), PARAMS, **extra)


MEANT = {
    "loss": "value=loss",
    "loss_value": "value=loss_value",
    "values": "value=values",
    "cost": "value=cost",
    "obj": "value=obj",
    "objective": "value=objective",
    "loss_fn": "value_fn=loss_fn",
    "obj_fn": "value_fn=obj_fn",
    "objective_fn": "value_fn=objective_fn",
    "cost_fn": "value_fn=cost_fn",
    "fn": "value_fn=fn",
    "fun": "value_fn=fun",
    "func": "value_fn=func",
    "closure": "value_fn=lambda model: ...",
    "value_and_grad": "value_fn=lambda model: value_and_grad(model)[0]",
    "value_and_grad_fn": "value_fn=lambda model: value_and_grad_fn(model)[0]",
    "max_logit": "max_logits=max_logit",
    "max_attn_logits": "max_logits=max_attn_logits",
    "gradient": "grad=gradient",
    "gradients": "grad=gradients",
    "gradient_norm": "grad_norm=gradient_norm",
    "global_norm": "grad_norm=global_norm",
    "gradient_fn": "grad_fn=gradient_fn",
    "prev_grad": "previous_grad=prev_grad",
    "previous_grads": "previous_grad=previous_grads",
    "weights": "weight=weights",
    "num_samples": "sample_size=num_samples",
    "n_samples": "sample_size=n_samples",
}


@pytest.mark.parametrize("name", MEANT)
def test_other_names(name):
    right = MEANT[name].partition("=")[0]
    for call, owner in ((step, "SkipStep.step"), (step_in_optax, "SkipStep.update")):
        with pytest.raises(TypeError) as error:
            call(NEVER, **{name: 1.0})
        message = str(error.value)
        assert message.startswith(f"{owner}: no part of this optimizer reads the extra")
        assert f"`{name}`. Did you mean `{right}`, the " in message
        assert f"(grads, state, model, {MEANT[name]})`" in message


@pytest.mark.parametrize("name", ["model", "parameters"])
def test_the_model_by_another_name(name):
    with pytest.raises(TypeError, match="Is it the model") as error:
        ADAM.update(PARAMS, ADAM.init(PARAMS), None, **{name: PARAMS})
    assert f"Pass it as `params`: `opt.update(grads, state, {name})`" in str(
        error.value
    )


def test_unknown_names():
    with pytest.raises(TypeError) as error:
        step(NEVER, surprise=1)
    assert str(error.value) == (
        "SkipStep.step: no part of this optimizer reads the extra argument `surprise`. "
        f"eqopt's transformations read `{'`, `'.join(EXTRAS)}`. "
        "Hyperparameters belong in the constructor. Remove this argument."
    )


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.AdamW(lambda step: 0.1, mask=lambda params: {"w": True}),
        eqopt.Scheduled(eqopt.Adam(1e-3, b1=lambda step: 0.9)),
        eqopt.Partition({"a": ADAM}, lambda params: {"w": "a"}),
        eqopt.Chain(from_optax(optax.clip(1.0)), ADAM),
        Recipe(),
    ],
    ids=["functions", "schedules", "labels", "Optax", "recipe"],
)
def test_functions_of_users_do_not_hide_mistakes(opt):
    with pytest.raises(TypeError, match="Did you mean `value`"):
        step(opt, loss=1.0)


def test_readers_of_users():
    """They may have any names, also next to wrappers and inside them."""
    loss = jnp.array(2.0)
    for opt in (Reader(), eqopt.Chain(Reader(), NEVER), eqopt.Chain(NEVER, Reader())):
        step(opt, loss=loss, surprise=1)
    new, _ = step_in_optax(eqopt.Chain(Reader(), eqopt.Scale(2.0)), loss=loss)
    assert jnp.array_equal(new["w"], jnp.full(2, 4.0))
    seen = []
    is_late = lambda step, *, loss: seen.append(loss) or step > 2
    late = eqopt.ConditionallyMask(ADAM, is_late, forward_extra_args=True)
    step(late, loss=loss)
    assert len(seen) == 1
    with pytest.raises(TypeError, match="reads the extra argument `surprise`"):
        step(late, surprise=1)


@pytest.mark.parametrize("package", ["jaxrl.agents", "jax_utils"])
def test_readers_in_packages_with_similar_names(package):
    similar = type("Similar", (Reader,), {"__module__": package})
    step(similar(), loss=jnp.array(2.0))


def test_what_is_missing_has_another_name():
    opt = eqopt.Chain(Reader(), eqopt.PolyakSGD())
    with pytest.raises(ValueError, match=r"PolyakSGD .*Is it `loss`.*value=loss"):
        step(opt, loss=jnp.ones(()))


def test_names_for_two_libraries_at_once():
    value = jnp.ones(())
    new, _ = step(NEVER, value=value, loss=value)
    assert eqx.tree_equal(new, step(NEVER, value=value)[0])


def test_arguments_for_other_parts_of_an_optax_chain():
    """Optax passes all extra arguments to all parts."""
    step_in_optax(ADAM, needs_another_part=1)


def test_arguments_by_name():
    state = ADAM.init(PARAMS)
    new, _ = ADAM.step(grads=PARAMS, state=state, params=PARAMS)
    assert eqx.tree_equal(new, step(ADAM)[0])
    with pytest.raises(TypeError, match="missing a required argument: 'updates'"):
        ADAM.update(grads=PARAMS, state=state, params=PARAMS)
    with pytest.raises(TypeError, match="Did you mean `grad`"):
        step_in_optax(ADAM, grads=PARAMS)


class AddsGrad(eqopt.AbstractTransformation):
    """Reads the loss and the gradient."""

    def init(self, params):
        return None

    def update(self, updates, state, params=None, *, value_fn, grad, **extra):
        value_fn(params)
        return jax.tree.map(jnp.add, updates, grad), state


W = jax.lax.complex(jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0]))
WHOLE = {"w": W, "b": jnp.zeros(2, jnp.bfloat16), "f": jnp.tanh, "n": jnp.arange(3)}
IS_W = {"w": True, "b": False, "f": False, "n": False}
WITHIN = {
    "Flatten": eqopt.Flatten,
    "GPA": lambda opt: eqopt.GPA(opt, mu_x=0.0),
    "Masked": lambda opt: eqopt.Masked(opt, IS_W),
    "Partition": lambda opt: eqopt.Partition({True: opt, False: eqopt.SGD(0.0)}, IS_W),
    "Partition with one label": lambda opt: eqopt.Partition({"all": opt}, "all"),
    "SelectiveTransform": lambda opt: eqopt.SelectiveTransform(
        opt, freeze_mask=jax.tree.map(lambda is_w: not is_w, IS_W)
    ),
    "SplitRealAndImaginary": eqopt.SplitRealAndImaginary,
}


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("takes_number", [False, True])
@pytest.mark.parametrize("name", WITHIN)
@pytest.mark.costly
def test_functions_get_the_model(name, takes_number, is_stored):
    """Also within wrappers that show another tree to the inner optimizer."""

    def grads_of(model):
        assert model["w"].dtype == jnp.complex64 and isinstance(model["b"], jax.Array)
        assert model["f"] is jnp.tanh and model["n"].shape == (3,)
        return {**model, "w": model["w"] ** 3, "b": jnp.zeros(2), "f": None, "n": None}

    extra = {
        "value_fn": lambda model: jnp.sum(jnp.abs(grads_of(model)["w"])),
        "grad": grads_of(WHOLE),
        "grad_fn": (lambda model, i: grads_of(model)) if takes_number else grads_of,
    }
    sam = eqopt.SAM(eqopt.Chain(AddsGrad(), eqopt.SGD(0.1)), opaque_mode=True)
    around = eqopt.StoreParams if is_stored else lambda opt, _: opt
    alone, within = (
        o.step(grads_of(WHOLE), o.init(WHOLE), WHOLE, **extra)[0]
        for o in (sam, around(WITHIN[name](sam), eqopt.storage.MasterWeights()))
    )
    np.testing.assert_allclose(within["w"], alone["w"], rtol=1e-5)
