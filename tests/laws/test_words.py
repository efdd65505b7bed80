"""Messages name the class that the user wrote, and the argument, for every row."""

import dataclasses
import inspect
import itertools
import re
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt._arguments.annotations import parts_of

from .registry import law
from .subjects import params_of


PARAMS = params_of()
GRADS = jax.tree.map(jnp.ones_like, PARAMS)


FRESH = object()


def error_of(build, state=FRESH, grads=GRADS, params=PARAMS):
    """The error message from building the optimizer and taking its first step."""

    def step(grads):
        opt = build()
        opt.update(grads, opt.init(PARAMS) if state is FRESH else state, params)

    try:
        eqx.filter_eval_shape(step, grads)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def written(row):
    """The names of the classes in the `repr` of the optimizer."""
    return re.findall(r"\b([A-Z]\w+)\(", repr(row()))


def names(message, words):
    return any(re.search(rf"\b{word}\b", message) for word in words)


OTHERS = {
    "a dictionary": {"mu": GRADS},
    "another's": eqopt.ScaleByAdadelta().init(PARAMS),
    "a longer chain's": eqopt.Chain(*[eqopt.ZeroNaNs()] * 7).init(PARAMS),
}


@law()
def test_a_wrong_state(row):
    for state in OTHERS.values():
        if type(state) is type(row().init(PARAMS)):
            continue
        message = error_of(row, state)
        assert message and names(message, written(row)), message
        assert "state" in message


NO_NUMBERS = {"text": "text", "an object": object()}


def constructors(node):
    """Classes in the optimizer whose constructors take their fields, with instances."""
    if isinstance(node, tuple | list):
        for part in node:
            yield from constructors(part)
    elif isinstance(node, eqx.Module):
        fields = [field.name for field in dataclasses.fields(node)]
        is_ours = type(node).__module__.startswith("eqopt.")
        if is_ours and {*fields} <= {*inspect.signature(type(node)).parameters}:
            yield type(node), node
        yield from constructors([getattr(node, name, None) for name in fields])


@law()
def test_a_value_that_is_no_number(row):
    """A constructor takes it or names the argument, in each of its fields."""
    for cls, node in dict(constructors(row())).items():
        for field, (found, value) in itertools.product(
            dataclasses.fields(node), NO_NUMBERS.items()
        ):
            try:
                dataclasses.replace(node, **{field.name: value})
            except (TypeError, ValueError) as error:
                assert f"`{field.name}`" in str(error), (cls, found, str(error))
            else:
                parts, _ = parts_of(field.type)
                assert parts not in ([bool], [int]), (cls, field.name, found)


def other_choices(field, value):
    """Values that determine the program, for a field, other than its value."""
    if isinstance(value, bool):
        return [not value]
    kinds, _ = parts_of(field.type)
    literals = [k for k in kinds if typing.get_origin(k) is typing.Literal]
    words = [x for kind in literals for x in typing.get_args(kind)]
    is_count = field.metadata.get("static") and int in kinds
    return [x for x in [*words, *([1, 2, 3] if is_count else [])] if x != value]


def shapes_of(opt):
    shapes = eqx.filter_eval_shape(opt.init, PARAMS)
    return jax.tree.map(jnp.shape, shapes), jax.tree.structure(shapes)


# A counter that is not needed stays as it is.
UNUSED = {(eqopt.AddDecayedWeights, "mode")}


@law()
def test_a_state_of_another_choice(row):
    """The old state of another rank or block size is no state of this optimizer."""
    opt = row()
    if (type(opt), opt) not in [*constructors(opt)]:
        return
    state = opt.init(PARAMS)
    for field in dataclasses.fields(opt):
        for choice in other_choices(field, getattr(opt, field.name)):
            try:
                new = dataclasses.replace(opt, **{field.name: choice})
                is_alike = shapes_of(new) == shapes_of(opt)
            except (TypeError, ValueError):
                continue
            if not (is_alike or (type(opt), field.name) in UNUSED):
                message = error_of(lambda new=new: new, state)
                assert message, field.name
                has_shapes = "select cases must have the same shapes" in message
                is_ours = "state" in message.lower() and names(message, written(row))
                assert is_ours or has_shapes, (field.name, message)


# Functions of the user and transformations of Optax have their own errors.
OF_OTHERS = "Stateless", "from_optax("
LARGER = jax.tree.map(lambda p: jnp.ones([n + 1 for n in p.shape]), PARAMS)


@law()
@pytest.mark.costly
def test_a_model_of_other_shapes(row):
    """The message names the class, or is one of JAX that names both shapes."""
    state = row().init(PARAMS)
    for grads, params in ((LARGER, LARGER), (LARGER, PARAMS), (GRADS, LARGER)):
        message = error_of(row, state, grads, params)
        if message is not None:
            is_of_others = row.name.startswith(OF_OTHERS)
            known = names(message, [*written(row), "apply_updates"]) and "`" in message
            has_shapes = re.search(r"shapes.*\(\d.*\), \(\d", message)
            assert is_of_others or known or has_shapes, message


@law()
@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.float8_e4m3fn])
def test_gradients_of_other_dtypes(row, dtype):
    """For real parameters, and where no gradients are read, without an error."""
    message = error_of(row, grads=jax.tree.map(lambda g: g.astype(dtype), GRADS))
    if message is not None and dtype == jnp.complex64:
        assert names(message, written(row)) and "complex" in message, message
    elif message is not None:
        assert "float8_e4m3fn" in message and "shapes do not fit" not in message
