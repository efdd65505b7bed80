"""Connectionist temporal classification: labels without alignment."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int32, Integer, Real

from .._arguments.checks import check_interval
from .._types import Interval, RealScalarLike
from ..numerics._numerics import nan_where
from ._inputs import (
    as_scalar,
    at_least_int32,
    is_label,
    log_softmax,
    logaddexp,
    one_value_each,
    pick,
    widen,
    with_derivatives_of,
)


_Frames: TypeAlias = Real[ArrayLike, "batch frames"] | Bool[ArrayLike, "batch frames"]
_Labels: TypeAlias = Real[ArrayLike, "batch labels"] | Bool[ArrayLike, "batch labels"]


def ctc_loss(
    logits: Float[Array | np.ndarray, "batch frames classes"],
    logit_paddings: _Frames,
    labels: Integer[ArrayLike, "batch labels"],
    label_paddings: _Labels,
    *,
    blank_id: int = 0,
    log_epsilon: RealScalarLike = -1e5,
) -> Float[Array, " batch"]:
    r"""The CTC loss: labels in their order, but at unknown times.

    $$\ell(x, y) = -\log \sum_{\pi \in A(y)} \prod_{t=1}^T p_t(\pi_t), \qquad
      p_t(k) = \frac{e^{x_{tk}}}{\sum_j e^{x_{tj}}}$$

    where $A(y)$ is the set of all sequences $\pi$ of $T$ classes that become $y$ if
    runs of equal classes are merged and then blanks are removed.

    - Without labels, all frames are blank. Without frames, the loss is 0 if there are
        no labels.
    - With fewer frames than labels (and blanks between equal ones), $A(y)$ is empty.
        The loss is then about `-log_epsilon` or more instead of infinite (in float16,
        at most 65504), and its gradient is finite: mask such examples, or count them.
    - A label that is out of range, or equal to the blank, makes the loss of its example
        NaN and the gradient zero. Padded labels can have any value.

    The loss is never negative. If it is small, it is computed from the probability of
    all other labels, which is accurate.

    The gradient takes one more pass over the frames, backwards, with only additions and
    multiplications.

    !!! example

        ```python
        losses = eqopt.losses.ctc_loss(logits, logit_paddings, labels, label_paddings)
        loss = jnp.mean(losses)
        ```

    **Arguments:**

    - `logits`: $x$, a floating array of shape `(batch, frames, classes)`.
    - `logit_paddings`: an array of shape `(batch, frames)`, 1 or true for each padded
        frame. These may be anywhere.
    - `labels`: $y$, integers of shape `(batch, labels)`.
    - `label_paddings`: an array of shape `(batch, labels)`, 1 or true for each padded
        label. These must be the last ones.
    - `blank_id`: the class for blanks, an integer. Defaults to 0.
    - `log_epsilon`: the value for $\log 0$, negative. Losses above `-log_epsilon` are
        not exact. Defaults to -1e5.

    **Returns:**

    An array of shape `(batch,)` and of the dtype of `logits`.

    **Raises:**

    A `ValueError` if shapes do not fit, if `blank_id` is out of range, or if
    `log_epsilon` is not negative.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{graves2006connectionist,
            author = {Graves, Alex and Fern{\'a}ndez, Santiago and Gomez, Faustino and
                      Schmidhuber, J{\"u}rgen},
            title = {Connectionist Temporal Classification: Labelling Unsegmented
            Sequence
                     Data with Recurrent Neural Networks},
            booktitle = {International Conference on Machine Learning},
            year = {2006},
        }
        ```
    """
    inputs = logits, logit_paddings, labels, label_paddings
    loss, _, _ = _ctc(inputs, blank_id, log_epsilon)
    return _in_range(loss, logits)


def ctc_loss_with_forward_probs(
    logits: Float[Array | np.ndarray, "batch frames classes"],
    logit_paddings: _Frames,
    labels: Integer[ArrayLike, "batch labels"],
    label_paddings: _Labels,
    *,
    blank_id: int = 0,
    log_epsilon: RealScalarLike = -1e5,
) -> tuple[
    Float[Array, " batch"],
    Float[Array, "frames batch labels_and_1"],
    Float[Array, "frames batch labels"],
]:
    r"""[`eqopt.losses.ctc_loss`][], and the logarithms of the forward probabilities.

    They cover all beginnings of sequences up to a frame $t$ that have produced the
    first $n$ labels,

    $$\alpha_\varnothing(t, n) = \text{those that end with a blank}, \qquad
      \alpha_y(t, n) = \text{those that end with the label } y_n.$$

    In the last frame, $\alpha_\varnothing(T, n)$ includes both endings, so the loss is
    $-\log \alpha_\varnothing(T, N)$, up to rounding.

    **Arguments:**

    - All: see [`eqopt.losses.ctc_loss`][].

    **Returns:**

    The losses, of shape `(batch,)`; $\log \alpha_\varnothing$ for $n = 0, \dots, N$, of
    shape `(frames, batch, labels + 1)`; and $\log \alpha_y$ for $n = 1, \dots, N$, of
    shape `(frames, batch, labels)`. All have the dtype of `logits`. For impossible
    events, they are about `log_epsilon` or less (in float16, at least -65504).

    **Raises:**

    A `ValueError` if shapes do not fit, if `blank_id` is out of range, or if
    `log_epsilon` is not negative.
    """
    inputs = logits, logit_paddings, labels, label_paddings
    loss, blank, label = _ctc(inputs, blank_id, log_epsilon)
    if len(blank):
        last = _with_last_label(blank[-1], label[-1])
        blank = jnp.concatenate([blank[:-1], last[None]])
    # The logarithm of a probability is never positive, except by rounding.
    blank, label = (_in_range(x, logits, high=0.0) for x in (blank, label))
    return _in_range(loss, logits), blank, label


def _in_range(x, logits, high=np.inf):
    """In the dtype of `logits`, but not infinite: float16 ends below `-log_epsilon`."""
    dtype = jax.dtypes.canonicalize_dtype(logits.dtype)
    largest = float(jnp.finfo(dtype).max)
    bounded = lax.stop_gradient(jnp.clip(x, -largest, min(high, largest)))
    return one_value_each(with_derivatives_of(x, bounded), logits)


def _ctc(inputs, blank_id, log_epsilon):
    logits, logit_paddings, labels, label_paddings = inputs
    check_interval("blank_id", blank_id, 0, logits.shape[2], includes_high=False)
    (x,) = widen(logits)
    negative = Interval(-np.inf, 0, includes_low=False, includes_high=False)
    floor = as_scalar("log_epsilon", log_epsilon, x.dtype, negative)
    floor = lax.stop_gradient(floor)
    y = at_least_int32(jnp.asarray(labels))
    is_pad = jnp.asarray(label_paddings).astype(bool)
    is_known = is_label(y, x.shape[-1])
    is_wrong = ~is_pad & (~is_known | (y == blank_id))
    # The sums and differences below must be finite, even for an impossible class.
    log_p = log_softmax(x, (2,), jnp.ones(x.shape, bool))
    log_p = jnp.maximum(log_p, floor)
    blanks = log_p[..., blank_id].T
    index = jnp.where(is_known, y, 0).astype(jnp.int32)[:, None, :]
    emits = jnp.take_along_axis(log_p, index, axis=2, mode="clip").transpose(1, 0, 2)
    repeats = jnp.pad(y[:, 1:] == y[:, :-1], ((0, 0), (1, 0)))[:, : y.shape[1]]
    pads = jnp.asarray(logit_paddings).astype(bool).T
    # Before the first frame, there is no label.
    blank_start = jnp.full((y.shape[0], y.shape[1] + 1), floor).at[:, 0].set(0)
    label_start = jnp.full(y.shape, floor)
    blank, label = forward(blanks, emits, repeats, pads, blank_start, label_start)
    ends = (blank[-1], label[-1]) if len(blank) else (blank_start, label_start)
    number = jnp.sum(~is_pad, 1)
    loss = -pick(_with_last_label(*ends), number)
    # A small loss has more digits as -log(1 - F), with the probability F of failure.
    with_start = lambda start, after: jnp.concatenate([start[None], after])
    states = with_start(blank_start, blank), with_start(label_start, label)
    known = log_p, emits, index[:, 0], number, repeats, pads, *states
    fails = failure(*lax.stop_gradient(known), blank_id=blank_id)
    is_small = fails < 0.5
    small = -jnp.log1p(-jnp.where(is_small, fails, 0))
    value = jnp.where(is_small, small, lax.stop_gradient(loss))
    loss = with_derivatives_of(loss, value)
    return nan_where(jnp.any(is_wrong, 1), loss), blank, label


def _with_last_label(blank, label):
    """The sequences that end with a label or a blank after it."""
    return jnp.concatenate([blank[:, :1], logaddexp(blank[:, 1:], label)], 1)


#
# The forward recursion of CTC, and its derivative.
#
# After n labels, a sequence ends with a blank (there are N + 1 such states) or with the
# n-th label (N states). In a frame with the log-probabilities b of the blank and e of the
# label,
#
#     blank'(n) = b + log(exp blank(n) + exp label(n))
#     label'(n) = e(n) + log(exp label(n) + exp from(n))
#
# where from(n) is blank(n - 1) if the label repeats the previous one, because these need
# a blank between them. Otherwise, from(n) is the first logarithm for n - 1. So a frame
# needs two additions of logarithms. The derivative only needs the shares of the two
# summands in each. These are computed from the states of all frames at once, outside the
# loop, so the loop over the tangents only multiplies and adds. JAX transposes it.
#


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


def _shares(blank, label, repeats, pads):
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
    states = before(blank_start, out[0]), before(label_start, out[1])
    shares = _shares(*states, repeats, pads)
    of_blanks = jnp.where(pads, 0, tangents[0])[..., None]
    added = of_blanks, jnp.where(pads[..., None], 0, tangents[1])

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


#
# The probability that the frames of CTC give anything but the labels.
#
# The loss is minus the logarithm of the probability of the labels. Where this is close to
# 1, rounding leaves few digits of the logarithm, or none. But then the probability of
# everything else is small, and a sum of positive terms. In each frame, each state of the
# forward recursion loses the sequences whose next class does not fit. In the end, those
# without the last label are lost.
#


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


def _split(log_p, blank_id):
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
