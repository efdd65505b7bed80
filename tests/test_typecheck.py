"""What users call checks the types of its arguments; what the library calls does not."""

import functools
import inspect
import pickle
import sys
import types

import jax.numpy as jnp
import jaxtyping
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Array, Float

import eqopt
from eqopt._errors import InputError
from eqopt._typecheck import _PROTOCOL, checked, needs_check

from .laws.registry import concrete_transformations


@functools.partial(checked, owner="add")
def add(x: Float[Array, "n"], y: Float[Array, "n"]) -> Float[Array, "n"]:
    return x + y


@checked
def twice(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jnp.concatenate([x, x])


@functools.partial(checked, owner="sum_of")
def sum_of(x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, ""]:
    return add(x, y).sum()


def test_what_fits_passes():
    assert add(jnp.ones(2), y=jnp.ones(2)).shape == (2,)
    assert sum_of(jnp.ones(2), jnp.ones(2)) == 4  # a name of an axis is for one call


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (
            lambda: add(jnp.ones(2), jnp.ones(3)),
            ["add: shapes do not fit", "`y` has [3]"],
        ),
        (lambda: add(jnp.ones(2), 1), ["add: `y` must be", "but is 1 of type int."]),
        (lambda: sum_of(jnp.ones(2), jnp.ones(3)), ["add: shapes do not fit"]),
    ],
)
def test_message(call, parts):
    with pytest.raises(TypeError) as error:
        call()
    assert all(part in str(error.value) for part in parts)


def test_a_wrong_result():
    with pytest.raises(BeartypeCallHintViolation, match=r"twice\(\) return .* n is 4"):
        twice(jnp.ones(2))


def test_wrong_number_of_arguments():
    with pytest.raises(TypeError, match=r"add\(\) missing 1 required .* 'y'"):
        add(jnp.ones(2))


def test_errors_of_users_are_theirs():
    @beartype
    def loss(x: int) -> int:
        return x

    @checked
    def call(fn: object) -> object:
        return loss("one")  # type: ignore

    with pytest.raises(BeartypeCallHintViolation, match="loss"):
        call(loss)


def functions():
    """All public functions, by name."""
    for package in (eqopt, *(getattr(eqopt, name) for name in dir(eqopt))):
        if isinstance(package, types.ModuleType) and hasattr(package, "__path__"):
            for name in dir(package):
                if isinstance(found := getattr(package, name), types.FunctionType):
                    yield f"{package.__name__}.{name}", found


@pytest.mark.parametrize(("name", "fn"), [*functions()])
def test_public_functions_are_checked(name, fn):
    assert not needs_check(fn)
    package, _, last = name.rpartition(".")
    assert getattr(sys.modules[package], last) is fn
    assert pickle.loads(pickle.dumps(fn)) is fn  # found by the name of its module


def test_constructors_and_public_methods_are_checked():
    unchecked = []
    for cls in concrete_transformations():
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            is_ours = (
                method.__module__.startswith("eqopt.") and "." in method.__qualname__
            )
            is_public = not name.startswith("_") or name == "__init__"
            # `init` has another wrapper around the check.
            found = inspect.unwrap(method, stop=lambda fn: not needs_check(fn))
            is_public &= name not in _PROTOCOL
            if is_ours and is_public and needs_check(found):
                unchecked.append(f"{cls.__name__}.{name}")
    assert not unchecked


def test_classes_of_users_are_not_checked():
    class Mine(eqopt.AbstractTransformation):
        def same(self, x: int) -> int:
            return x

    assert needs_check(Mine.same)


WRONG = [
    lambda: eqopt.tree.zeros_like({}, dtype=object()),
    lambda: eqopt.numerics.safe_sqrt("a"),
]


@pytest.mark.parametrize("call", WRONG)
def test_checks_can_be_turned_off(call):
    with pytest.raises(InputError):
        call()
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        call()
    except Exception as error:
        assert not isinstance(error, InputError)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
