"""Which optimizers take an `AddDecayedWeights`, and what they tell it."""

import dataclasses
import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..interpreter import interpreted
from ..methods import OF_ANY_ARRAY


def _decaying(*others):
    """Every optimizer with a weight decay, and with arguments of these names, too."""
    for cls in (getattr(eqopt, name) for name in eqopt.__all__):
        if isinstance(cls, type) and issubclass(cls, eqopt.AbstractTransformation):
            names = {field.name for field in dataclasses.fields(cls)}
            is_optimizer = cls is not eqopt.AddDecayedWeights
            if is_optimizer and {"learning_rate", "weight_decay", *others} <= names:
                yield cls


# What their decay is. An `AddDecayedWeights` says how decay depends on the learning rate
# that multiplies it next, and whether the update goes the same way.
OF_THEIR_OWN = dict.fromkeys(
    ("Adadelta", "COCOB", "DoG", "DoWG", "LARS", "MADGRAD"),
    "an L2 penalty, before the method",
) | {
    "Adafactor": "added after the learning rate, which does not multiply it",
    "Adan": "implicit: the step is divided by 1 + eta lambda",
    "MoMo": "implicit, and part of the loss that gives the step size",
    "MoMoAdam": "implicit, and part of the loss that gives the step size",
    "Muown": "of the gains of rows, not of the rows",
    "NovoGrad": "in the momentum",
    "ScaleByMuown": "of the gains of rows, not of the rows",
    "ScheduleFreePlus": "of y but taken off z, with a step size from the loss",
}


def test_the_docs_name_those_with_a_decay_of_their_own():
    written = inspect.getdoc(eqopt.AddDecayedWeights)
    assert written is not None
    missing = [name for name in OF_THEIR_OWN if f"[`eqopt.{name}`][]" not in written]
    assert not missing


# Two add the decay in a separate part, and three in their own equations.
TELLING = (eqopt.AdamW, eqopt.Scion, eqopt.AdamP, eqopt.Prodigy, eqopt.StableAdamW)


def of_each_optimizer(with_their_own, *others):
    """Runs a test on each optimizer with a decay; in the quick set, on a few."""
    return pytest.mark.parametrize(
        "cls",
        [
            pytest.param(cls, marks=() if cls in TELLING else pytest.mark.slow)
            for cls in _decaying(*others)
            if with_their_own or cls.__name__ not in OF_THEIR_OWN
        ],
        ids=lambda cls: cls.__name__,
    )


PARAMS = {"w": jnp.linspace(-0.5, 2.0, 12).reshape(4, 3), "b": jnp.ones(3)}
GRADS = jax.tree.map(lambda p: p - 1, PARAMS)


def arguments(cls):
    """Arguments of `cls` other than rate and decay, and of its steps."""
    if cls in (eqopt.DAdaptAdamW, eqopt.Prodigy):
        return {"estim_lr0": 1.0}, {}  # the first steps are hardly any, otherwise
    if cls is eqopt.Sophia:
        loss = lambda p: sum(jnp.sum(x**2) for x in jax.tree.leaves(p))
        return {}, {"value_fn": loss}
    return {}, {}


@of_each_optimizer(with_their_own=True)
@pytest.mark.costly
def test_every_optimizer_takes_it_or_says_that_it_does_not(cls):
    more, extra = arguments(cls)
    decay = eqopt.AddDecayedWeights(0.3)
    if cls.__name__ in OF_THEIR_OWN:
        with pytest.raises(TypeError, match=f"{cls.__name__}: `weight_decay` must be"):
            cls(learning_rate=0.1, weight_decay=decay)
        return

    def stepped(weight_decay):
        opt = cls(learning_rate=0.1, weight_decay=weight_decay, **more)
        step = interpreted(lambda *args: opt.step(*args, **extra)[0])
        return jax.tree.leaves(step(GRADS, opt.init(PARAMS), PARAMS))

    same = eqopt.AddDecayedWeights(0.3, mode="fully_decoupled", max_learning_rate=1.0)
    by_number = stepped(0.3)
    jax.tree.map(np.testing.assert_array_equal, by_number, stepped(same))
    if cls is not eqopt.LAMB:  # its decay changes the length of the whole step
        cautious = stepped(eqopt.AddDecayedWeights(0.3, cautious=True))
        leaves = jax.tree.leaves(PARAMS), stepped(0.0), by_number, cautious
        assert not np.allclose(leaves[1][-1], by_number[-1], atol=1e-3)  # of the matrix
        for p, without, always, found in zip(*leaves, strict=True):
            expected = np.where((p - without) * p >= 0, always, without)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# The share of the one percent that is left, or `None` for any.
