"""Complex parameters: as pairs of real ones, or an error that says what to conjugate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from .subjects import found, minimise


pytestmark = pytest.mark.slow


ZOOM = eqopt.ScaleByZoomLinesearch(20)
BACKTRACKING = eqopt.ScaleByBacktrackingLinesearch(20, store_grad=True)
OPTIMIZERS = {
    "L-BFGS": eqopt.LBFGS(),
    "L-BFGS, Armijo": eqopt.LBFGS(linesearch=BACKTRACKING),
    "descent": eqopt.Chain(eqopt.SGD(0.3), ZOOM),
}

# From zero, the imaginary part of each gradient is the larger one.
TARGET = jnp.array([1 + 2j, -0.1 + 3j, -0.5j])
SCALES = jnp.array([1.0, 4.0, 9.0])


def loss_of(z):
    # The last part is not the same in all directions.
    parts = SCALES * eqopt.numerics.abs_sq(z["z"] - TARGET)
    return jnp.sum(parts) + (z["z"][1].imag - z["x"]) ** 2


def loss_of_pairs(pairs):
    real, imaginary, x = pairs
    return loss_of({"z": jax.lax.complex(real, imaginary), "x": x})


def start():
    return {"z": jnp.zeros(3, jnp.complex64), "x": jnp.zeros(())}


def run(opt, steps, loss=loss_of):
    value_and_grad = eqopt.value_and_grad_from_state(loss)

    @eqx.filter_jit
    def step(params, state):
        value, grads = value_and_grad(params, state=state)
        grads = eqopt.tree.conj(grads)
        return opt.step(grads, state, params, value=value, grad=grads, value_fn=loss)

    params, state = start(), opt.init(start())
    for _ in range(steps):
        params, state = step(params, state)
        yield params, state


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_pairs(name):
    opt, steps = OPTIMIZERS[name], 15
    pairs = (jnp.zeros(3), jnp.zeros(3), jnp.zeros(()))
    expected, last = minimise(opt, loss_of_pairs, pairs, steps), jnp.inf
    for i, (params, state) in enumerate(run(opt, steps)):
        pairs, other = expected[i]
        if i < 6:  # from then on it is rounding
            parts = params["z"].real, params["z"].imag, params["x"]
            for x, y in zip(parts, pairs, strict=True):
                np.testing.assert_allclose(x, y, 1e-3, 1e-3)
            np.testing.assert_allclose(
                found(state).grad["z"], jax.grad(loss_of)(params)["z"], 1e-3, 1e-3
            )
        np.testing.assert_allclose(found(state).value, found(other).value, 1e-3, 1e-3)
        last = loss_of(params)
    assert last < 0.2


@pytest.mark.parametrize("conjugated", [(False, False), (True, False)])
@pytest.mark.parametrize(
    "search, jit",
    [(ZOOM, eqx.filter_jit), (BACKTRACKING, eqx.filter_jit), (ZOOM, lambda fn: fn)],
    ids=["wolfe", "armijo", "eager"],
)
def test_other_conventions_are_errors(search, jit, conjugated):
    opt = eqopt.LBFGS(linesearch=search)
    value, grads = jax.value_and_grad(loss_of)(start())
    grads, grad = (eqopt.tree.conj(grads) if c else grads for c in conjugated)
    name = type(search).__name__
    advice = (
        r"conjugate the result of `jax\.grad` .*`grads = eqopt\.tree\.conj\(grads\)`"
    )
    step = jit(
        lambda p, s: opt.step(grads, s, p, value=value, grad=grad, value_fn=loss_of)
    )
    with pytest.raises(
        Exception, match=rf"(?s){name}: `grad` is the conjugate.*{advice}"
    ):
        jax.block_until_ready(step(start(), opt.init(start())))


@pytest.mark.parametrize("search", [ZOOM, BACKTRACKING], ids=["wolfe", "armijo"])
def test_as_pairs_by_a_wrapper(search):
    opt = eqopt.SplitRealAndImaginary(eqopt.LBFGS(linesearch=search))
    value, grads = jax.value_and_grad(loss_of)(start())
    grads = eqopt.tree.conj(grads)
    extra = {"value": value, "grad": grads, "value_fn": loss_of}
    new, _ = eqx.filter_jit(opt.step)(grads, opt.init(start()), start(), **extra)
    pairs = (jnp.zeros(3), jnp.zeros(3), jnp.zeros(()))
    [(expected, _)] = minimise(opt.inner, loss_of_pairs, pairs, 1)
    np.testing.assert_allclose(new["z"].real, expected[0], 1e-4, 1e-4)
    np.testing.assert_allclose(new["z"].imag, expected[1], 1e-4, 1e-4)


def test_real_gradients_of_complex_parameters_are_fine():
    """They are their own conjugates; nor is there anything to find at a minimum."""
    loss = lambda z: jnp.sum(z.real**2) + 0 * jnp.sum(z.imag)
    opt = eqopt.LBFGS()

    @eqx.filter_jit
    def step(z):
        value, grad = jax.value_and_grad(loss)(z)
        return opt.step(grad, opt.init(z), z, value=value, grad=grad, value_fn=loss)[0]

    for z in (jnp.ones(2, jnp.complex64), jnp.zeros(2, jnp.complex64)):
        assert loss(step(z)) <= loss(z)
