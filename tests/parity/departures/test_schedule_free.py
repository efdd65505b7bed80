"""Where schedule-free learning departs from Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")


def test_weights_are_those_of_the_steps_that_were_made():
    """From schedule(0) on, as inside; Optax's weights are one step ahead."""
    params = jnp.ones(2)
    schedule = lambda count: jnp.array([0.1, 0.2, 0.4])[count]
    ours = eqopt.ScheduleFree(eqopt.SGD(schedule), schedule)
    theirs = optax.contrib.schedule_free(optax.sgd(schedule), schedule)
    _, state = ours.update(params, ours.init(params), params)
    _, their_state = theirs.update(params, theirs.init(params), params)
    np.testing.assert_allclose(state.z, their_state.z)  # both made a step of 0.1
    np.testing.assert_allclose(state.max_lr, 0.1)
    np.testing.assert_allclose(their_state.max_lr, 0.2)


@pytest.mark.slow
def test_bfloat16_parameters_compile_once():
    def traces(opt):
        count = 0

        @jax.jit
        def update(grads, state, params):
            nonlocal count
            count += 1
            return opt.update(grads, state, params)[1]

        params = jnp.ones(2, jnp.bfloat16)
        state = opt.init(params)
        for _ in range(3):
            state = update(jnp.ones(2), state, params)
        return count

    assert traces(eqopt.ScheduleFreeAdamW(0.1)) == 1
    assert traces(optax.contrib.schedule_free_adamw(0.1)) > 1
