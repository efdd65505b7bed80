"""A batch without rows: the function is traced, but never run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.microbatching import (
    AccumulationType,
    clipped_grad,
    gradient_paths,
    micro_grad,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
    per_example_grad_norms,
)


KINDS = {kind.name: kind for kind in AccumulationType}
X, W = jnp.ones((0, 3)), jnp.ones(3)

sizes = pytest.mark.parametrize("size", [None, 1, 2])


def of_rows(x):
    return {"SUM": x.sum(0), "MEAN": x.mean(0), "RUNNING_MEAN": x[0], "CONCAT": 2 * x}


def loss(w, x):
    jax.debug.callback(lambda: pytest.fail("The function runs."))
    return jnp.sum((x @ w) ** 2)


@sizes
@pytest.mark.parametrize("num_real", [None, 0, jnp.array(1)])
@pytest.mark.parametrize("weights", [None, jnp.ones(0)])
def test_all_kinds(size, num_real, weights):
    mean = [jnp.nan if weights is None else 0] * 3
    zeros = [0] * 3
    expected = {"SUM": zeros, "MEAN": mean, "RUNNING_MEAN": zeros}
    given = {"weights": weights, "num_real_microbatches": num_real}
    by_row = micro_vmap(
        lambda x: dict.fromkeys(KINDS, x),
        microbatch_size=size,
        accumulator=KINDS,
        **given,
    )
    for fun in (microbatch(of_rows, 0, size, KINDS, **given), by_row):
        out = fun(X.astype(jnp.bfloat16))
        assert {x.dtype for x in out.values()} == {jnp.dtype("bfloat16")}
        assert out.pop("CONCAT").shape == (0, 3)
        for name, x in out.items():
            np.testing.assert_array_equal(x.astype(jnp.float32), expected[name])


@sizes
def test_gradients(size):
    given = {"microbatch_size": size}
    gradients, aux = micro_grad(loss, **given)(W, X)
    clipped, examples = clipped_grad(loss, 1.0, **given)(W, X)
    value, mean = micro_value_and_grad(loss, **given)(W, X)
    jax.effects_barrier()
    for x in (gradients, clipped, mean, value):
        assert not x.any()
    assert gradients.shape == clipped.shape == mean.shape == W.shape
    norms = per_example_grad_norms(loss, **given)(W, X).norms
    assert aux.values.shape == examples.norms.shape == norms.shape == (0,)


def test_paths():
    assert gradient_paths(lambda w, x: jnp.sum(x @ w))(W, X) == "ghost"


@sizes
def test_keys(size):
    draw = micro_vmap(lambda x, key: x + jr.uniform(key), microbatch_size=size)
    assert draw(X, key=jr.key(0)).shape == (0, 3)
    same = microbatch(lambda keys: keys, 0, size, AccumulationType.CONCAT)
    assert same(jr.split(jr.key(0), 0)).shape == (0,)


def test_the_state_stays():
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "b", mode="ema")

    def fun(x, state):
        return jax.vmap(model, (0, None), (0, None), axis_name="b")(x, state)

    _, after = microbatch(fun, 0, 2, AccumulationType.CONCAT)(X, state)
    assert eqx.tree_equal(after, state)
