"""Step by step against Optax, over trees, dtypes, hyperparameters and masks."""

import functools
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqopt

from ..interpreter import interpreted
from ..methods import BY_FAMILY, METHODS
from . import cases


# Optax does not run under strict promotion.
pytestmark = pytest.mark.usefixtures("standard_promotion")


OTHERS = [
    importlib.import_module(f"{cases.__name__}.{module.name}").CASES
    for module in pkgutil.iter_modules(cases.__path__)
]
CASES = {
    name: case
    for family in [*(method.cases for method in METHODS.values()), *OTHERS]
    for name, case in family.items()
}
# Two of each family and kind; all others are in the long tail.
FIRST = [[next(iter(m.cases)) for m in ms if m.cases] for ms in BY_FAMILY.values()]
QUICK = {name for names in FIRST for name in names[:2]}
# Each method in each precision; its other cases in float32.
ALL_FIRST = {name for names in FIRST for name in names}
ALL_FIRST |= {next(iter(others)) for others in OTHERS}
QUICK |= {name for others in OTHERS for name in [*others][:4:2]}

TOLERANCES = {
    # Ours keeps float32 from one end of a chain to the other; Optax rounds in between.
    jnp.float32: {"rtol": 1e-5, "atol": 1e-6},
    jnp.float16: {"rtol": 2e-2, "atol": 2e-2},
    jnp.bfloat16: {"rtol": 1e-1, "atol": 1e-1},
}


@functools.cache
def normal(seed, shapes):
    """The same numbers for all cases, as most have the same shapes."""
    keys = jr.split(jr.key(seed), len(shapes))
    leaves = [jr.normal(k, s, jnp.float32) for k, s in zip(keys, shapes, strict=True)]
    return [np.asarray(leaf) for leaf in leaves]


def random_tree(seed, shapes, dtype):
    leaves = [
        jax.device_put(leaf.astype(dtype)) for leaf in normal(seed, tuple(shapes))
    ]
    return {"first": leaves[0], "rest": [tuple(leaves[1:]), None]}


def compare(case, params, grads_of, steps, tolerance):
    """Both from the same parameters on the same gradients; updates agree in each step."""
    ours, theirs = case.ours, optax.with_extra_args_support(case.theirs)

    def advance(opt, apply, grads, state, p):
        updates, state = opt.update(grads, state, p, **case.extra(p))
        return updates, state, apply(p, updates)

    @interpreted
    def both(grads, mine, reference):
        return (
            advance(ours, eqopt.apply_updates, grads, *mine),
            advance(theirs, optax.apply_updates, grads, *reference),
        )

    mine, reference = [ours.init(params), params], [theirs.init(params), params]
    for i in range(steps):
        (updates, *mine), (their_updates, *reference) = both(
            grads_of(i), mine, reference
        )
        for a, b in zip(
            jax.tree.leaves(updates), jax.tree.leaves(their_updates), strict=True
        ):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name,
            dtype,
            id=f"{name}-{dtype.__name__}",
            marks=[] if name in QUICK and dtype == jnp.float32 else pytest.mark.slow,
        )
        for name, case in CASES.items()
        for dtype in (case.dtypes if name in ALL_FIRST else case.dtypes[:1])
    ],
)
@pytest.mark.costly
def test_trajectory(name, dtype):
    case = CASES[name]
    params = random_tree(0, case.shapes, dtype)
    grads_of = lambda i: random_tree(i + 1, case.shapes, dtype)
    steps, tolerance = 4, TOLERANCES[dtype]
    if dtype == jnp.float32:
        steps, tolerance = 12, {"rtol": case.rtol, "atol": case.rtol / 10}
    compare(case, params, grads_of, steps, tolerance)


