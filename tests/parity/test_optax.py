"""Step by step against Optax, over trees, dtypes, hyperparameters and masks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

import eqopt


# Optax does not run under strict promotion.
pytestmark = pytest.mark.usefixtures("standard_promotion")


def is_matrix(params):
    return jax.tree.map(lambda p: p.ndim >= 2, params)


def tree_mask(params):
    """A mask that is a tree, fixed beforehand."""
    flags = [i % 2 == 0 for i in range(len(jax.tree.leaves(params)))]
    return jax.tree.unflatten(jax.tree.structure(params), flags)


COSINE = (
    eqopt.schedules.WarmupCosineDecay(0.0, 0.1, 3, 10, 0.01),
    optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 10, 0.01),
)
LINEAR = eqopt.schedules.Linear(0.1, 0.02, 7), optax.linear_schedule(0.1, 0.02, 7)


def every_other_large(updates, gradient_step, params):
    del gradient_step, params
    norm = optax.tree.norm(updates)
    return norm > 5.0, {"norm": norm}


CASES = {
    "identity": (eqopt.Identity(), optax.identity()),
    "set_to_zero": (eqopt.SetToZero(), optax.set_to_zero()),
    "scale": (eqopt.Scale(-0.3), optax.scale(-0.3)),
    "schedule": (eqopt.ScaleBySchedule(LINEAR[0]), optax.scale_by_schedule(LINEAR[1])),
    "learning_rate": (
        eqopt.ScaleByLearningRate(0.1, flip_sign=False),
        optax.scale_by_learning_rate(0.1, flip_sign=False),
    ),
    "clip": (eqopt.Clip(0.4), optax.clip(0.4)),
    "global norm, clipping": (
        eqopt.ClipByGlobalNorm(0.7),
        optax.clip_by_global_norm(0.7),
    ),
    "global norm, not clipping": (
        eqopt.ClipByGlobalNorm(1e3),
        optax.clip_by_global_norm(1e3),
    ),
    "decay": (eqopt.AddDecayedWeights(0.2), optax.add_decayed_weights(0.2)),
    "decay, masked": (
        eqopt.AddDecayedWeights(0.2, is_matrix),
        optax.add_decayed_weights(0.2, is_matrix),
    ),
    "trace": (eqopt.Trace(0.8), optax.trace(0.8)),
    "trace, nesterov": (eqopt.Trace(0.8, True), optax.trace(0.8, True)),
    "sgd": (eqopt.SGD(0.1), optax.sgd(0.1)),
    "sgd, momentum": (eqopt.SGD(LINEAR[0], 0.9), optax.sgd(LINEAR[1], 0.9)),
    "sgd, nesterov": (
        eqopt.SGD(0.1, 0.5, nesterov=True),
        optax.sgd(0.1, 0.5, nesterov=True),
    ),
    "adam": (eqopt.Adam(0.1), optax.adam(0.1)),
    "adam, other": (
        eqopt.Adam(COSINE[0], 0.5, 0.9, 1e-3, 1e-4),
        optax.adam(COSINE[1], 0.5, 0.9, 1e-3, 1e-4),
    ),
    "adam, nesterov": (
        eqopt.Adam(0.1, b1=0.8, nesterov=True),
        optax.adam(0.1, b1=0.8, nesterov=True),
    ),
    "adam, float16 mu": (
        eqopt.Adam(0.1, mu_dtype=jnp.float16),
        optax.adam(0.1, mu_dtype=jnp.float16),
    ),
    "adamw": (eqopt.AdamW(0.1), optax.adamw(0.1)),
    "adamw, masked": (
        eqopt.AdamW(LINEAR[0], weight_decay=0.3, mask=is_matrix),
        optax.adamw(LINEAR[1], weight_decay=0.3, mask=is_matrix),
    ),
    "adamw, other": (
        eqopt.AdamW(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0, nesterov=True),
        optax.adamw(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0, nesterov=True),
    ),
    "lion": (eqopt.Lion(0.1), optax.lion(0.1)),
    "lion, other": (
        eqopt.Lion(LINEAR[0], 0.5, 0.3, weight_decay=0.1, mask=is_matrix),
        optax.lion(LINEAR[1], 0.5, 0.3, weight_decay=0.1, mask=is_matrix),
    ),
    "lion, smooth": (
        eqopt.ScaleByLion(0.8, 0.9, mode="smooth", smooth_beta=3.0),
        optax.scale_by_lion(0.8, 0.9, mode="smooth", smooth_beta=3.0),
    ),
    "lion, refined": (
        eqopt.ScaleByLion(0.8, 0.9, mode="refined"),
        optax.scale_by_lion(0.8, 0.9, mode="refined"),
    ),
    "lion, b2 = 0": (eqopt.ScaleByLion(0.8, 0.0), optax.scale_by_lion(0.8, 0.0)),
    "chain": (
        eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Trace(0.9), eqopt.AdamW(0.1)),
        optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.9), optax.adamw(0.1)),
    ),
    "named chain": (
        eqopt.NamedChain(momentum=eqopt.Trace(0.9), clip=eqopt.ClipByGlobalNorm(1.0)),
        optax.named_chain(
            ("momentum", optax.trace(0.9)), ("clip", optax.clip_by_global_norm(1.0))
        ),
    ),
    "masked": (
        eqopt.Masked(eqopt.Adam(0.1), is_matrix),
        optax.masked(optax.adam(0.1), is_matrix),
    ),
    "masked, norm": (
        eqopt.Masked(eqopt.ClipByGlobalNorm(0.3), is_matrix),
        optax.masked(optax.clip_by_global_norm(0.3), is_matrix),
    ),
    "masked, tree": (
        eqopt.Masked(eqopt.Lion(0.1), tree_mask),
        optax.masked(optax.lion(0.1), tree_mask),
    ),
    "freeze": (
        eqopt.Chain(eqopt.AdamW(0.1), eqopt.Freeze(is_matrix)),
        optax.chain(optax.adamw(0.1), optax.freeze(is_matrix)),
    ),
    "multi_steps": (
        eqopt.MultiSteps(eqopt.AdamW(0.1), 3),
        optax.MultiSteps(optax.adamw(0.1), 3),
    ),
    "multi_steps, sum": (
        eqopt.MultiSteps(eqopt.Adam(LINEAR[0]), 4, use_grad_mean=False),
        optax.MultiSteps(optax.adam(LINEAR[1]), 4, use_grad_mean=False),
    ),
    "multi_steps, schedule": (
        eqopt.MultiSteps(eqopt.Adam(0.1), lambda step: 1 + step),
        optax.MultiSteps(optax.adam(0.1), lambda step: 1 + step),
    ),
    "multi_steps, skip": (
        eqopt.MultiSteps(eqopt.Adam(0.1), 2, should_skip_update_fn=every_other_large),
        optax.MultiSteps(optax.adam(0.1), 2, should_skip_update_fn=every_other_large),
    ),
    "apply_if_finite": (
        eqopt.ApplyIfFinite(eqopt.Adam(0.1), 2),
        optax.apply_if_finite(optax.adam(0.1), 2),
    ),
    "flatten": (eqopt.Flatten(eqopt.AdamW(0.1)), optax.flatten(optax.adamw(0.1))),
    "flatten, norm": (
        eqopt.Flatten(eqopt.ClipByGlobalNorm(0.3)),
        optax.flatten(optax.clip_by_global_norm(0.3)),
    ),
}

TOLERANCES = {
    # Ours keeps float32 from one end of a chain to the other; Optax rounds in between.
    jnp.float32: {"rtol": 1e-5, "atol": 1e-6},
    jnp.float16: {"rtol": 2e-2, "atol": 2e-2},
    jnp.bfloat16: {"rtol": 1e-1, "atol": 1e-1},
}

# Optax multiplies the float16 moment by b1 in float16.
LOOSER = {("adam, float16 mu", jnp.float32): {"rtol": 2e-3, "atol": 2e-4}}


def random_tree(key, shapes, dtype):
    keys = jr.split(key, len(shapes))
    leaves = [jr.normal(k, s, jnp.float32) for k, s in zip(keys, shapes, strict=True)]
    leaves = [leaf.astype(dtype) for leaf in leaves]
    return {"first": leaves[0], "rest": [tuple(leaves[1:]), None]}


def compare(ours, theirs, params, grads_of, steps, tolerance):
    """Both from the same parameters on the same gradients; updates agree in each step."""
    update = eqx.filter_jit(ours.update)
    their_update = jax.jit(theirs.update)
    state, their_state = ours.init(params), theirs.init(params)
    p = their_p = params
    for i in range(steps):
        grads = grads_of(i)
        updates, state = update(grads, state, p)
        their_updates, their_state = their_update(grads, their_state, their_p)
        for a, b in zip(
            jax.tree.leaves(updates), jax.tree.leaves(their_updates), strict=True
        ):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(a, b, **tolerance)
        p = eqopt.apply_updates(p, updates)
        their_p = optax.apply_updates(their_p, their_updates)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(jnp.float32, id="float32"),
        pytest.param(jnp.bfloat16, id="bfloat16", marks=pytest.mark.slow),
        pytest.param(jnp.float16, id="float16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_trajectory(name, dtype):
    ours, theirs = CASES[name]
    shapes = [(3, 4), (4,), (), (2, 3, 2)]
    params = random_tree(jr.key(0), shapes, dtype)
    grads_of = lambda i: random_tree(jr.key(i + 1), shapes, dtype)
    tolerance = LOOSER.get((name, dtype), TOLERANCES[dtype])
    compare(ours, theirs, params, grads_of, 12, tolerance)


@settings(max_examples=15, deadline=None)
@given(
    shapes=st.lists(
        st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=4
    ),
    seed=st.integers(0, 2**31 - 1),
    scale=st.sampled_from([1e-20, 1e-6, 1.0, 1e6]),
)
def test_random_trees(shapes, seed, scale):
    """A long chain over trees with empty, scalar and repeated shapes, at any scale."""
    ours = eqopt.Chain(
        eqopt.ClipByGlobalNorm(1.0),
        eqopt.AdamW(LINEAR[0], weight_decay=0.1, mask=is_matrix),
    )
    theirs = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(LINEAR[1], weight_decay=0.1, mask=is_matrix),
    )
    params = random_tree(jr.key(seed), shapes, jnp.float32)

    def grads_of(i):
        grads = random_tree(jr.fold_in(jr.key(seed), i), shapes, jnp.float32)
        return jax.tree.map(lambda g: g * scale, grads)

    compare(ours, theirs, params, grads_of, 3, TOLERANCES[jnp.float32])


@pytest.mark.parametrize("reset_state", [False, True])
def test_lookahead(reset_state):
    """With the pair of parameters that Optax wants, and with plain ones."""
    shapes = [(3, 4), (4,)]
    params = random_tree(jr.key(0), shapes, jnp.float32)
    grads_of = lambda i: random_tree(jr.key(i + 1), shapes, jnp.float32)
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
    params = random_tree(jr.key(0), shapes, jnp.float32)
    ours = eqopt.ApplyIfFinite(eqopt.SGD(0.1, 0.9), 2)
    theirs = optax.apply_if_finite(optax.sgd(0.1, 0.9), 2)
    bad = {1, 4, 5, 6, 7}
    state, their_state = ours.init(params), theirs.init(params)
    for i in range(9):
        grads = random_tree(jr.key(i), shapes, jnp.float32)
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


def test_updates_of_parameters():
    shapes = [(3, 4), (4,)]
    new, old = (random_tree(jr.key(i), shapes, jnp.float32) for i in range(2))
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
