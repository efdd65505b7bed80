"""COCOB, which bets on each gradient."""

import jax
import jax.numpy as jnp
import numpy as np

import eqopt


def test_cocob_by_hand():
    p, grads = np.array([1.0]), [2.0, -1.0, 4.0]
    opt = eqopt.COCOB(alpha=3.0)
    params = jnp.asarray(p, jnp.float32)
    state = opt.init(params)
    start, L, G_, R, theta = p, 0.0, 0.0, 0.0, 0.0
    for g in grads:
        L, G_ = max(L, abs(g)), G_ + abs(g)
        R = max(R - g * (p - start).item(), 0)
        theta -= g
        p = start + theta / (L * max(G_ + L, 3.0 * L)) * (L + R)
        params, state = opt.step(jnp.asarray([g]), state, params)
        np.testing.assert_allclose(params, p, 1e-6)
    np.testing.assert_allclose(state[2].reward, R, 1e-5)


def test_cocob_does_not_depend_on_the_scale():
    ends = []
    for opt, factor in (
        (eqopt.COCOB(), 1.0),
        (eqopt.COCOB(), 1e5),
        (eqopt.COCOB(0.5), 1.0),
    ):
        p = jnp.array([1.0, -2.0])
        state = opt.init(p)
        for i in range(4):
            p, state = opt.step(factor * jnp.cos(jnp.array([3.0, 4.0]) * i), state, p)
        ends.append(p)
    np.testing.assert_allclose(ends[1], ends[0], 1e-5)
    np.testing.assert_allclose(ends[2], ends[0], 1e-5)


def test_it_descends():
    opt, loss = eqopt.COCOB(), lambda p: jnp.sum((p - jnp.arange(3.0)) ** 2)

    def body(carry, _):
        params, state = carry
        return opt.step(jax.grad(loss)(params), state, params), None

    start = jnp.full(3, 5.0)
    (params, _), _ = jax.lax.scan(body, (start, opt.init(start)), length=2000)
    assert loss(params) < 0.1 < loss(start)
