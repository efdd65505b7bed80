"""The import hook by which the library checks types when it is called."""

import os
import pathlib
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Array, Float, TypeCheckError

from eqopt._typecheck import checked


@checked
def add(x: Float[Array, "n"], y: Float[Array, "n"]) -> Float[Array, "n"]:
    return x + y


@checked
def twice(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jnp.concatenate([x, x])


@checked
def sum_of(x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, ""]:
    return add(x, y).sum()


def test_what_fits_passes():
    assert add(jnp.ones(2), y=jnp.ones(2)).shape == (2,)
    assert sum_of(jnp.ones(2), jnp.ones(2)) == 4  # axes are those of one call


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: add(jnp.ones(2), jnp.ones(3)), ["parameters of", "add", "'y'", "n=2"]),
        (lambda: add(jnp.ones(2), 1), ["parameters of", "add", "'y'"]),
        (lambda: twice(jnp.ones(2)), ["return value", "twice", "n=2"]),
        (lambda: sum_of(jnp.ones(2), jnp.ones(3)), ["parameters of", ".add."]),
    ],
)
def test_message(call, parts):
    with pytest.raises(TypeCheckError) as error:
        call()
    assert all(part in str(error.value) for part in parts)


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


MODULE = '''
"""A module that nothing has instrumented."""
import dataclasses
import functools
from typing import no_type_check

@functools.cache
def hidden(x: int) -> int:
    return x

@no_type_check
def free(x: int) -> int:
    return x

def _private(x: int) -> int:
    def inside(x: int) -> int:
        return x

    return inside(x)

@dataclasses.dataclass
class Base:
    x: int

    @property
    def wrong(self) -> str:
        return self.x

    @staticmethod
    def still(x: int) -> int:
        return x

    def __call__(self, x: int) -> int:
        return x

    def leafwise(self, x: int) -> int:
        return x

class Derived(Base):
    pass
'''

SCRIPT = """
import eqopt._typecheck, jaxtyping
eqopt._typecheck.check_package("package")
import package.module as module

assert module.__doc__.startswith("A module")
for unchecked in (module.free, module._private, module.Base(1).leafwise):
    assert unchecked("a") == "a"
calls = [
    lambda: module.hidden("a"),
    lambda: module.Base("a"),
    lambda: module.Derived("a"),
    lambda: module.Base(1).wrong,
    lambda: module.Base.still("a"),
    lambda: module.Base(1)("a"),
]
for call in calls:
    try:
        call()
    except jaxtyping.TypeCheckError:
        print("checked")
    else:
        print("passed")
"""


@pytest.mark.slow
def test_all_kinds_of_functions_whoever_compiled_them_before(tmp_path: pathlib.Path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "module.py").write_text(textwrap.dedent(MODULE))
    # As pip does when it installs.
    subprocess.run([sys.executable, "-m", "compileall", "-q", tmp_path], check=True)
    run = lambda **env: subprocess.check_output(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "JAXTYPING_DISABLE": "0"} | env,
        text=True,
    ).split()
    assert run() == ["checked"] * 6
    assert run() == ["checked"] * 6  # from the files that the first one compiled
    assert run(JAXTYPING_DISABLE="1") == ["passed"] * 6
