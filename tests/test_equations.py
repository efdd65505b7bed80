"""What is kept of the programs that are made of equations."""

import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt._equations import KERNELS
from eqopt._kernels import kernel


def rebuilt():
    """A chain with a function of its own, as in a loop that builds optimizers."""
    scale = eqopt.StatelessWithTreeMap(lambda g, p: 2 * g)
    return eqopt.Chain(scale, eqopt.SGD(0.1))


@pytest.mark.slow
def test_kernels_of_optimizers_that_are_gone_do_not_pile_up():
    params = jnp.ones(())
    for _ in range(2 * KERNELS):
        opt = rebuilt()
        jax.eval_shape(lambda p, opt=opt: opt.step(p, opt.init(p), p), params)
    assert kernel.cache_info().currsize <= KERNELS


@pytest.mark.slow
def test_nor_do_their_programs():
    params = jnp.ones(())
    client = params.device.client
    before = len(client.live_executables())
    for _ in range(2 * KERNELS):
        opt = rebuilt()
        opt.step(params, opt.init(params), params)
    assert len(client.live_executables()) < before + 1.1 * KERNELS


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
