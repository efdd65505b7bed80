"""Extra arguments of `update` and `step`: they reach every part that reads them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt
from eqopt.interop.optax import to_optax


PARAMS = {"w": jnp.ones(2)}
ADAM = eqopt.Adam(1e-3)
NEVER = eqopt.SkipStep(ADAM, lambda value, norm: norm < 0)


class Reader(eqopt.AbstractTransformation):
    """Reads an argument that eqopt does not have."""

    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda g: extra["loss"] * g, updates), state


def step(opt, /, **extra):
    return opt.step(PARAMS, opt.init(PARAMS), PARAMS, **extra)


def step_in_optax(opt, /, **extra):
    tx = optax.chain(optax.clip(1.0), to_optax(opt))
    return tx.update(PARAMS, tx.init(PARAMS), PARAMS, **extra)


@pytest.mark.parametrize("call", [step, step_in_optax])
def test_names_that_nothing_reads(call):
    """They do nothing, as in Optax."""
    given = call(NEVER, loss=1.0, obj_fn=jnp.sum, surprise=None)
    assert eqx.tree_equal(given, call(NEVER))


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


def test_what_is_missing():
    with pytest.raises(TypeError, match=r"missing 1 required .*'value'"):
        step(eqopt.Chain(Reader(), eqopt.PolyakSGD()), loss=jnp.ones(()))
    with pytest.raises(ValueError, match="SAM: the extra argument `grad_fn` is needed"):
        step(eqopt.SAM(ADAM, opaque_mode=True))


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