@pytest.mark.parametrize("reset_state", [False, True])
@pytest.mark.slow
def test_lookahead(reset_state):
    """With the pair of parameters that Optax needs, and with plain ones."""
    shapes = [(3, 4), (4,)]
    params = random_tree(0, shapes, jnp.float32)
    grads_of = lambda i: random_tree(i + 1, shapes, jnp.float32)
    ours = eqopt.Lookahead(eqopt.Adam(0.1), 3, 0.4, reset_state)
    theirs = optax.lookahead(optax.adam(0.1), 3, 0.4, reset_state)
    pair = eqopt.LookaheadParams.init_synced(params)
    plain, their_pair = params, optax.LookaheadParams.init_synced(params)
    states = ours.init(pair), ours.init(plain), theirs.init(their_pair)
    for i in range(8):
        grads = grads_of(i)
        updates, s0 = ours.update(grads, states[0], pair)
        pair = eqopt.apply_updates(pair, updates)
        updates, s1 = ours.update(grads, states[1], plain)
        plain = eqopt.apply_updates(plain, updates)
        updates, s2 = theirs.update(grads, states[2], their_pair)
        their_pair = optax.apply_updates(their_pair, updates)
        states = s0, s1, s2
        slow = ours.eval_params(s1, plain)
        for mine, reference in (
            (pair.fast, their_pair.fast),
            (pair.slow, their_pair.slow),
            (plain, their_pair.fast),
            (slow, their_pair.slow),
            (ours.eval_params(s0, pair), their_pair.slow),
        ):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6),
                mine,
                reference,
            )


def test_apply_if_finite_rejects_and_gives_up_like_optax():
    shapes = [(3, 4), (4,)]
    params = random_tree(0, shapes, jnp.float32)
    ours = eqopt.ApplyIfFinite(eqopt.SGD(0.1, 0.9), 2)
    theirs = optax.apply_if_finite(optax.sgd(0.1, 0.9), 2)
    bad = {1, 4, 5, 6, 7}
    state, their_state = ours.init(params), theirs.init(params)
    for i in range(9):
        grads = random_tree(i, shapes, jnp.float32)
        if i in bad:
            grads["first"] = grads["first"].at[0, 0].set(jnp.inf if i % 2 else jnp.nan)
        updates, state = ours.update(grads, state, params)
        their_updates, their_state = theirs.update(grads, their_state, params)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, 1e-6), updates, their_updates
        )
        assert state.last_finite == their_state.last_finite
        assert state.total_notfinite == their_state.total_notfinite
        # Ours does not count on once it has given up.
        assert state.notfinite_count == min(their_state.notfinite_count, 3)


@pytest.mark.parametrize("bad", [None, jnp.nan, jnp.inf])
def test_what_to_skip(bad):
    """The reports on gradients, finite or not, agree with Optax's."""
    grads = random_tree(0, [(3, 4), (4,)], jnp.float32)
    if bad is not None:
        grads["first"] = grads["first"].at[0, :2].set(bad)
    large = functools.partial(optax.skip_large_updates, max_squared_norm=4.0)
    for ours, theirs in (
        (eqopt.SkipNotFinite(), optax.skip_not_finite),
        (eqopt.SkipLargeUpdates(4.0), large),
    ):
        (skip, said), (expected, also_said) = (
            f(grads, 0, None) for f in (ours, theirs)
        )
        assert skip == expected
        assert said.keys() == also_said.keys()
        for key, value in said.items():
            np.testing.assert_allclose(value, also_said[key], 1e-6)


def test_updates_of_parameters():
    shapes = [(3, 4), (4,)]
    new, old = (random_tree(i, shapes, jnp.float32) for i in range(2))
    same = lambda a, b: jax.tree.map(np.testing.assert_allclose, a, b)
    same(eqopt.apply_updates(old, new), optax.apply_updates(old, new))
    same(
        eqopt.incremental_update(new, old, 0.3), optax.incremental_update(new, old, 0.3)
    )
    for steps in range(7):
        same(
            eqopt.periodic_update(new, old, jnp.asarray(steps), 3),
            optax.periodic_update(new, old, jnp.asarray(steps), 3),
        )
