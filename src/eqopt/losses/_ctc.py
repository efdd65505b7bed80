"""Connectionist temporal classification: labels without alignment."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._types import RealScalarLike
from ..numerics._numerics import nan_where
from ._ctc_failure import failure
from ._ctc_recursion import forward
from ._inputs import (
    IntegerArrayLike,
    RealArrayLike,
    as_scalar,
    at_least_int32,
    check_same_shape,
    is_label,
    one_value_each,
    pick,
    widen,
)
from ._logarithms import log_softmax, logaddexp, with_derivatives_of


def ctc_loss(
    logits: Float[Array | np.ndarray, "..."],
    logit_paddings: RealArrayLike,
    labels: IntegerArrayLike,
    label_paddings: RealArrayLike,
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
    loss, _, _ = _ctc(
        "ctc_loss",
        (logits, logit_paddings, labels, label_paddings),
        blank_id,
        log_epsilon,
    )
    return _in_range(loss, logits)


def ctc_loss_with_forward_probs(
    logits: Float[Array | np.ndarray, "..."],
    logit_paddings: RealArrayLike,
    labels: IntegerArrayLike,
    label_paddings: RealArrayLike,
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
    loss, blank, label = _ctc(
        "ctc_loss_with_forward_probs",
        (logits, logit_paddings, labels, label_paddings),
        blank_id,
        log_epsilon,
    )
    if len(blank):
        last = _with_last_label(blank[-1], label[-1])
        blank = jnp.concatenate([blank[:-1], last[None]])
    # The logarithm of a probability is never positive, except by rounding.
    blank, label = (_in_range(x, logits, high=0.0) for x in (blank, label))
    return _in_range(loss, logits), blank, label


def _in_range(
    x: Float[Array, "..."], logits: Any, high: float = np.inf
) -> Float[Array, "..."]:
    """In the dtype of `logits`, but not infinite: float16 ends below `-log_epsilon`."""
    dtype = jax.dtypes.canonicalize_dtype(logits.dtype)
    largest = float(jnp.finfo(dtype).max)
    bounded = lax.stop_gradient(jnp.clip(x, -largest, min(high, largest)))
    return one_value_each(with_derivatives_of(x, bounded), logits)


def _ctc(
    owner: str, inputs: tuple[Any, Any, Any, Any], blank_id: int, log_epsilon: Any
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    _check(owner, *inputs, blank_id)
    logits, logit_paddings, labels, label_paddings = inputs
    (x,) = widen(logits)
    floor = lax.stop_gradient(
        as_scalar(
            owner, "log_epsilon", log_epsilon, x.dtype, -np.inf, 0, includes_high=False
        )
    )
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
    states = [
        jnp.concatenate([start[None], after])
        for start, after in ((blank_start, blank), (label_start, label))
    ]
    fails = failure(
        *lax.stop_gradient((log_p, emits, index[:, 0], number, repeats, pads, *states)),
        blank_id=blank_id,
    )
    is_small = fails < 0.5
    small = -jnp.log1p(-jnp.where(is_small, fails, 0))
    loss = with_derivatives_of(
        loss, jnp.where(is_small, small, lax.stop_gradient(loss))
    )
    return nan_where(jnp.any(is_wrong, 1), loss), blank, label


def _with_last_label(
    blank: Float[Array, "batch labels_and_1"], label: Float[Array, "batch labels"]
) -> Float[Array, "batch labels_and_1"]:
    """The sequences that end with a label or a blank after it."""
    return jnp.concatenate([blank[:, :1], logaddexp(blank[:, 1:], label)], 1)


def _check(
    owner: str,
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    blank_id: int,
) -> None:
    shape = np.shape(logits)
    if len(shape) != 3 or np.ndim(labels) != 2 or np.shape(labels)[0] != shape[0]:
        raise ValueError(
            f"{owner}: `logits` must have shape (batch, frames, classes) and `labels` "
            f"shape (batch, labels), but they have shapes {shape} and "
            f"{np.shape(labels)}. For a single example, pass `logits[None]` and "
            "`labels[None]`."
        )
    paddings = {"logit_paddings": logit_paddings}
    check_same_shape(
        owner, "logits[..., 0]", np.empty(shape[:2], bool), or_number=False, **paddings
    )
    paddings = {"label_paddings": label_paddings}
    check_same_shape(owner, "labels", labels, or_number=False, **paddings)
    if not 0 <= blank_id < shape[2]:
        raise ValueError(
            f"{owner}: `blank_id` must be in [0, {shape[2]}), one of the classes of "
            f"`logits`, but is {blank_id}."
        )
