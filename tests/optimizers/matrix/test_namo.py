"""NAMO, beyond the laws: its factor, and its weight decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...methods.matrix.namo import namo_by_hand
from ...parity.by_hand import B1, B2, EPS, adam_by_hand
from ...parity.matrices import NUMBERS


@pytest.mark.parametrize("by_column", [False, True])
def test_the_decay_has_the_factor_of_the_step(by_column, x64):
    """A decay of all matrices, of those in a mask, and of the fallback."""
    rng, rate, decay = np.random.default_rng(0), 0.1, 0.3
    shapes = {"w": (3, 5), "x": (5, 3), "b": (4,)}
    start = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    grads = [{k: rng.normal(size=x.shape) for k, x in start.items()} for _ in range(6)]
    by_hand = {k: namo_by_hand(by_column)([g[k] for g in grads]) for k in ("w", "x")}
    others = adam_by_hand([g["b"] for g in grads], 0.9, 0.95, 1e-8)
    decays = {"w": decay, "x": 0.0, "b": decay}
    with x64():
        opt = eqopt.NAMO(
            rate,
            "dion",
            beta=B1,
            b2=B2,
            eps=EPS,
            weight_decay=decay,
            mask={"w": True, "x": False, "b": True},
            per="column" if by_column else "matrix",
            weight_dimension_numbers={"w": NUMBERS, "x": NUMBERS, "b": None},
        )
        params = jax.tree.map(jnp.asarray, start)
        state = opt.init(params)
        step = jax.jit(lambda *args: opt.step(*args))  # a dict is not hashable
        for g in grads:
            params, state = step(jax.tree.map(jnp.asarray, g), state, params)
            for k, p in start.items():
                alpha, u = next(by_hand[k]) if k in by_hand else (1, next(others))
                start[k] = p - rate * alpha * (u + decays[k] * p)
            for k, expected in start.items():
                np.testing.assert_allclose(params[k], expected, rtol=1e-8, atol=1e-10)
