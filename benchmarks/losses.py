"""The loss of speech recognition, which is a loop over frames."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jax import Array

import eqopt

from .gradients import is_full
from .measures import Settings


def utterances(settings: Settings) -> tuple[Array, tuple[Array, Array]]:
    """Logits of 16 utterances, 400 frames of 64 classes, their labels and lengths."""
    rows, frames, labels = (16, 400, 60) if is_full(settings) else (2, 8, 3)
    keys = jr.split(jr.key(0), 3)
    logits = jr.normal(keys[0], (rows, frames, 64))
    lengths = jr.randint(keys[2], (rows,), 2 * labels, frames)
    return logits, (jr.randint(keys[1], (rows, labels), 1, 64), lengths)


def _slope_of(ctc_loss: Callable[..., Array]) -> Callable[..., Any]:
    def slope(logits: Array, labels: Array, lengths: Array) -> Array:
        frames = jnp.arange(logits.shape[1])
        logit_paddings = (frames[None] >= lengths[:, None]).astype(logits.dtype)
        label_paddings = jnp.zeros(labels.shape, logits.dtype)
        total = lambda logits: jnp.sum(
            ctc_loss(logits, logit_paddings, labels, label_paddings)
        )
        return jax.grad(total)(logits)

    return slope


ctc = _slope_of(eqopt.losses.ctc_loss)
ctc_by_optax = _slope_of(optax.losses.ctc_loss)
