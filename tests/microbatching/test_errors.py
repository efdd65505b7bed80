"""Every error names the argument, what was found and what to do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqopt.microbatching import (
    AccumulationType,
    Accumulator,
    micro_grad,
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
PART = STATE.substate(())
TOTAL = Accumulator(
    init=lambda like: jnp.zeros(()),
    update=lambda carry, value, index: carry,
    finalize=lambda carry: carry,
    aggregate=lambda values: values,
)


def threaded(fun, accumulator=SUM):
    return microbatch(fun, 0, 3, accumulator)(X, STATE)


# name: (a call, what the message says)
ERRORS = {
    "no batch argument": (
        lambda: microbatch(identity, (), 2),
        ["`argnums` and `argnames` are both empty"],
    ),
    "no array in it": (
        lambda: microbatch(identity, 0, 2)({"a": [1.0, 2.0], "b": None}),
        ["`args[0]`", "['float']", "jnp.asarray"],
    ),
    "nothing mapped": (
        lambda: micro_vmap(identity, (None,))(X),
        ["No array with a batch axis", "no batch argument"],
    ),
    "unequal batch axes": (
        lambda: microbatch(identity, 0, 2)(TREE),
        ["`args[0]['x']` has 6", "`args[0]['y']` has 5", "in_axes"],
    ),
    "unequal keyword": (
        lambda: micro_vmap(identity)(X, y=TREE["y"]),
        ["`args[0]` has 6", "`kwargs['y']` has 5"],
    ),
    "axis out of range": (
        lambda: microbatch(identity, 0, 2, in_axes=2)({"x": X}),
        ["`in_axes=2`", "`args[0]['x']`", "(6, 2)", "-2 to 1"],
    ),
    "negative axis out of range": (
        lambda: micro_vmap(identity, -3)(X),
        ["`in_axes=-3`", "`args[0]`", "-2 to 1"],
    ),
    "scalar in the batch": (
        lambda: microbatch(identity, 0, 2)({"x": X, "n": jnp.array(3)}),
        ["`args[0]['n']`", "shape ()", "another argument"],
    ),
    "size zero": (lambda: microbatch(identity, 0, 0), ["`microbatch_size`", "got 0"]),
    "negative size": (
        lambda: micro_vmap(identity, microbatch_size=-2),
        ["`microbatch_size`", "got -2"],
    ),
    "size zero in micro_grad": (
        lambda: micro_grad(pair, microbatch_size=0),
        ["`microbatch_size`", "got 0"],
    ),
    "size larger than the batch": (
        lambda: microbatch(identity, 0, 7)(X),
        ["`microbatch_size=7`", "6 rows", "`args[0]`", "`None`"],
    ),
    "in_axes length": (
        lambda: microbatch(identity, (0, 1), 2, in_axes=(0,)),
        ["`in_axes=(0,)`", "length 1", "2 batch arguments"],
    ),
    "in_axes length in micro_vmap": (
        lambda: micro_vmap(pair, (0, 0, None))(X, X),
        ["`in_axes=(0, 0, None)`", "length 3", "2 positional"],
    ),
    "argnums": (
        lambda: microbatch(identity, 3, 2)(X),
        ["`argnums` contains 3", "1 positional"],
    ),
    "argnums twice": (
        lambda: microbatch(pair, (1, -1), 2)(X, X),
        ["`argnums=(1, -1)`", "twice"],
    ),
    "argnames": (
        lambda: microbatch(pair, 0, 2, argnames="z")(X, y=X),
        ["`argnames` contains 'z'", "1 positional", "['y']"],
    ),
    "argnums and argnames": (
        lambda: microbatch(pair, 1, 2, argnames="y")(X, X),
        ["`argnums=(1,)` with `argnames=('y',)`", "twice"],
    ),
    "batch_argnums": (
        lambda: micro_grad(pair, batch_argnums=2)(X, X),
        ["`batch_argnums` contains 2", "2 positional"],
    ),
    "no batch_argnums": (
        lambda: micro_grad(pair, batch_argnums=()),
        ["`batch_argnums` is empty"],
    ),
    "argnums of micro_grad": (
        lambda: micro_grad(pair, argnums=(0, 2))(X, X),
        ["`argnums` contains 2"],
    ),
    "no accumulator": (
        lambda: microbatch(identity, 0, 2, {"a": SUM, "b": "sum"}),
        ["`accumulator['b']`", "'sum'", "AccumulationType"],
    ),
    "accumulator of another structure": (
        lambda: microbatch(lambda x: (x, {"a": x}), 0, 2, (SUM, {"b": SUM}))(X),
        ["`accumulator`", "prefix", "`output[1]['a']`", "{'b': *}", "{'a': *}"],
    ),
    "accumulator too short": (
        lambda: micro_vmap(lambda x: (x, None, x), accumulator=(SUM, None))(X),
        ["`accumulator`", "prefix", "`output[1]`"],
    ),
    "accumulator too long": (
        lambda: micro_vmap(lambda x: (x,), accumulator=(SUM, SUM))(X),
        ["`accumulator`", "prefix", "`accumulator[1]`"],
    ),
    "accumulator of another type": (
        lambda: microbatch(lambda x: (x, x), 0, 2, [SUM, SUM])(X),
        ["`accumulator`", "prefix", "types", "[*, *]", "(*, *)"],
    ),
    "mean of integers": (
        lambda: microbatch(lambda x: {"n": x}, 0, 2, MEAN)(jnp.arange(4)),
        ["MEAN", "`output['n']`", "int32"],
    ),
    "running mean of integers": (
        lambda: microbatch(identity, 0, 2, RUNNING_MEAN)(jnp.arange(4)),
        ["RUNNING_MEAN", "`output`", "int32"],
    ),
    "rows cannot be added if ragged": (
        lambda: microbatch(lambda x: [x], 0, 4)(X),
        ["SUM", "`output[0]`", "(4, 2)", "(2, 2)", "CONCAT"],
    ),
    "too many microbatches": (
        lambda: early(3),
        ["`num_real_microbatches=3`", "6 rows", "are 2 microbatches"],
    ),
    "negative number of microbatches": (
        lambda: early(-1),
        ["`num_real_microbatches=-1`", "out of range"],
    ),
    "fractional number of microbatches": (
        lambda: early(jnp.array(1.0)),
        ["`num_real_microbatches`", "float32"],
    ),
    "several numbers of microbatches": (
        lambda: early(jnp.array([1, 2])),
        ["`num_real_microbatches`", "(2,)"],
    ),
    "out_axes": (
        lambda: micro_vmap(identity, out_axes=1),
        ["`out_axes`", "got 1", "jnp.moveaxis"],
    ),
    "weights of another shape": (
        lambda: weighted(jnp.ones(5)),
        ["`weights` has shape (5,)", "6 rows", "(6,)"],
    ),
    "one weight": (lambda: weighted(2.0), ["`weights` has shape ()", "(6,)"]),
    "complex weights": (
        lambda: weighted(jnp.ones(6, jnp.complex64)),
        ["`weights` has dtype complex64", "real"],
    ),
    "negative weights": (
        lambda: weighted(jnp.arange(6) - 2),
        ["`weights` must not be negative", "-2", "weight 0"],
    ),
    "weights in micro_vmap": (
        lambda: micro_vmap(identity, weights=jnp.ones((6, 1)))(X),
        ["`weights` has shape (6, 1)", "(6,)"],
    ),
    "weights in micro_grad": (
        lambda: micro_grad(pair, weights=jnp.ones(1))(X[0], X),
        ["`weights` has shape (1,)", "(6,)"],
    ),
    "two states": (
        lambda: microbatch(identity, 0, 2)(X, STATE, s=STATE),
        ["`args[1]` and `kwargs['s']`", "`eqx.nn.State`", "only one can be passed"],
    ),
    "two states in the output": (
        lambda: threaded(lambda x, s: (x, s, {"s": s})),
        ["`output[1]` and `output[2]['s']`", "`args[1]`", "Return only the last one"],
    ),
    "another structure of the state": (
        lambda: threaded(lambda x, s: (x, PART)),
        ["`output[1]`", "structure", "`args[1]`", "state.update"],
    ),
    "another dtype in the state": (
        lambda: threaded(lambda x, s: jax.tree.map(lambda a: a.astype(jnp.int32), s)),
        ["`output[", "int32", "`args[1]` it has (2,) and float32", "Cast"],
    ),
    "another shape in the state": (
        lambda: threaded(lambda x, s: (x, jax.tree.map(lambda a: a[:1], s))),
        ["`output[1][", "(1,)", "`args[1]` it has (2,) and float32"],
    ),
    "a custom accumulator for the state": (
        lambda: threaded(lambda x, s: {"a": (x.sum(), s)}, {"a": TOTAL}),
        ["`accumulator['a']`", "`output['a'][1]`", "passed on"],
    ),
    "rows that differ in the state": (
        lambda: micro_vmap(lambda x, s: (x, s.set(MODEL.index, x)), (0, None))(
            X, STATE
        ),
        ["`eqx.nn.State` in the output depends on the row", "vmap_fn", "microbatch"],
    ),
    "examples that differ in the state": (
        lambda: micro_grad(
            lambda w, x, s: (w @ x, s.set(MODEL.index, x)), True, keep_batch_dim=False
        )(X[0], X, STATE),
        ["`eqx.nn.State` in the output depends on the row"],
    ),
    "a key alone": (
        lambda: micro_vmap(lambda *, key: key)(key=jax.random.key(0)),
        ["No array with a batch axis", "no batch argument"],
    ),
    "the model as a batch": (
        lambda: value_and_grad(batch_argnums=(0, 1))(X, X),
        ["`batch_argnums=(0, 1)`", "first argument", "model first"],
    ),
    "the model as a batch from behind": (
        lambda: value_and_grad(batch_argnums=-2)(X, X),
        ["`batch_argnums=(-2,)`", "first argument"],
    ),
    "batch_argnums of micro_value_and_grad": (
        lambda: value_and_grad(batch_argnums=2)(X, X),
        ["`batch_argnums` contains 2", "2 positional"],
    ),
    "batch_argnames": (
        lambda: value_and_grad(batch_argnames="z")(X, X),
        ["`batch_argnames` contains 'z'"],
    ),
    "no batch_argnums in micro_value_and_grad": (
        lambda: value_and_grad(batch_argnums=()),
        ["`batch_argnums` and `batch_argnames` are both empty"],
    ),
    "no aux_accumulator": (
        lambda: value_and_grad(aux_accumulator={"a": "mean"}),
        ["`aux_accumulator['a']`", "'mean'"],
    ),
    "size zero in micro_value_and_grad": (
        lambda: micro_value_and_grad(pair, microbatch_size=0),
        ["`microbatch_size`", "got 0"],
    ),
    "reshape of a ragged batch": (
        lambda: reshape_batch_axis({"x": X}, 4),
        ["`microbatch_size=4`", "6 rows", "`tree['x']`"],
    ),
    "reshape to more than there is": (
        lambda: reshape_batch_axis(X, 12),
        ["`microbatch_size=12`", "6 rows", "`tree`"],
    ),
    "reshape along no axis": (
        lambda: reshape_batch_axis([X], 2, axis=2),
        ["`axis=2`", "`tree[0]`", "(6, 2)"],
    ),
    "reshape to nothing": (
        lambda: reshape_batch_axis(X, 0),
        ["`microbatch_size`", "got 0"],
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_message(name):
    call, fragments = ERRORS[name]
    with pytest.raises(ValueError) as caught:
        call()
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("fun", "arguments", "wrong"),
    [
        (microbatch, {"argnums": 0, "microbatch_size": 2.5}, "microbatch_size"),
        (microbatch, {"argnums": 0.0, "microbatch_size": 2}, "argnums"),
        (micro_vmap, {"microbatch_size": "2"}, "microbatch_size"),
        (micro_grad, {"keep_batch_dim": 1.0}, "keep_batch_dim"),
        (micro_value_and_grad, {"microbatch_size": "2"}, "microbatch_size"),
        (micro_vmap, {"weights": [1.0, 2.0]}, "weights"),
    ],
)
def test_types(fun, arguments, wrong):
    with pytest.raises(TypeError, match=f"{fun.__name__}: `{wrong}` must be "):
        fun(identity, **arguments)
