"""`micro_value_and_grad` against `eqx.filter_value_and_grad`, and in a train step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.microbatching import AccumulationType, micro_value_and_grad

from ..interpreter import interpreted
from .subjects import assert_close


SUM, CONCAT = AccumulationType.SUM, AccumulationType.CONCAT


class Model(eqx.Module):
    mlp: eqx.nn.MLP
    table: jax.Array
    scale: float
    activation: object

    def __call__(self, x):
        return self.activation(self.mlp(x[self.table]) * self.scale)


@pytest.fixture
def model(getkey):
    return Model(eqx.nn.MLP(3, 2, 4, 1, key=getkey()), jnp.arange(3), 2.0, jnp.tanh)


def loss(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


@pytest.mark.parametrize("size", [None, 4, 5, 10])
@pytest.mark.slow
def test_agrees_with_the_whole_batch(size, model, getkey):
    x, y = jr.normal(getkey(), (10, 3)), jr.normal(getkey(), (10, 2))

    @interpreted
    def both(model, x, y):
        expected = eqx.filter_value_and_grad(loss)(model, x, y)
        arguments = {"microbatch_size": size}
        ways = [
            micro_value_and_grad(loss, batch_argnums=(1, 2), **arguments)(model, x, y),
            micro_value_and_grad(loss, batch_argnums=(-1, 1), **arguments)(model, x, y),
            micro_value_and_grad(
                loss, batch_argnums=(), batch_argnames=("y", "x"), **arguments
            )(model, x=x, y=y),
            micro_value_and_grad(loss, batch_argnames="y", **arguments)(model, x, y=y),
        ]
        return ways, expected

    ways, expected = both(model, x, y)
    for way in ways:
        assert_close(way, expected)
        grads = way[1]
        assert grads.table is grads.scale is grads.activation is None


@pytest.mark.slow
def test_aux(model, getkey):
    x, y = jr.normal(getkey(), (7, 3)), jr.normal(getkey(), (7, 2))

    def fun(model, x, y):
        value = loss(model, x, y)
        return value, {"loss": value, "rows": jnp.array(len(x)), "x": x, "n": "name"}

    kinds = {"loss": AccumulationType.MEAN, "rows": SUM, "x": CONCAT, "n": SUM}
    micro = micro_value_and_grad(
        fun, True, batch_argnums=(1, 2), microbatch_size=3, aux_accumulator=kinds
    )
    (value, aux), grads = interpreted(micro)(model, x, y)
    expected = interpreted(eqx.filter_value_and_grad(loss))(model, x, y)
    assert_close((value, grads), expected)
    assert_close(aux["loss"], value)
    assert (aux["rows"], aux["n"]) == (7, "name")
    np.testing.assert_array_equal(aux["x"], x)


@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.slow
def test_num_real_microbatches(has_aux):
    """The results are means over the rows that are evaluated, and only these."""

    def fun(c, x):
        return (c * x.mean(), x.mean()) if has_aux else c * x.mean()

    x = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0])  # microbatches of 1, 3; 2, 4; and 5
    means = [0.0, 2.0, 2.5, 3.0]
    for real, mean in enumerate(means):
        for k in (real, jnp.array(real)):
            micro = micro_value_and_grad(
                fun, has_aux, microbatch_size=2, num_real_microbatches=k
            )
            value, grad = interpreted(micro)(jnp.float32(3), x)
            assert value == ((3 * mean, mean) if has_aux else 3 * mean)
            assert grad == mean
