"""`micro_vmap` against Optax and `eqx.filter_vmap`."""

import functools as ft

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from eqopt.microbatching import AccumulationType, micro_vmap

from ..interpreter import interpreted


KINDS = {kind.name: kind for kind in AccumulationType}


@pytest.mark.parametrize("size", [None, 2, 6])
@pytest.mark.costly
def test_parity_with_optax(size, getkey):
    x, y = jr.normal(getkey(), (2, 4, 6))
    scale = jr.normal(getkey(), (4,))

    def fun(scale, x, y):
        return {name: (x * scale, jnp.sum(y)) for name in KINDS}

    theirs = optax.microbatching
    arguments = {"in_axes": (None, 1, 1), "microbatch_size": size}
    ours = micro_vmap(fun, accumulator=KINDS, **arguments)
    accumulator = {name: theirs.AccumulationType[name] for name in KINDS}
    reference = theirs.micro_vmap(fun, accumulator=accumulator, **arguments)
    both = interpreted(lambda *args: (ours(*args), reference(*args)))
    actual, expected = map(jax.tree.leaves, both(scale, x, y))
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_keyword_arguments_are_mapped():
    x, y = jnp.arange(20.0).reshape(5, 4), jnp.arange(5)
    fun = micro_vmap(lambda x, *, y, f: f(x[y % 4]), microbatch_size=2)
    np.testing.assert_array_equal(fun(x, y=y, f=jnp.square), x[y, y % 4] ** 2)


def test_collectives_see_a_microbatch():
    vmap_fn = ft.partial(jax.vmap, axis_name="i")
    fun = micro_vmap(lambda x: jax.lax.psum(x, "i"), vmap_fn=vmap_fn, microbatch_size=2)
    assert fun(jnp.arange(4)).tolist() == [2, 4, 2, 4]
