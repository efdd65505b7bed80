"""Evaluates the equations of traced functions, and reads the types of their arrays."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import JaxprEqn


def bind(eqn: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of an equation for the given inputs."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # Before JAX 0.9.2, functions among the parameters were passed as arguments.
    functions, params = params if isinstance(params, tuple) else ((), params)
    outputs = eqn.primitive.bind(*functions, *inputs, **params)
    return outputs if eqn.primitive.multiple_results else [outputs]


def manual_type(aval: Any) -> Any:
    """How an array varies between devices inside `jax.shard_map`.

    It is the set of the axes along which the array varies, and from JAX 0.10 on, an
    object that has this set as `varying`.
    """
    return getattr(aval, "manual_axis_type", getattr(aval, "vma", None))
