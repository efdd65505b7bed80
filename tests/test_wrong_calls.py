"""Arguments of wrong types: messages are short, and name the argument."""

import inspect
import typing

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
import pytest
from beartype.door import is_bearable

import eqopt

from .test_typecheck import functions


tree, groups, checkpoint = eqopt.tree, eqopt.groups, eqopt.checkpoint
MODEL = eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0))
OPT = eqopt.AdamW(1e-3)
STATE = OPT.init(MODEL)
a: typing.Any = lambda x: x  # a function, and no type for a type checker

WRONG = {
    "get": (
        lambda: tree.get("learning_rate", a(OPT)),
        "eqopt.tree.get: `key` must be a string, but is AdamW(learning_rate=0.001) of "
        "type AdamW.",
    ),
    "a class": (
        lambda: eqopt.testing.check_laws(a(eqopt.AdamW), MODEL),
        "eqopt.testing.check_laws: `opt` must be of type `AbstractTransformation`, but "
        "is the class AdamW. Create an instance of it.",
    ),
    "a transformation of Optax": (
        lambda: eqopt.testing.check_laws(a(optax.adam(1e-3)), MODEL),
        "eqopt.testing.check_laws: `opt` must be of type `AbstractTransformation`, but "
        "is `GradientTransformationExtraArgs` of Optax. Wrap it: ",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_message(name):
    call, message = WRONG[name]
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).startswith(message)


class Anything:
    """Fits no type, and has a long description, as a model has."""

    def __repr__(self):
        return "layer\n" * 1000


def typed():
    """Each argument of a public function that has a type, with the function."""
    for name, fn in functions():
        for parameter in inspect.signature(fn, eval_str=True).parameters.values():
            if not is_bearable(Anything(), parameter.annotation):
                yield f"{name}({parameter.name})", (fn, parameter)


TYPED = dict(typed())


@pytest.mark.costly
@pytest.mark.parametrize("name", TYPED)
def test_each_argument_of_each_function(name):
    fn, parameter = TYPED[name]
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        names = [*inspect.signature(fn).parameters]
        before = [None] * names.index(parameter.name)
        call = lambda: fn(*before, Anything())
    else:
        call = lambda: fn(**{parameter.name: Anything()})
    with pytest.raises(TypeError) as error:
        call()
    message = str(error.value)
    assert "`" in message and len(message) < 700, name


def test_names_of_axes_of_the_caller_do_not_count():
    """They are bound while a checked function calls another one."""
    from .test_typecheck import sum_of

    with pytest.raises(TypeError, match="shapes do not fit"):
        sum_of(jnp.ones(2), jnp.ones(3))
