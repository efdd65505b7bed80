"""Convolutions within the loop over microbatches."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

from eqopt.microbatching import micro_value_and_grad, microbatch


pytestmark = pytest.mark.slow


def network(dims):
    """Strided, dilated, grouped and transposed convolutions."""
    conv, transposed = (
        (eqx.nn.Conv1d, eqx.nn.ConvTranspose1d),
        (eqx.nn.Conv2d, eqx.nn.ConvTranspose2d),
        (eqx.nn.Conv3d, eqx.nn.ConvTranspose3d),
    )[dims - 1]
    keys = jr.split(jr.key(0), 4)
    return eqx.nn.Sequential(
        [
            conv(2, 4, 3, 2, padding=1, key=keys[0]),
            conv(4, 4, 2, dilation=2, groups=2, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            transposed(4, 3, 3, 2, key=keys[2]),
            conv(3, 1, 1, key=keys[3]),
        ]
    )


def mean_loss(model, x):
    return jnp.mean(jax.vmap(model)(x) ** 2)


def layouts(fun, *args):
    """The layouts of the convolutions in the compiled program."""
    text = eqx.filter_jit(fun).lower(*args).compile().compiled.as_text()
    return sorted(re.findall(r" convolution\(.*dim_labels=(\w+->\w+)", text))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_same_gradient_with_channels_last(dims):
    model, x = network(dims), jr.normal(jr.key(1), (8, 2, *(9,) * dims))
    value_and_grad = micro_value_and_grad(mean_loss, microbatch_size=2)
    value, grads = eqx.filter_jit(value_and_grad)(model, x)
    expected, expected_grads = eqx.filter_value_and_grad(mean_loss)(model, x)
    np.testing.assert_allclose(value, expected, 1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), grads, expected_grads
    )
    if dims == 2:
        found = layouts(value_and_grad, model, x)
        assert found
        assert not [layout for layout in found if "bf01" in layout]


def test_what_is_computed_again_is_not_kept_instead():
    model, x = network(2), jr.normal(jr.key(1), (8, 2, 9, 9))

    def loss(model, x):
        arrays, static = eqx.partition(model, eqx.is_array)
        call = lambda arrays, x: jax.vmap(eqx.combine(arrays, static))(x)
        return jnp.mean(jax.checkpoint(call)(arrays, x) ** 2)

    f = micro_value_and_grad(loss, microbatch_size=2)
    _, grads = eqx.filter_jit(f)(model, x)
    expected = eqx.filter_grad(mean_loss)(model, x)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), grads, expected
    )
    jaxpr = str(eqx.filter_make_jaxpr(f)(model, x)[0])
    assert "checkpoint" in jaxpr or "remat" in jaxpr


def test_derivatives_of_the_loop():
    """In any layout, in both modes, and under `vmap`."""
    kernel = jr.normal(jr.key(0), (3, 3, 2, 4))

    def fun(kernel, x):
        layout = ("NHWC", "HWIO", "NCHW")
        y = lax.conv_general_dilated(
            x, kernel, (1, 2), "SAME", dimension_numbers=layout
        )
        return jnp.sum(jnp.tanh(y))

    xs = jr.normal(jr.key(1), (3, 6, 5, 5, 2))
    looped, x = microbatch(fun, 1, 2), xs[0]
    slope = lambda f: jax.jvp(lambda k: f(k, x), [jnp.ones_like(kernel)], [kernel])[1]
    for derived in (lambda f: jax.grad(f)(kernel, x), slope):
        np.testing.assert_allclose(derived(looped), derived(fun), 1e-4, 1e-5)
    mapped = lambda f: jax.vmap(f, (None, 0))(kernel, xs)
    np.testing.assert_allclose(mapped(looped), mapped(fun), 1e-5)
