"""Every error of `clipped_grad` names the argument, what was found and what to do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqopt.microbatching import (
    AccumulationType,
    clipped_grad,
    micro_grad,
    per_example_grad_norms,
)

from .subjects import Recurrent, call, rows, score


X, W = rows(3), jnp.ones((3, 2))
TWO = {"a": W, "b": W}


def fun(w, x):
    return score(x @ w)


def of_two(w, x):
    return score(x @ w["a"]) + score(x @ w["b"])


def clipped(*args, **kwargs):
    return clipped_grad(fun, 1.0, **kwargs)(*args)


def with_state(w, x):
    _, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
    return fun(w, x), state


def norms(fun, has_aux=False):
    return lambda: per_example_grad_norms(fun, has_aux)(W, X)


# A call, and what the message says.
ERRORS = [
    (
        lambda: clipped(W, X, accumulator=AccumulationType.CONCAT),
        ["`accumulator`", "RUNNING_MEAN", "CONCAT"],
    ),
    (lambda: clipped_grad(fun, jnp.ones(2)), ["`l2_norm_clip`", "(2,)"]),
    (
        lambda: clipped_grad(fun, {"x": 1.0, "y": -2.0}, groups="x"),
        ["`l2_norm_clip`", "-2.0"],
    ),
    (
        lambda: clipped_grad(of_two, {"x": 1.0}, groups={"a": "x", "b": "y"})(TWO, X),
        ["no entry for ['y']", "['x']"],
    ),
    (
        lambda: per_example_grad_norms(of_two, groups={"a": "x"})(TWO, X),
        ["`groups`", "`params`", "['b']"],
    ),
    (
        lambda: per_example_grad_norms(of_two, groups={"a": "x", "b": None})(TWO, X),
        ["`groups` has None at `['b']`", "string"],
    ),
    (
        lambda: clipped(W, X, argnums=(0, 1)),
        ["`argnums` and `batch_argnums` both contain argument 1", "`micro_grad`"],
    ),
    (norms(lambda w, x: (fun(w, x), x)), ["floating-point scalar", "`has_aux=True`"]),
    (norms(fun, True), ["`has_aux=True`", "pair", "but returned"]),
    (
        lambda: clipped_grad(with_state, 1.0, True)(W, X),
        ["`eqx.nn.State`", "`eqx.nn.GroupNorm`"],
    ),
    (
        lambda: clipped_grad(
            call, 1.0, keep_batch_dim=False, method="ghost", microbatch_size=2
        )(Recurrent(), rows(3, 3)),
        ["`method` is 'ghost'", "`.cell.weight_ih`", "`.cell.weight_hh`", "'auto'"],
    ),
]


@pytest.mark.parametrize(("call", "parts"), ERRORS)
def test_errors(call, parts):
    with pytest.raises(ValueError) as raised:
        call()
    for part in parts:
        assert part in str(raised.value)


def of_a_batch(w, x):
    return jnp.mean(jax.vmap(lambda x: x @ w)(x))


def of_one(w, x):
    return w @ x


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(
    "make", [lambda *args, **kwargs: clipped_grad(*args, 1.0, **kwargs), micro_grad]
)
def test_a_loss_of_a_batch_for_a_loss_of_one_example(make, keeps):
    grad_fn = make(of_one if keeps else of_a_batch, keep_batch_dim=keeps)
    with pytest.raises((TypeError, ValueError)) as error:
        grad_fn(jnp.ones(2), jnp.ones((3, 2)))
    fixes = ["If it takes a batch, omit", "pass `keep_batch_dim=False`"]
    assert fixes[keeps] in error.value.__notes__[-1]
