"""Derivatives through steps equal central differences, unless the entry says otherwise.

Law 3 says that hyperparameters can be differentiated. `eqopt.testing` only checks that
the derivatives are finite.
"""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt._transforms.scale import has_learning_rate
from eqopt.testing._laws import numbers, with_numbers

from ..interpreter import interpreted
from ..methods import METHODS
from .registry import PARTS, law
from .subjects import arrays, normal, params_of
from .test_half_precision import parts_of


def loss_of(params):
    x, y = normal(2, [(8, 2), (8, 3)], 2 * [jnp.float64])
    vector, _, scalar = params["more"]
    guess = jnp.tanh(x @ params["matrix"].T + vector[None]) * scalar["scalar"]
    return jnp.mean((guess - y) ** 2) + 0.05 * jnp.sum(jnp.sin(3 * params["matrix"]))


def assert_exact(opt):
    """Compares derivatives of the loss after some steps, with respect to each number."""
    step = eqx.filter_jit(lambda opt, *args: opt.step(*args))
    grads_of = eqx.filter_jit(jax.grad(loss_of))

    def after(values):
        params, now = params_of(jnp.float64), with_numbers(opt, values)
        state = now.init(params)
        for _ in range(4):
            params, state = step(now, grads_of(params), state, params)
        return loss_of(params)

    # A limit that is off may be infinite.
    values = {name: x for name, x in numbers(opt).items() if jnp.isfinite(x)}
    loss_at, slopes = interpreted(after), interpreted(jax.grad(after))(values)
    h = 1e-6
    for name, x in values.items():
        more, less = (loss_at({**values, name: x * (1 + d)}) for d in (h, -h))
        expected = (more - less) / (2 * h)
        np.testing.assert_allclose(x * slopes[name], expected, 1e-3, 1e-8, err_msg=name)


ROWS = {row.name for method in METHODS.values() for row in method.laws} & PARTS
SAYS = re.compile(r"[Dd]erivatives\s+(of|through)\s+the\s+step\s+treat[^.]*constant")


def says(cls):
    return bool(SAYS.search(cls.__doc__))


@pytest.mark.parametrize("name", METHODS)
def test_recipes_say_what_their_parts_say(name):
    """JAX derives a chain from its parts, so a recipe has no other constants."""
    for row in METHODS[name].laws:
        if isinstance(row(), eqopt.AbstractOptimizer):
            assert says(row.subject) or not any(says(type(x)) for x in parts_of(row()))


@law({"Prodigy", "ScaleByAdam", "ScaleByMuon"}, ROWS)
def test_derivatives_are_exact(row, x64):
    """Or the docstring says what counts as constant."""
    if says(row.subject):
        return
    with x64():
        opt = row(**row.data)
        # Differences of numbers that are rounded to float32 are no derivatives.
        state = opt.init(params_of(jnp.float64))
        if not any(x.ndim and x.dtype == "float32" for x in arrays(state)):
            is_uphill = not has_learning_rate(opt)
            assert_exact(eqopt.Chain(opt, eqopt.Scale(-0.03)) if is_uphill else opt)


# With settings for which that part does not depend on hyperparameters: what is left.
REST = {
    "APOLLO": lambda: eqopt.APOLLO(0.03, 1, proj="svd"),
    "GaLore": lambda: eqopt.GaLore(0.03, 1),
    "KLShampoo": lambda: eqopt.KLShampoo(0.03, precondition_frequency=9),
    "LBFGS": lambda: eqopt.LBFGS(0.03, linesearch=None),
    "PSGDKron": lambda: eqopt.PSGDKron(0.03, max_size=0),
    "SOAP": lambda: eqopt.SOAP(0.03, precondition_frequency=9),
    "SOAPMuon": lambda: eqopt.SOAPMuon(0.03, precondition_frequency=9),
    "Shampoo": lambda: eqopt.Shampoo(0.03, precondition_frequency=9, graft=None),
}


@pytest.mark.parametrize("name", REST)
@pytest.mark.costly
def test_the_rest_is_exact(name, x64):
    assert says(getattr(eqopt, name))
    with x64():
        assert_exact(REST[name]())
