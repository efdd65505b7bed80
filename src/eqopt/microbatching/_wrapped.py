"""What the public functions return: the user's function, evaluated in another way."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from .._errors import naming
from ._arguments import Call


class _Wrapped(eqx.Module):
    owner: str
    fun: Callable[..., Any]
    run: Callable[..., Any]
    arguments: tuple[Any, ...]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with naming(self.owner):
            return self.run(Call(self.fun, args, kwargs), *self.arguments)


def wrap(
    owner: str, fun: Callable[..., Any], run: Callable[..., Any], *arguments: Any
) -> Callable[..., Any]:
    """A function with the name and the signature of `fun` that calls `run`.

    It is a Module, so that the arrays in `fun` and in `arguments` are inputs of what
    `eqx.filter_jit` compiles.

    **Arguments:**

    - `owner`: the public function, for errors.
    - `fun`: the function of the user.
    - `run`: a function of a `Call` and all of `arguments`.
    """
    return eqx.module_update_wrapper(_Wrapped(owner, fun, run, arguments))
