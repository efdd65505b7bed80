"""Complex parameters: Optax squares them, or drops their imaginary parts."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")

PARAMS, GRADS = jnp.array([1 + 1j, 2 - 1j]), jnp.array([1j, 2 + 1j])
VALUE = {"value": jnp.float32(1)}


def second(opt):
    """The updates of the second step, and all states, for either library."""
    if isinstance(opt, tuple):
        opt = optax.with_extra_args_support(opt)
    _, state = opt.update(GRADS, opt.init(PARAMS), PARAMS, **VALUE)
    return opt.update(GRADS, state, PARAMS, **VALUE)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (eqopt.Adadelta(1.0), optax.adadelta(1.0)),
        (eqopt.DAdaptAdamW(), optax.contrib.dadapt_adamw()),
        (eqopt.MoMoAdam(), optax.contrib.momo_adam()),
        (eqopt.Prodigy(), optax.contrib.prodigy()),
    ],
    ids=lambda opt: type(opt).__name__,
)
@pytest.mark.costly
def test_second_moments(ours, theirs):
    """Steps have the directions of equal gradients; in Optax, all lead the same way."""
    (ours, _), (theirs, _) = second(ours), second(theirs)
    directions = -GRADS / jnp.abs(GRADS)
    np.testing.assert_allclose(ours / jnp.abs(ours), directions, atol=1e-5)
    np.testing.assert_allclose(theirs / jnp.abs(theirs), -1, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (eqopt.Adam(0.1, mu_dtype=jnp.float32), optax.adam(0.1, mu_dtype=jnp.float32)),
        (
            eqopt.SGD(0.1, 0.9, accumulator_dtype=jnp.float32),
            optax.sgd(0.1, 0.9, accumulator_dtype=jnp.float32),
        ),
        (
            eqopt.MultiSteps(eqopt.SGD(0.1), 2),
            optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
        ),
    ],
    ids=["mu_dtype", "accumulator_dtype", "MultiSteps"],
)
@pytest.mark.filterwarnings("ignore:Casting from complex", "ignore:Casting complex")
@pytest.mark.costly
def test_imaginary_parts_of_stored_momentum(ours, theirs):
    (ours, _), (theirs, _) = second(ours), second(theirs)
    ratio = (ours / GRADS).real
    np.testing.assert_allclose(ours, ratio * GRADS, atol=1e-6)
    assert (jnp.abs(theirs.imag) < 0.9 * jnp.abs(ours.imag)).all()


def test_the_reward_of_cocob_is_real():
    ours, theirs = (second(o)[1] for o in (eqopt.COCOB(), optax.contrib.cocob()))
    assert not jnp.iscomplexobj(eqopt.tree.get(ours, "reward"))
    assert jnp.iscomplexobj(optax.tree.get(theirs, "reward"))


def test_skip_large_updates():
    grads = jnp.array([3j])
    assert eqopt.SkipLargeUpdates(4.0)(grads, 0, grads)[0]
    assert not optax.skip_large_updates(grads, 0, grads, 4.0)[0]


def test_the_smooth_sign_of_lion():
    """Near a pole of the complex tanh."""
    grads = jnp.array([1.57j])
    ours = eqopt.ScaleByLion(0.0, mode="smooth")
    theirs = optax.scale_by_lion(0.0, mode="smooth")
    update = lambda opt: opt.update(grads, opt.init(grads), grads)[0]
    np.testing.assert_allclose(update(ours), 1j * np.tanh([1.57]), 1e-5)
    assert jnp.abs(update(theirs)) > 1000
