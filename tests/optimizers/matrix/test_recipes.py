"""Recipes are their blocks with a schedule, weight decay and a fallback; in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...interpreter import interpreted
from ...parity.by_hand import adam_by_hand
from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow


def row_norms_of_a_mean(weight_dimension_numbers, **options):
    normalize = eqopt.ScaleByRowNorm(
        weight_dimension_numbers=weight_dimension_numbers, **options
    )
    return eqopt.Chain(eqopt.EMA(0.8, debias=False), normalize)


def orthogonal_soap(weight_dimension_numbers, **options):
    names = {"weight_dimension_numbers": weight_dimension_numbers}
    return eqopt.Chain(
        eqopt.ScaleBySOAP(**options, correct_bias=False, **names),
        eqopt.Orthogonalize(
            ((3.4445, -4.7750, 2.0315),), steps=5, scale="shape", **names
        ),
    )


# The block of each recipe, unless it is `ScaleBy` and the name of the recipe. (Other
# tests compare blocks with formulas.)
BLOCKS = {
    "KLShampoo": functools.partial(eqopt.ScaleByShampoo, graft=None, kl=True),
    "Scion": eqopt.ScaleByLMO,
    "SCALE": row_norms_of_a_mean,
    "SinkGD": functools.partial(eqopt.ScaleBySinkhorn, eps=1e-6),
    "SOAPMuon": orthogonal_soap,
}
KRON = {"b1": 0.8, "b2": 0.9, "precondition_frequency": 3}
# Arguments of both.
RECIPES = {
    "AdaMuon": {"beta": 0.8, "eps": 1e-3, "consistent_rms": 0.3},
    "APOLLO": {"rank": 2, "scale": 1.5, "b1": 0.8, "eps": 1e-3, "proj": "svd"},
    "Aurora": {"beta": 0.8, "pp_iterations": 3, "pp_beta": 0.7, "nesterov": False},
    "Dion2": {"fraction": 0.5, "ef_decay": 0.8, "b2": 0.9, "scale": "match_rms"},
    "KLShampoo": {"eps": 1e-3, **KRON},
    "NorMuon": {"beta": 0.8, "b2": 0.9, "side": "long", "scale": "spectral"},
    "PSGDKron": {"preconditioner_lr": 0.2, "max_rms": 0.9, "whiten_momentum": True},
    "Scion": {"norm": "row", "radius": 3.0, "beta": 0.8, "eps": 1e-3},
    "SCALE": {"eps": 1e-3},
    "Shampoo": {"b3": 0.7, "graft": "rmsprop", **KRON},
    "SinkGD": {"steps": 3},
    "SOAP": {"shampoo_beta": 0.7, **KRON},
    "SOAPMuon": {"shampoo_beta": 0.7, "eps": 1e-3, **KRON},
}
DECAY, RATES = 0.3, 0.1 / np.arange(1, 13)


def rate(count):
    return jnp.asarray(RATES)[count]


# Arguments of only the recipe. The fallback is AdamW, with $\beta_2 = 0.95$.
EXTRA: dict = {
    "SCALE": {"momentum": 0.8, "last_layer": True},
    "Scion": {"fallback": eqopt.AdamW(rate, b2=0.95, weight_decay=DECAY)},
    "SinkGD": {"scale": 0.1},  # a factor of the update for matrices
    "SOAPMuon": {"coefficients": "standard"},
}


@pytest.mark.parametrize("name", RECIPES)
def test_steps(name, x64):
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(4, 4)), rng.normal(size=5)
    grads = [{"w": rng.normal(size=w.shape), "b": rng.normal(size=5)} for _ in RATES]
    others = adam_by_hand([g["b"] for g in grads], 0.9, 0.95, 1e-8)
    with x64():
        names = {**RECIPES[name], "weight_dimension_numbers": NUMBERS}
        extra = EXTRA.get(name, {})
        opt = getattr(eqopt, name)(rate, weight_decay=DECAY, **names, **extra)
        make = BLOCKS.get(name) or getattr(eqopt, f"ScaleBy{name}")
        direction = make(**names)
        params = {"w": jnp.asarray(w), "b": jnp.asarray(b)}
        state, own = opt.init(params), direction.init(params["w"])
        step, update = interpreted(opt.step), interpreted(direction.update)
        for t, (g, d) in enumerate(zip(grads, others, strict=True)):
            g = jax.tree.map(jnp.asarray, g)
            params, state = step(g, state, params)
            u, own = update(g["w"], own)
            w = w - RATES[t] * (extra.get("scale", 1) * np.asarray(u) + DECAY * w)
            b = b - RATES[t] * (d + DECAY * b)
            np.testing.assert_allclose(params["w"], w, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(params["b"], b, rtol=1e-8, atol=1e-10)
