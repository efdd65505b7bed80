"""The forward recursion of CTC, and its derivative.

After n labels, a sequence ends with a blank (there are N + 1 such states) or with the
n-th label (N states). In a frame with the log-probabilities b of the blank and e of the
label,

    blank'(n) = b + log(exp blank(n) + exp label(n))
    label'(n) = e(n) + log(exp label(n) + exp from(n))

where from(n) is blank(n - 1) if the label repeats the previous one, because these need
a blank between them. Otherwise, from(n) is the first logarithm for n - 1. So a frame
needs two additions of logarithms. The derivative only needs the shares of the two
summands in each. These are computed from the states of all frames at once, outside the
loop, so the loop over the tangents only multiplies and adds. JAX transposes it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from ._logarithms import logaddexp


def _forward(
    blanks: Float[Array, "frames batch"],
    emits: Float[Array, "frames batch labels"],
    repeats: Bool[Array, "batch labels"],
    pads: Bool[Array, "frames batch"],
    blank_start: Float[Array, "batch labels_and_1"],
    label_start: Float[Array, "batch labels"],
) -> tuple[
    Float[Array, "frames batch labels_and_1"], Float[Array, "frames batch labels"]
]:
    """Both kinds of states after every frame. Padded frames do not change them.

    All logarithms are finite. The start has no derivative.
    """

    def frame(states: Any, inputs: Any) -> Any:
        blank, label = states
        b, e, pad = inputs
        either, source = _sources(blank, label, repeats)
        new = either + b[:, None], logaddexp(label, source) + e
        old = lambda new, old: jnp.where(pad[:, None], old, new)
        states = jax.tree.map(old, new, states)
        return states, states

    return lax.scan(frame, (blank_start, label_start), (blanks, emits, pads))[1]


def _sources(blank: Any, label: Any, repeats: Any) -> tuple[Any, Any]:
    """The states with either ending, and the states that a new label follows."""
    either = logaddexp(blank[..., 1:], label)
    either = jnp.concatenate([blank[..., :1], either], -1)
    return either, jnp.where(repeats, blank[..., :-1], either[..., :-1])


def _shares(
    blank: Any, label: Any, repeats: Any, pads: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """The share of each state that comes from each state of the previous frame."""
    _, source = _sources(blank, label, repeats)
    pads = pads[..., None]
    stay = jax.nn.sigmoid(label - source)
    split = jax.nn.sigmoid(blank[..., 1:] - label)
    from_blank = jnp.concatenate([jnp.ones_like(blank[..., :1]), split], -1)
    step = jnp.where(repeats, 1, from_blank[..., :-1])
    return (
        jnp.where(pads, 1, from_blank),  # blank(n) to blank(n)
        jnp.where(pads, 0, 1 - split),  # label(n) to blank(n)
        jnp.where(pads, 1, stay),  # label(n) to label(n)
        jnp.where(pads, 0, (1 - stay) * step),  # blank(n - 1) to label(n)
        jnp.where(pads, 0, (1 - stay) * (1 - step)),  # label(n - 1) to label(n)
    )


def _forward_jvp(primals: Any, tangents: Any) -> Any:
    blanks, _, repeats, pads, blank_start, label_start = primals
    out = forward(*primals)
    before = lambda start, states: jnp.concatenate([start[None], states[:-1]])
    if not len(blanks):
        return out, jax.tree.map(jnp.zeros_like, out)
    shares = _shares(
        before(blank_start, out[0]), before(label_start, out[1]), repeats, pads
    )
    added = (
        jnp.where(pads, 0, tangents[0])[..., None],
        jnp.where(pads[..., None], 0, tangents[1]),
    )

    def frame(states: Any, inputs: Any) -> Any:
        blank, label = states
        (keep, close, stay, step, skip), (b, e) = inputs
        left = lambda x: jnp.pad(x, ((0, 0), (1, 0)))
        states = (
            keep * blank + left(close * label) + b,
            stay * label + step * blank[:, :-1] + skip * left(label)[:, :-1] + e,
        )
        return states, states

    start = jnp.zeros_like(blank_start), jnp.zeros_like(label_start)
    return out, lax.scan(frame, start, (shares, added))[1]


forward = jax.custom_jvp(_forward)
forward.defjvp(_forward_jvp)
