"""Optimizers whose updates depend on the parameters, compared by hand."""

import numpy as np

import eqopt

from .case import ByHand


RATE, DECAY = 0.1, 0.3


def start(shape):
    """Weights that are larger than the steps. Each column belongs to one output."""
    return 3 + np.sin(np.arange(float(np.prod(shape)))).reshape(shape)


class Moving(eqopt.AbstractTransformation):
    """Keeps the parameters in its state, and moves them."""

    inner: eqopt.AbstractTransformation

    def init(self, params):
        params = params + start(params.shape)
        return params, self.inner.init(params)

    def update(self, updates, state, params=None, **extra):
        params, state = state
        updates, state = self.inner.update(updates, state, params, **extra)
        return updates, (params + updates, state)


def with_decay(opt, directions, shape=None):
    """A whole optimizer with weight decay, from the directions of its steps."""

    def updates(grads):
        p = start(grads[0].shape)
        for u in directions(grads):
            yield -RATE * (u + DECAY * p)
            p = p - RATE * (u + DECAY * p)

    return ByHand(Moving(opt), updates, shape)