LESS = {
    "AdamP": None,  # less for weights whose gradients are at a right angle to them
    "SGDP": None,
    "LAMB": None,  # the length of a step is the length of the weights
    "DAdaptAdamW": 0.1**0.5,  # the correction of the moments in the first step
    "Prodigy": 0.1**0.5,
}


@of_each_optimizer(with_their_own=False)
@pytest.mark.costly
def test_every_parameter_decays(cls):
    """Matrices, vectors and stacks of any kind: by 1 % here, without a gradient."""
    if cls is eqopt.NAMO:
        pytest.skip("without a gradient, the factor of its steps and its decay is 0")
    more, extra = arguments(cls)
    opt = cls(learning_rate=1e-3, weight_decay=10.0, **more)
    params = {**PARAMS, "stack": jnp.ones((2, 3, 4)), "scalar": jnp.ones(())}
    params["other"] = jnp.ones((2, 3, 4))
    if cls not in OF_ANY_ARRAY and hasattr(opt, "weight_dimension_numbers"):
        stack = {"stack": eqopt.MatrixDimensionNumbers(-2, -1)}
        of_layers: Any = eqopt.groups.layer_matrices(params)
        numbers = {**of_layers, **stack}
        opt = eqopt.tree.set(opt, weight_dimension_numbers=numbers)
    step = interpreted(lambda *args: opt.step(*args, **extra)[0])
    new = step(jax.tree.map(jnp.zeros_like, params), opt.init(params), params)
    for k, p in params.items():
        share = LESS.get(cls.__name__, 1)
        if share is None:
            assert np.all(np.abs(new[k]) < 0.9995 * np.abs(p)), k
        else:
            expected = (1 - 0.01 * share) * p
            np.testing.assert_allclose(new[k], expected, rtol=1e-5, err_msg=k)


# Those with one step size for all parameters, which depends on the decay of each.
OF_ALL = eqopt.DoWG, eqopt.MoMo, eqopt.MoMoAdam, eqopt.ScheduleFreePlus


# A tree, a function that looks at every parameter, and a rule that must find one: so it
# must not be asked about the matrices or the other parameters alone.
SPELLINGS = (
    lambda name: {k: k == name for k in PARAMS},
    lambda name: lambda p: {k: p[k].ndim >= 0 and k == name for k in PARAMS},
    lambda name: eqopt.groups.path(rf"\['{name}'\]"),
)


@of_each_optimizer(True, "mask")
@pytest.mark.costly
def test_a_mask_says_which_parameters_decay(cls):
    """Matrices and all others: also with the default of `fallback`."""
    if cls in OF_ALL:
        pytest.skip("its decay changes the step size of all parameters")
    more, extra = arguments(cls)

    def stepped(weight_decay, mask=None):
        opt = cls(learning_rate=0.1, weight_decay=weight_decay, mask=mask, **more)
        step = interpreted(lambda *args: opt.step(*args, **extra)[0])
        return step(GRADS, opt.init(PARAMS), PARAMS)

    always, never = stepped(0.3), stepped(0.0)
    for i, name in enumerate(PARAMS):
        new = stepped(0.3, SPELLINGS[i % 3](name))
        for k in PARAMS:
            expected = (always if k == name else never)[k]
            np.testing.assert_allclose(new[k], expected, rtol=1e-5, err_msg=k)


class InTurn(eqx.Module):
    """A schedule whose numbers are data: other numbers reuse the program."""

    numbers: jax.Array

    def __call__(self, count):
        return self.numbers[count]


RATES = jnp.array([0.1, 0.05, 0.02])
# What the learning rate multiplies, with a maximum of 0.2.
MULTIPLIED = {
    "squared": 3 * RATES,
    "corrected": 3 * RATES / 0.2,
    "independent": 0.3 / RATES,
}


@of_each_optimizer(with_their_own=False)
@pytest.mark.costly
def test_every_optimizer_tells_it_the_learning_rate(cls):
    """A decay that depends on it is one on a schedule."""
    more, extra = arguments(cls)
    step = interpreted(lambda opt, *args: opt.step(*args, **extra))

    def trained(weight_decay):
        opt = cls(learning_rate=InTurn(RATES), weight_decay=weight_decay, **more)
        params, state = PARAMS, opt.init(PARAMS)
        for _ in RATES:
            grads = jax.tree.map(lambda p: p - 1, params)
            params, state = step(opt, grads, state, params)
        return params

    for mode, numbers in MULTIPLIED.items():
        decay = eqopt.AddDecayedWeights(
            0.3 if mode == "independent" else 3.0, mode=mode, max_learning_rate=0.2
        )
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
            trained(decay),
            trained(InTurn(numbers)),
        )
