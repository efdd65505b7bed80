"""Both branches of a condition must return one tree; errors name the difference."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt._trees.control import filter_cond, while_loop

from .rows.behaviour import BRANCHING
from .test_eval_params import WRAPPERS


def both(x, y, pred=True):
    traced = eqx.filter_jit(lambda pred: filter_cond(pred, lambda: x, lambda: y))
    return traced(jnp.asarray(pred))


class Somebody:
    def step(self):
        pass


SOMEBODY = Somebody()


def text(n):
    return "".join(["te", "xt"][:n])


SAME = {
    "None": (None, None),
    "number": (10**30, 10**30),
    "text": (text(2), text(2)),
    "method": (SOMEBODY.step, SOMEBODY.step),
    "static field": (eqx.nn.Lambda(jnp.tanh), eqx.nn.Lambda(jnp.tanh)),
}
DIFFERENT = {
    "integer and float": (1, 1.0, r"is 1 .*, and 1\.0 if not"),
    "functions": (jnp.tanh, jnp.sin, "is .*tanh.*, and .*sin"),
    "None and number": (None, 1, "is None .*, and 1"),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same(name):
    x, y = SAME[name]
    out = both({"a": [x, jnp.ones(2)]}, {"a": [y, jnp.zeros(2)]})
    assert type(out["a"][0]) is type(x) and jnp.all(out["a"][1] == 1)


@pytest.mark.parametrize("pred", [True, False])
@pytest.mark.parametrize("name", DIFFERENT)
def test_different_leaves(name, pred):
    x, y, expected = DIFFERENT[name]
    match = rf"at `\['a'\]\[0\]`, the tree {expected}"
    with pytest.raises(ValueError, match=match):
        both({"a": [x, jnp.ones(2)]}, {"a": [y, jnp.zeros(2)]}, pred)


def test_arrays_of_numpy_are_arrays():
    out = both({"p": np.ones(2, np.float32)}, {"p": np.zeros(2, np.float32)}, False)
    assert isinstance(out["p"], jax.Array) and not out["p"].any()


def test_without_tracing():
    """Then only one branch runs, so there is nothing to compare."""
    with jax.disable_jit():
        assert both({"a": 1}, {"a": 2}, False) == {"a": 2}
    assert filter_cond(jnp.asarray(True), lambda: 1, lambda: 2) == 1


class Counting(eqopt.AbstractTransformation):
    """A user's transformation that counts with a Python number."""

    def init(self, params):
        return {"count": 0}

    def update(self, updates, state, params=None, **extra):
        return updates, {"count": state["count"] + 1}


@pytest.mark.parametrize(
    "name", sorted({*BRANCHING, "SAM"} - {"Lookahead", "SkipStep"})
)
def test_states_that_change_without_arrays(name):
    """Otherwise, the count of the first branch would be kept, even if not taken."""
    opt, params = WRAPPERS[name](Counting()), {"w": jnp.ones(2)}
    state = opt.init(params)
    with pytest.raises(
        ValueError, match=r"\['count'\]`, the tree is .*must be an array"
    ):
        jax.eval_shape(lambda g, p: opt.step(g, state, p)[0], params, params)


def test_what_varies_between_devices():
    """Inside `shard_map`, a value may vary in one branch, or after a round or two."""

    def work(same, own):
        chosen = [
            filter_cond(pred, lambda: (own, same), lambda: (same, own))
            for pred in (same > 0, own > 2)
        ]
        start = (jnp.zeros((), jnp.int32), same, same)
        body = lambda now: (now[0] + 1, now[1] + now[2], own)
        looped = while_loop(lambda now: now[0] < 3, body, start)
        same_again = filter_cond(same > 0, lambda: same + 1, lambda: same)
        return jax.tree.map(lambda x: x.reshape(1), (chosen, looped[1:])), same_again

    spec, auto = jax.sharding.PartitionSpec, jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((4,), ("x",), axis_types=(auto,))
    mapped = jax.shard_map(
        lambda same, own: work(same, own[0]),
        mesh=mesh,
        in_specs=(spec(), spec("x")),
        out_specs=(spec("x"), spec()),  # the same on all devices, as in both branches
    )
    own = jnp.arange(4.0)
    (chosen, looped), same_again = jax.jit(mapped)(jnp.asarray(7.0), own)
    sevens = 7 + 0 * own
    one, other = jnp.where(own > 2, own, 7), jnp.where(own > 2, 7, own)
    assert eqx.tree_equal(chosen, [(own, sevens), (one, other)])
    assert eqx.tree_equal(looped, (7 + 7 + 2 * own, own))
    assert same_again == 8
