"""MOSO without averages, and at its start."""

import jax.numpy as jnp
import numpy as np

import eqopt


G = jnp.array([[3.0, 0, 1], [1, 2, 0]])


def test_without_averages_it_is_the_sign_in_the_eigenbasis():
    opt = eqopt.ScaleByMOSO(0.0, 0.0, 0.0)
    u, _ = opt.update(G, opt.init(G))
    # From NVIDIA's code in float64.
    expected = [
        [1.3297448, 0.48143402, 1.3297448],
        [-0.48143402, 1.3297448, -0.48143402],
    ]
    np.testing.assert_allclose(u, expected, rtol=1e-5)


def test_no_moment_is_corrected_for_its_start():
    """The root mean squares of the updates of NVIDIA's code for equal gradients."""
    opt, sizes = eqopt.ScaleByMOSO(), []
    state = opt.init(G)
    for _ in range(5):
        u, state = opt.update(G, state)
        sizes.append(jnp.sqrt(jnp.mean(u**2)))
    expected = [4.47213, 4.00026, 3.58647, 3.26749, 3.01749]
    np.testing.assert_allclose(sizes, expected, rtol=1e-4)
