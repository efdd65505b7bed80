"""Every error names the argument, what was found and what to do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqopt.microbatching import (
    AccumulationType,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
    reshape_batch_axis,
)


SUM, MEAN = AccumulationType.SUM, AccumulationType.MEAN
RUNNING_MEAN = AccumulationType.RUNNING_MEAN
X = jnp.ones((6, 2))
TREE = {"x": X, "y": jnp.ones((5, 2))}


def identity(x, **kwargs):
    return x


def pair(x, y):
    return x.sum() + y.sum()


def early(k):
    return microbatch(identity, 0, 4, num_real_microbatches=k)(X)


def weighted(w):
    return microbatch(identity, 0, 4, weights=w)(X)


def value_and_grad(**kwargs):
    return micro_value_and_grad(pair, microbatch_size=2, **kwargs)


class Stateful(eqx.Module):
    index: eqx.nn.StateIndex

    def __init__(self):
        self.index = eqx.nn.StateIndex(jnp.zeros(2))


MODEL, STATE = eqx.nn.make_with_state(Stateful)()


def threaded(fun, accumulator=SUM):
    return microbatch(fun, 0, 3, accumulator)(X, STATE)


# A call, and what the message says.
ERRORS = [
    (
        lambda: microbatch(identity, 0, 2)({"a": [1.0, 2.0], "b": None}),
        ["no batch argument has an array", "jnp.asarray"],
    ),
    (
        lambda: microbatch(identity, 0, 2)(TREE),
        ["microbatch: `args[0]['x']` has 6", "`args[0]['y']` has 5"],
    ),
    (
        lambda: microbatch(identity, 0, 2, in_axes=2)({"x": X}),
        ["`args[0]['x']` of shape (6, 2) has no axis 2"],
    ),
    (
        lambda: microbatch(identity, 0, 0),
        ["microbatch: `microbatch_size`", "at least 1", "0"],
    ),
    (
        lambda: microbatch(identity, 0, 7)(X),
        ["`microbatch_size=7`", "6 rows", "`args[0]`", "`None`"],
    ),
    (
        lambda: microbatch(pair, (0, 1), 2, in_axes=(0,))(X, X),
        ["microbatch: `in_axes=(0,)`", "length 1", "2 such arguments"],
    ),
    (lambda: microbatch(identity, 3, 2)(X), ["no argument 3", "1 positional"]),
    (
        lambda: microbatch(lambda x: {"n": x}, 0, 2, MEAN)(jnp.arange(4)),
        ["MEAN", "`output['n']`", "int32"],
    ),
    (
        lambda: microbatch(lambda x: [x], 0, 4)(X),
        ["SUM", "`output[0]`", "(4, 2)", "(2, 2)", "CONCAT"],
    ),
    (lambda: early(3), ["`num_real_microbatches` must be in [0, 2]", "3"]),
    (lambda: micro_vmap(identity, out_axes=1), ["`out_axes`", "is 1"]),
    (
        lambda: weighted(jnp.ones(5)),
        ["`weights` must be real numbers of shape (6,)", "f32[5]"],
    ),
    (lambda: weighted(jnp.ones(6, complex)), ["`weights` must be real", "c64[6]"]),
    (
        lambda: weighted(jnp.arange(6) - 2),
        ["`weights` must be in [0, inf)", "-2", "use 0"],
    ),
    (
        lambda: microbatch(identity, 0, 2)(X, STATE, s=STATE),
        ["[1, 's'] are all an `eqx.nn.State`", "only one"],
    ),
    (lambda: threaded(lambda x, s: (x, s, {"s": s})), ["must have one `eqx.nn.State`"]),
    (
        lambda: threaded(lambda x, s: jax.tree.map(lambda a: a.astype(jnp.int32), s)),
        ["['int32[2]']", "['float32[2]']"],
    ),
    (
        lambda: value_and_grad(batch_argnums=(0, 1))(X, X),
        ["`batch_argnums=(0, 1)`", "first argument", "model first"],
    ),
    (
        lambda: reshape_batch_axis({"x": X}, 4),
        ["`microbatch_size=4`", "6 rows", "`tree['x']`"],
    ),
]


@pytest.mark.parametrize(("call", "fragments"), ERRORS)
def test_message(call, fragments):
    with pytest.raises(ValueError) as caught:
        call()
    for fragment in fragments:
        assert fragment in str(caught.value)
