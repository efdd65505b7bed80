"""Convolutions that are as fast inside a loop as outside.

XLA on a CPU has a fast convolution, which requires the channels to be last. Outside
loops, XLA moves them there automatically. Inside, the same convolution takes ten times
as long.
"""

from collections.abc import Sequence
from typing import Any

from jax import lax
from jaxtyping import Array

from .. import _jax_internals as internals
from .._jax_internals import ClosedJaxpr, JaxprEqn, bind
from ._interpret import evaluate, has_equation, rematerialised


_CONVOLUTION = "conv_general_dilated"


def evaluate_in_loop(closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """The outputs of a traced function that is called in a loop."""
    if has_equation(closed, _CONVOLUTION):
        return evaluate(closed, args, _channels_last)
    return internals.evaluate(closed, args)  # without inlining


def _channels_last(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any] | None:
    if rematerialised(eqn) is not None:
        return bind(eqn, inputs)  # already marked as part of a derivative
    if eqn.primitive.name != _CONVOLUTION:
        return None
    as_it_is = lambda *inputs: bind(eqn, inputs)[0]
    moved = lambda *inputs: _moved(eqn, *inputs)
    return [lax.platform_dependent(*inputs, cpu=moved, default=as_it_is)]


def _moved(eqn: JaxprEqn, lhs: Array, rhs: Array) -> Array:
    """The convolution with the channels of all three arrays moved to the end."""
    old = eqn.params["dimension_numbers"]
    n = lhs.ndim
    space = tuple(range(1, n - 1))
    new = lax.ConvDimensionNumbers(
        lhs_spec=(0, n - 1, *space),
        rhs_spec=(n - 1, n - 2, *range(n - 2)),
        out_spec=(0, n - 1, *space),
    )
    # Specs list where batch (or outputs), channels (or inputs) and space are.
    move = lambda x, old, new: lax.transpose(
        x, [old[new.index(axis)] for axis in range(n)]
    )
    (out,) = bind(
        eqn.replace(params={**eqn.params, "dimension_numbers": new}),
        [move(lhs, old.lhs_spec, new.lhs_spec), move(rhs, old.rhs_spec, new.rhs_spec)],
    )
    return move(out, new.out_spec, old.out_spec)
