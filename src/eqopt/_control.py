"""Loops whose end may be known while the program runs."""

from collections.abc import Callable
from typing import Any, TypeVar

from jax import lax
from jax.core import Tracer


_Carry = TypeVar("_Carry")


def while_loop(
    goes_on: Callable[[_Carry], Any], body: Callable[[_Carry], _Carry], start: _Carry
) -> _Carry:
    """`lax.while_loop`; outside of `jit` it is `while`.

    There JAX would compile the two functions, which close over arrays, in each step anew.
    """
    now = start
    while not isinstance(more := goes_on(now), Tracer):
        if not more:
            return now
        now = body(now)
    return lax.while_loop(goes_on, body, now)
