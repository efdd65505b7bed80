"""The probability that the frames of CTC give anything but the labels.

The loss is minus the logarithm of the probability of the labels. Where this is close to
1, rounding leaves few digits of the logarithm, or none. But then the probability of
everything else is small, and a sum of positive terms. In each frame, each state of the
forward recursion loses the sequences whose next class does not fit. In the end, those
without the last label are lost.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, Integer


def failure(
    log_p: Float[Array, "batch frames classes"],
    emits: Float[Array, "frames batch labels"],
    labels: Int32[Array, "batch labels"],
    number: Integer[Array, " batch"],
    repeats: Bool[Array, "batch labels"],
    pads: Bool[Array, "frames batch"],
    blank: Float[Array, "frames_and_1 batch labels_and_1"],
    label: Float[Array, "frames_and_1 batch labels"],
    blank_id: int,
) -> Float[Array, " batch"]:
    """The probability, from the states before each frame and after the last.

    Only the first `number` labels of an example count.
    """
    last = number[None, :, None]
    n = lax.broadcasted_iota(last.dtype, (1, *blank.shape[1:]), 2)
    is_label = n[..., :-1] < last
    blank_share = jnp.where(n <= last, jnp.exp(blank), 0)
    label_share = jnp.where(is_label, jnp.exp(label), 0)

    best, p_best, p_rest = _split(log_p, blank_id)
    is_best = is_label & (labels[None] == best)
    p_label = jnp.where(is_label & ~is_best, jnp.exp(emits), 0)
    # After n labels and a blank, the blank may follow, and the next label.
    p_next, is_next = _padded(p_label, 0), _padded(is_best, False)
    blank_loss = p_rest + (jnp.where(is_next, 0, p_best) - p_next)
    # After a label, it may follow itself, too, but an equal one may not.
    may_follow = ~_padded(repeats, True)[None, :, 1:]
    p_next = jnp.where(may_follow, p_next[..., 1:], 0)
    is_next = may_follow & is_next[..., 1:]
    label_loss = p_rest + jnp.where(is_best | is_next, 0, p_best) - p_label - p_next

    lost = jnp.sum(blank_share[:-1] * blank_loss, -1)
    lost = lost + jnp.sum(label_share[:-1] * jnp.maximum(label_loss, 0), -1)
    early = jnp.sum(jnp.where(n < last, blank_share[-1:], 0), -1)
    early = early + jnp.sum(jnp.where(n[..., 1:] < last, label_share[-1:], 0), -1)
    return jnp.sum(jnp.where(pads, 0, lost), 0) + early[0]


def _split(
    log_p: Float[Array, "batch frames classes"], blank_id: int
) -> tuple[
    Int32[Array, "frames batch 1"],
    Float[Array, "frames batch 1"],
    Float[Array, "frames batch 1"],
]:
    """The best class that is not blank, its probability, and the sum of all others.

    With these two out of the sum, what remains is not a difference.
    """
    classes = lax.broadcasted_iota(jnp.int32, log_p.shape, 2)
    log_p = jnp.where(classes == blank_id, -jnp.inf, log_p)
    top = jnp.max(log_p, -1, keepdims=True)
    # The first of the best: a reduction of pairs, as in `argmax`, takes twice as long.
    best = jnp.min(jnp.where(log_p == top, classes, log_p.shape[2]), -1, keepdims=True)
    rest = jnp.sum(jnp.exp(jnp.where(classes == best, -jnp.inf, log_p)), -1)
    first = lambda x: jnp.swapaxes(x, 0, 1)
    return first(best), first(jnp.exp(top)), first(rest[..., None])


def _padded(x: Array, value: float) -> Array:
    """`x` with one more element of the last axis."""
    widths = [(0, 0)] * (x.ndim - 1) + [(0, 1)]
    return jnp.pad(x, widths, constant_values=value)
