"""Equations, and promises of what they compute."""

import jax.numpy as jnp
import pytest

import eqopt


class Hasty(eqopt.AbstractOptimizer):
    """Asks for the new state of its part too early, or never."""

    asks: bool

    @property
    def chain(self):
        return eqopt.Trace(0.9)

    def _feed(self, pipeline, state):
        promise = self.chain._feed(pipeline, state)
        if self.asks:
            promise()
        return lambda: state


@pytest.mark.parametrize(
    "asks, message", [(True, "before its equation has run"), (False, "state is lost")]
)
def test_promises_are_kept(asks, message):
    opt = Hasty(asks)
    params = jnp.ones(2)
    state = eqopt.Trace(0.9).init(params)
    with pytest.raises(RuntimeError, match=f"Trace: its new .*{message}"):
        opt.update(params, state, params)
