"""Temporary memory of a step whose parameters and state are donated. It is exact.

Conditions, averages and accumulation copy neither parameters nor state, on a CPU either.
For accelerators, see `tests/compiled`.
"""

import jax
import jax.numpy as jnp
import pytest

import eqopt


def temporary(opt, leaves=10, shape=(300, 1000), **extra):
    """The temporary memory of a step, as a fraction of the parameters."""
    params = [jax.ShapeDtypeStruct(shape, jnp.float32)] * leaves
    state = jax.eval_shape(opt.init, params)
    step = jax.jit(
        lambda params, state, grads: opt.step(grads, state, params, **extra),
        donate_argnums=(0, 1),
    )
    memory = step.lower(params, state, params).compile().memory_analysis()
    assert memory is not None
    size = sum(4 * p.size for p in params)
    # In place: each result reuses the buffer of an argument.
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 0.01 * size
    return memory.temp_size_in_bytes / size


ADAMW = eqopt.AdamW(0.1)
CLIPPED = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), ADAMW)
RULE = eqopt.SigmaRule()


@pytest.mark.parametrize(
    ("opt", "most"),
    [
        (eqopt.OuterNesterov(ADAMW), 0.01),
        (eqopt.ParamEMA(ADAMW), 0.01),
        (eqopt.ParamEMA(eqopt.MultiSteps(ADAMW, 8)), 0.01),
        (eqopt.MultiSteps(eqopt.ParamEMA(ADAMW), 8), 0.01),
        (eqopt.SWA(ADAMW, 10), 0.01),
        (eqopt.MultiSteps(eqopt.SWA(ADAMW, 3), 8), 0.01),
        (eqopt.SkipStep(ADAMW, RULE), 0.01),
        (eqopt.DynamicLossScale(ADAMW), 1.01),
        (eqopt.DynamicLossScale(eqopt.MultiSteps(ADAMW, 8)), 0.01),
        # The gradients as a vector, and the parameters where they decay.
        (eqopt.Flatten(eqopt.Adam(0.1)), 1.01),
        (eqopt.Flatten(eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.SGD(0.1))), 1.01),
        (eqopt.Flatten(ADAMW), 2.01),
        (eqopt.Flatten(eqopt.SWA(ADAMW, 10)), 2.01),
        # The gradients, divided: a norm is needed before they are used.
        (eqopt.DynamicLossScale(CLIPPED), 1.01),
        (eqopt.DynamicLossScale(eqopt.SkipStep(ADAMW, RULE)), 1.01),
        (
            eqopt.MultiSteps(
                ADAMW, 8, should_skip_update_fn=eqopt.SkipLargeUpdates(9.0)
            ),
            0.01,
        ),
        # The leaf that is counted.
        (eqopt.MultiSteps(ADAMW, 8, should_skip_update_fn=eqopt.SkipNotFinite()), 0.11),
    ],
    ids=repr,
)
@pytest.mark.slow
def test_wrappers(opt, most):
    assert temporary(opt, value=jnp.ones(())) < most


def test_order_of_donated_arguments():
    """As "Getting started" explains: JAX matches donated memory by order and shape."""
    opt = eqopt.AdamW(0.1)
    params = [jax.ShapeDtypeStruct((300, 1000), jnp.float32)] * 4
    state = jax.eval_shape(opt.init, params)

    def fraction(step, *args):
        program = jax.jit(step, donate_argnums=(0, 1)).lower(*args, params).compile()
        memory = program.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes / sum(4 * p.size for p in params)

    forwards = lambda params, state, grads: opt.step(grads, state, params)
    backwards = lambda state, params, grads: opt.step(grads, state, params)
    turned = lambda state, params, grads: opt.step(grads, state, params)[::-1]
    assert fraction(forwards, params, state) < 0.01
    assert fraction(turned, state, params) < 0.01
    assert fraction(backwards, state, params) > 1
