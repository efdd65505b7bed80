"""Combinators."""

import jax
import optax

import eqopt

from ..case import LINEARS, Case, is_matrix, tree_mask


def labels(params):
    return jax.tree.map(lambda p: "matrix" if p.ndim >= 2 else "other", params)


CASES = {
    "chain": Case(
        eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Trace(0.9), eqopt.AdamW(0.1)),
        optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.9), optax.adamw(0.1)),
    ),
    "named chain": Case(
        eqopt.NamedChain(momentum=eqopt.Trace(0.9), clip=eqopt.ClipByGlobalNorm(1.0)),
        optax.named_chain(
            ("momentum", optax.trace(0.9)), ("clip", optax.clip_by_global_norm(1.0))
        ),
    ),
    "masked": Case(
        eqopt.Masked(eqopt.Adam(0.1), is_matrix),
        optax.masked(optax.adam(0.1), is_matrix),
    ),
    "masked, norm": Case(
        eqopt.Masked(eqopt.ClipByGlobalNorm(0.3), is_matrix),
        optax.masked(optax.clip_by_global_norm(0.3), is_matrix),
    ),
    "masked, tree": Case(
        eqopt.Masked(eqopt.Lion(0.1), tree_mask),
        optax.masked(optax.lion(0.1), tree_mask),
    ),
    "freeze": Case(
        eqopt.Chain(eqopt.AdamW(0.1), eqopt.Freeze(is_matrix)),
        optax.chain(optax.adamw(0.1), optax.freeze(is_matrix)),
    ),
    "partition": Case(
        eqopt.Partition(
            {"matrix": eqopt.AdamW(0.1), "other": eqopt.SGD(LINEARS[0], 0.9)}, labels
        ),
        optax.partition(
            {"matrix": optax.adamw(0.1), "other": optax.sgd(LINEARS[1], 0.9)}, labels
        ),
    ),
    "partition, norm of a group": Case(
        eqopt.Partition(
            {"matrix": eqopt.ClipByGlobalNorm(0.3), "other": eqopt.SetToZero()}, labels
        ),
        optax.partition(
            {"matrix": optax.clip_by_global_norm(0.3), "other": optax.set_to_zero()},
            labels,
        ),
    ),
    "selective": Case(
        eqopt.SelectiveTransform(
            eqopt.Adam(0.1), freeze_mask={"first": True, "rest": False}
        ),
        optax.selective_transform(
            optax.adam(0.1), freeze_mask={"first": True, "rest": False}
        ),
    ),
}
