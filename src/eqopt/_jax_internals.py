"""All that eqopt uses of JAX beyond its public interface.

JAX promises nothing about these names, so a release may change each of them. Then eqopt
still works, with the last column instead:

| used | for | if it is gone |
| :-- | :-- | :-- |
| `jax.core.Tracer` | whether a value is known | the array is asked for its devices |
| `jax.extend.core`, `eqn.primitive`, `eqn.params`, `eqn.ctx` | reading and evaluating \
traced programs: norms of per-example gradients from factors, convolutions in loops | \
the function itself runs: the same results, with more memory or time |
| `jax.__version_info__` | the order of branches with the fewest copies | the order for \
new releases |
| `jax.experimental.layout` | the order in memory of matrices that are computed in parts \
| XLA chooses it, and may copy all of them |
| `type.manual_axis_type` | inside `jax.shard_map`, the axes along which an array varies \
| branches must agree about it on their own, and all shards get the same noise |

Import these names from here, and use traced programs only inside `attempt`.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax


_Result = TypeVar("_Result")

if TYPE_CHECKING:
    from jax.core import Tracer as _Tracer
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var as Var

    Tracer: type[_Tracer] | None
    Layout: Any
    with_layout_constraint: Any
else:

    def _imported(module: str, name: str) -> type | None:
        """A class of JAX; `None` if it is gone, or if the import warns that it goes."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return getattr(importlib.import_module(module), name)
        except Exception:
            return None

    Tracer = _imported("jax.core", "Tracer")
    Layout, with_layout_constraint = (
        _imported("jax.experimental.layout", name)
        for name in ("Layout", "with_layout_constraint")
    )
    # Without JAX's classes, these have no instances, so that reading a program fails.
    ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var = (
        _imported("jax.extend.core", name) or type(name, (), {})
        for name in ("ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "Var")
    )


# The release of JAX.
release: tuple[int, ...] = getattr(jax, "__version_info__", (0, 11))

# Tests set this, so that no release of JAX turns a trick off without a failure.
raises = False


def attempt(trick: Callable[[], _Result], plain: Callable[[], _Result]) -> _Result:
    """`trick()`, which reads a traced program; if this fails, `plain()`.

    JAX has traced the program without an error, so an error is about reading it. An error
    of the user's own function occurs in `plain` again.
    """
    try:
        return trick()
    except Exception:
        if raises:
            raise
        return plain()


def is_traced(x: Any) -> bool:
    """Whether `x` is an array of JAX without a value, inside a transformation."""
    if Tracer is not None:
        return isinstance(x, Tracer)
    try:
        return isinstance(x, jax.Array) and not x.devices()
    except jax.errors.ConcretizationTypeError:
        return True


def row_major(x: Any) -> Any:
    """`x`, with its last axis contiguous in memory, whatever XLA would choose."""
    if Layout is None or with_layout_constraint is None:
        return x
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def varying_axes(*types: Any) -> frozenset:
    """The axes of a mesh along which arrays of these types vary in `jax.shard_map`."""
    manual = (getattr(x, "manual_axis_type", None) for x in types)
    return frozenset().union(*(getattr(x, "varying", ()) for x in manual))


#
# Traced programs
#


def opened(program: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, Sequence[Any]]:
    """A program and its constants."""
    is_closed = isinstance(program, ClosedJaxpr)
    return (program.jaxpr, program.consts) if is_closed else (program, ())


def evaluate(
    program: ClosedJaxpr | Jaxpr,
    inputs: Sequence[Any],
    compute: Callable[[JaxprEqn, list[Any]], Sequence[Any]] | None = None,
) -> list[Any]:
    """The outputs of a program.

    `compute` takes an equation with its inputs, and returns its outputs. Defaults to
    `bind`.
    """
    jaxpr, consts = opened(program)
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))
    read = lambda xs: [x.val if isinstance(x, Literal) else values[x] for x in xs]
    for eqn in jaxpr.eqns:
        with eqn.ctx.manager:
            outputs = (compute or bind)(eqn, read(eqn.invars))
        values.update(zip(eqn.outvars, outputs, strict=True))
    return read(jaxpr.outvars)


def bind(eqn: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of an equation for the given inputs."""
    outputs = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return outputs if eqn.primitive.multiple_results else [outputs]
