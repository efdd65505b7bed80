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


# name: (a call, what the message says)
ERRORS = {
    "no array in it": (
        lambda: microbatch(identity, 0, 2)({"a": [1.0, 2.0], "b": None}),
        ["no batch argument has an array", "jnp.asarray"],
    ),
    "unequal batch axes": (
        lambda: microbatch(identity, 0, 2)(TREE),
        ["microbatch: `args[0]['x']` has 6", "`args[0]['y']` has 5"],
    ),
    "axis out of range": (
        lambda: microbatch(identity, 0, 2, in_axes=2)({"x": X}),
        ["`args[0]['x']` of shape (6, 2) has no axis 2"],
    ),
    "size zero": (
        lambda: microbatch(identity, 0, 0),
        ["microbatch: `microbatch_size`", "at least 1", "0"],
    ),
    "size larger than the batch": (
        lambda: microbatch(identity, 0, 7)(X),
        ["`microbatch_size=7`", "6 rows", "`args[0]`", "`None`"],
    ),
    "in_axes length": (
        lambda: microbatch(pair, (0, 1), 2, in_axes=(0,))(X, X),
        ["microbatch: `in_axes=(0,)`", "length 1", "2 such arguments"],
    ),
    "in_axes length in micro_vmap": (
        lambda: micro_vmap(pair, (0, 0, None))(X, X),
        ["micro_vmap: there is no argument 2", "2 positional"],
    ),
    "argnums": (
        lambda: microbatch(identity, 3, 2)(X),
        ["no argument 3", "1 positional"],
    ),
    "argnames": (
        lambda: microbatch(pair, 0, 2, argnames="z")(X, y=X),
        ["no argument 'z'", "1 positional", "['y']"],
    ),
    "mean of integers": (
        lambda: microbatch(lambda x: {"n": x}, 0, 2, MEAN)(jnp.arange(4)),
        ["MEAN", "`output['n']`", "int32"],
    ),
    "rows cannot be added if ragged": (
        lambda: microbatch(lambda x: [x], 0, 4)(X),
        ["SUM", "`output[0]`", "(4, 2)", "(2, 2)", "CONCAT"],
    ),
    "too many microbatches": (
        lambda: early(3),
        ["`num_real_microbatches` must be at most 2", "3"],
    ),
    "out_axes": (lambda: micro_vmap(identity, out_axes=1), ["`out_axes`", "is 1"]),
    "weights of another shape": (
        lambda: weighted(jnp.ones(5)),
        ["`weights` must be real numbers of shape (6,)", "f32[5]"],
    ),
    "complex weights": (
        lambda: weighted(jnp.ones(6, complex)),
        ["`weights` must be real numbers of shape (6,)", "c64[6]"],
    ),
    "negative weights": (
        lambda: weighted(jnp.arange(6) - 2),
        ["`weights` must be in [0, inf)", "-2", "use 0"],
    ),
    "two states": (
        lambda: microbatch(identity, 0, 2)(X, STATE, s=STATE),
        ["[1, 's'] are all an `eqx.nn.State`", "only one"],
    ),
    "two states in the output": (
        lambda: threaded(lambda x, s: (x, s, {"s": s})),
        ["must have one `eqx.nn.State`"],
    ),
    "another dtype in the state": (
        lambda: threaded(lambda x, s: jax.tree.map(lambda a: a.astype(jnp.int32), s)),
        ["['int32[2]']", "['float32[2]']"],
    ),
    "the model as a batch": (
        lambda: value_and_grad(batch_argnums=(0, 1))(X, X),
        ["`batch_argnums=(0, 1)`", "first argument", "model first"],
    ),
    "reshape of a ragged batch": (
        lambda: reshape_batch_axis({"x": X}, 4),
        ["`microbatch_size=4`", "6 rows", "`tree['x']`"],
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_message(name):
    call, fragments = ERRORS[name]
    with pytest.raises(ValueError) as caught:
        call()
    for fragment in fragments:
        assert fragment in str(caught.value)
