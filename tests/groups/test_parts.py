"""Rules in parts of a model: a part may lack what a rule was made for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt import groups

from .test_groups import MODEL


NO_DECAY = groups.path(r"\.bias$") | groups.module(eqx.nn.LayerNorm)
RULES = (
    groups.stacked(groups.path("stack"))
    | groups.matrices(groups.path("layers.*weight"), -1, -2)
    | groups.no_matrices(groups.path("embedding"))
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: eqopt.AdamW(0.1, weight_decay=0.5, mask=~NO_DECAY),
        lambda: eqopt.Masked(eqopt.Trace(0.9), groups.path("norm")),
        lambda: eqopt.StoreState(
            eqopt.Adam(0.1), eqopt.storage.BlockwiseQuantized(), NO_DECAY
        ),
        lambda: eqopt.SelectiveTransform(eqopt.Adam(0.1), freeze_mask=NO_DECAY),
        lambda: eqopt.Partition(
            {"head": eqopt.SGD(0.1), "weight": eqopt.SGD(0.2)},
            groups.label(
                {"head": groups.path("head"), "weight": groups.path("weight")}
            ),
        ),
        lambda: eqopt.Muon(0.1, weight_dimension_numbers=RULES),
    ],
    ids=["decay", "masked", "stored", "selective", "labels", "matrices"],
)
@pytest.mark.costly
def test_a_rule_may_choose_nothing_in_a_part(make):
    """In a group without biases and norms, these rules match no parameter."""
    labels = groups.label(
        {"head": groups.path("head.weight"), "rest": groups.everything}
    )
    opt = eqopt.Partition({"head": make(), "rest": eqopt.SGD(0.1)}, labels)
    grads = jax.tree.map(jnp.ones_like, eqx.filter(MODEL, eqx.is_inexact_array))
    new, state = eqx.filter_jit(opt.step)(grads, opt.init(MODEL), MODEL)
    assert not jnp.array_equal(new.head.weight, MODEL.head.weight)
    assert eqx.tree_equal(opt.eval_params(state, new), new)
    groups.routes(opt, MODEL)


def test_a_fallback_takes_the_same_rules():
    """Its part has no matrices."""
    fallback = eqopt.AdamMini(1e-3, block_axes=RULES)
    opt = eqopt.Muon(0.02, weight_dimension_numbers=RULES, fallback=fallback)
    nu = eqopt.tree.get(opt.init(MODEL), "nu")
    assert nu.embedding.weight is not None and nu.head.weight is None


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.Masked(eqopt.Trace(0.9), groups.path("bias")),
        eqopt.Partition(
            {"bias": eqopt.Trace(0.9), "rest": eqopt.Scale(2.0)},
            groups.label({"bias": groups.path("bias"), "rest": groups.everything}),
        ),
        eqopt.ScaleByTree(
            groups.layerwise_decay(0.5, groups.path("bias"), ~groups.path("bias"))
        ),
        eqopt.Orthogonalize(weight_dimension_numbers=RULES),
    ],
    ids=lambda opt: type(opt).__name__,
)
def test_gradients_of_a_part_without_the_model(opt):
    """No gradient matches some of the rules."""
    state = opt.init(MODEL)
    grads = jax.tree.map(jnp.ones_like, eqx.filter(MODEL, eqx.is_inexact_array))
    grads = eqx.filter(grads, groups.path("head.weight")(grads))
    updates, new = opt.update(grads, state)
    assert updates.head.weight.shape == grads.head.weight.shape
    assert len(jax.tree.leaves(updates)) == 1 and eqx.tree_equal(new, state)
