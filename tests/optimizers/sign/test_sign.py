"""The sign optimizers, compared with calculations by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


def updates_of(opt, grads):
    params = jnp.zeros_like(grads[0])
    state, seen = opt.init(params), []
    for g in grads:
        u, state = opt.update(g, state, params)
        seen.append(u)
    return jnp.stack(seen), state


def test_signs_of_zero_and_of_complex_numbers():
    u, _ = updates_of(eqopt.ScaleBySign(), [jnp.array([-2.0, 0.0, 3.0])])
    np.testing.assert_array_equal(u[0], [-1, 0, 1])
    u, _ = updates_of(eqopt.ScaleBySign(), [jnp.array([3 + 4j, 0])])
    np.testing.assert_allclose(u[0], [0.6 + 0.8j, 0], 1e-6)


def test_rprop_of_complex_gradients():
    """A change of direction by more than a right angle counts as a change of sign."""
    grads = [jnp.array([x]) for x in (3 + 4j, 4 + 3j, -4 + 3j, -4 - 4j)]
    u, _ = updates_of(eqopt.ScaleByRprop(1.0), grads)
    expected = [0.6 + 0.8j, 1.2 * (0.8 + 0.6j), 0, 0.6 * -(0.5**0.5) * (1 + 1j)]
    np.testing.assert_allclose(u[:, 0], expected, 1e-5)


def test_rprop_with_a_schedule():
    """Steps are scaled by the schedule over its first value; step sizes are not."""
    grads = [jnp.array(x) for x in (1.0, 1.0, -1.0, -1.0)]
    plain, state = updates_of(eqopt.Rprop(0.2), grads)
    schedule = eqopt.schedules.Linear(0.2, 0.1, 4)
    scaled, scheduled_state = updates_of(eqopt.Rprop(schedule), grads)
    ratio = jnp.array([schedule(jnp.asarray(t)) / 0.2 for t in range(4)])
    np.testing.assert_allclose(scaled, ratio * plain, 1e-6)
    np.testing.assert_allclose(scheduled_state[0].step_sizes, state[0].step_sizes)
    assert scheduled_state[0].count == state[0].count == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: eqopt.Rprop(0.0),
            r"Rprop.*: `learning_rate` must be in \(0, inf\), but is 0.0",
        ),
        (
            lambda: eqopt.Rprop(eqopt.schedules.Linear(0.0, 0.1, 5)),
            "but is 0.0. It is the first step size, also of",
        ),
        (
            lambda: eqopt.Rprop(0.1, min_step_size=1.0, max_step_size=0.1),
            r"Rprop.*: `min_step_size` must be in \[0, 0.1\], but is 1.0",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_smooth_sign_of_complex_numbers():
    """It is as long as for a real number: the complex tanh has poles."""
    opt, c = eqopt.ScaleByLion(b1=0.0, mode="smooth"), jnp.array([1.5707j, -3 - 4j, 0])
    u, _ = updates_of(opt, [c])
    expected = [np.tanh(1.5707) * 1j, np.tanh(5) * (-0.6 - 0.8j), 0]
    np.testing.assert_allclose(u[0], expected, 1e-6)
