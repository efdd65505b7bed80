"""NAMO, beyond the laws: its factor, and its weight decay."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...methods.matrix.namo import namo_by_hand
from ...parity.by_hand import B1, B2, EPS, adam_by_hand
from ...parity.matrices import NUMBERS


# After so many steps of a cubic-quintic iteration, all singular values are 1.
EXACT = functools.partial(
    eqopt.ScaleByNAMO, "simple", 30, eps=0.0, weight_dimension_numbers=NUMBERS
)
# The factors for the gradients G, -G, G, -G.
FLIPPING = 1, 0.025641, 0.333918, 0.025641


@pytest.mark.parametrize("size", [1.0, 1e-6])
@pytest.mark.parametrize("per", ["matrix", "column"])
@pytest.mark.parametrize(
    ("nesterov", "signs", "expected"),
    [
        (False, (1, 1, 1, 1), (1, 1, 1, 1)),
        (False, (1, -1, 1, -1), FLIPPING),
        (True, (1, 1, 1), (1.95, 1.46282, 1.30057)),
    ],
)
def test_the_factor(nesterov, signs, expected, per, size, x64):
    """The ratio of the norms, whatever the gradient is; for each column, if all agree."""
    g = size * np.random.default_rng(0).normal(size=(4, 6))
    with x64():
        opt = EXACT(nesterov=nesterov, consistent_rms=1.0, per=per)
        state, factors = opt.init(jnp.asarray(g)), []
        for sign in signs:
            u, state = opt.update(jnp.asarray(sign * g), state)
            factors.append(np.linalg.norm(u) / np.sqrt(6) / np.sqrt(4))
    np.testing.assert_allclose(factors, expected, rtol=2e-5)


def test_the_factors_of_columns_are_clipped(x64):
    """The factors 1, 2, 3 and 6 have the mean 3."""
    with x64():
        g = jnp.diag(jnp.array([1.0, 2.0, 3.0, 6.0]))
        opt = EXACT(beta=0.0, b2=0.9, nesterov=False, consistent_rms=0.5, per="column")
        state = opt.init(g)
        # All second moments are equal, as if their gradients had been.
        same = jnp.full_like(state.nu, 1 / 0.9 - 0.1 / 0.9)
        state = eqopt.tree.set(state, nu=(same - 0.1 * jnp.diag(g)[None] ** 2) / 0.9)
        u, _ = opt.update(g, state)
        factors = jnp.diag(u) / jnp.sqrt(0.1)
    np.testing.assert_allclose(factors, [2.25, 2.25, 3, 4], rtol=1e-9)


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


def test_a_state_of_another_kind_of_factor():
    g = jnp.ones((3, 4))
    opt = eqopt.ScaleByNAMO(weight_dimension_numbers=NUMBERS)
    other = eqopt.ScaleByNAMO(per="column", weight_dimension_numbers=NUMBERS)
    with pytest.raises(ValueError, match="the state was made with other arguments"):
        jax.jit(other.update)(g, opt.init(g))
