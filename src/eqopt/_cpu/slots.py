"""The order in which XLA on a CPU or a TPU computes the result and slots of a kernel.

If the result needs the old value of a slot, and the slot needs the old parameter, XLA
copies a donated array. If both share a quotient, XLA stores the quotient. With the
order in this module it does neither, because each value is computed from values that
are already stored.

Measured on two cores, float32, 20 leaves of 1M elements, everything donated: a step of
ADOPT, or of Schedule-Free with weight decay, takes no temporary memory instead of a
copy of the parameters.

XLA for a TPU also copies a donated array if the result needs both its old value and the
new value of another slot: it computes them in two passes. It computes a chain of values
in one pass, so there the order is a chain. Compiled for a TPU v5e: a step of Adadelta,
ACProp or GPA takes no temporary memory instead of a copy of the parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._jax_internals import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    attempt,
    bind,
    evaluate,
    is_traced,
    varying_axes,
)
from . import order


class Order(NamedTuple):
    """The slots of a kernel, as indices, that must be stored in a given order.

    **Attributes:**

    - `first`: stored before the result, which is computed from their new values.
    - `last`: computed again after the result, one after the other.
    - `earlier`: the slots of the equations before the one that names the others. They
        are stored first and not computed again. But if storing rounds them, no other
        value is computed from their stored values, and they come last.
    """

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    earlier: tuple[int, ...] = ()


def reordered(
    fn: Callable[..., tuple[Array, list]],
    fn_on_cpu: Callable[..., tuple[Array, list]],
    wanted: Order,
    packed: Array,
    g: Array,
    *arguments: Any,
) -> tuple[Array, list]:
    """`fn(packed, g, *arguments)`: a result and a list of slots, in the order `wanted`.

    On a CPU, it calls `fn_on_cpu`, which computes the same. Later values are computed
    again, from the new values of the slots that are stored, and otherwise from the
    arguments, which are read again. They do not use intermediate values: XLA would
    store a quotient, as large as the leaf, for the results that share it. Dividing
    again takes no memory.

    On a TPU, it calls `fn`, and slots from which nothing else is computed wait for the
    result, one after the other.
    """
    plain = lambda: fn(packed, g, *arguments)
    has_order = wanted.first or wanted.last or fn is not fn_on_cpu
    if not is_traced(g) or g.size < order.SMALL or not has_order:
        return plain()
    leaves, treedef = jax.tree.flatten((packed, g, *arguments))
    if not _vary_alike([x for x in leaves if x.shape == g.shape]):
        return plain()
    return attempt(lambda: _reordered(fn, fn_on_cpu, wanted, leaves, treedef), plain)


def _reordered(
    fn: Callable, fn_on_cpu: Callable, wanted: Order, leaves: list, treedef: Any
) -> tuple[Array, list]:
    flat = lambda fn: lambda *leaves: fn(*treedef.unflatten(leaves))
    jaxpr, shapes = jax.make_jaxpr(flat(fn), return_shape=True)(*leaves)
    other = jaxpr if fn is fn_on_cpu else jax.make_jaxpr(flat(fn_on_cpu))(*leaves)
    # The positions of each slot among the results. A slot may be a small tree.
    places, end = [], len(jax.tree.leaves(shapes[0]))
    for slot in shapes[1]:
        places.append(range(end, end + len(jax.tree.leaves(slot))))
        end = places[-1].stop

    @jax.named_scope(order.SCOPE)
    def in_order(*leaves):
        return _in_order(other, wanted, places, leaves)

    plain = lambda *leaves: evaluate(jaxpr, leaves)
    chain = lambda *leaves: _chained(jaxpr, leaves)
    results = lax.platform_dependent(*leaves, cpu=in_order, tpu=chain, default=plain)
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _in_order(
    jaxpr: ClosedJaxpr, wanted: Order, places: list[range], leaves: Sequence[Array]
) -> list[Array]:
    outputs, is_read = jaxpr.jaxpr.outvars, _is_read(jaxpr)
    is_used = lambda i: all(is_read(outputs[j]) for j in places[i])
    first = wanted.first if all(map(is_used, wanted.first)) else ()
    last = [*wanted.last, *(i for i in wanted.earlier if not is_used(i))]
    results = evaluate(jaxpr, leaves)
    shape = results[0].shape
    # The slots that are stored already, from which other slots are computed.
    stored = [i for i in range(len(places)) if i not in (*first[1:], *last)]
    stored = [i for i in stored if any(is_read(outputs[j]) for j in places[i])]

    def again(previous):
        """All results, from stored slots and from arguments not yet overwritten."""
        # The first two arguments are never overwritten.
        late = [*leaves[:2], *(_elementwise(previous, x) for x in leaves[2:])]
        known = {
            outputs[j]: _elementwise(previous, results[j])
            for i in stored
            for j in places[i]
            if is_read(outputs[j])
        }
        return _evaluated(jaxpr, late, known)

    previous = results[0]
    for i in first:
        if i not in stored:
            new = again(previous)
            for j in places[i]:
                results[j] = new[j]
            stored.append(i)
        previous = results[places[i][-1]]
    if first:
        # Several arrays if a parameter is stored in two parts, which must fit together.
        n = places[0].start
        results[:n] = again(previous)[:n]
        previous = results[0]
    for i in last:
        new = again(previous)
        for j in places[i]:
            results[j] = _elementwise(previous, new[j])
            previous = results[j] if results[j].shape == shape else previous
    return results


def _chained(jaxpr: ClosedJaxpr, leaves: Sequence[Array]) -> list[Array]:
    results, is_read = evaluate(jaxpr, leaves), _is_read(jaxpr)
    given, last = jaxpr.jaxpr.invars, results[0]
    for j, x in enumerate(results[1:], 1):
        # A value from which others are computed is in the chain already.
        y = jaxpr.jaxpr.outvars[j]
        is_end = not is_read(y) or y in given
        is_like_last = x.shape == last.shape and jnp.issubdtype(x.dtype, jnp.inexact)
        if is_end and is_like_last:
            results[j] = last = order.selected_after(x, last)
    return results


def _is_read(jaxpr: ClosedJaxpr) -> Callable[[Any], bool]:
    """Whether a value is the argument of an equation."""
    read = {v for x in jaxpr.eqns for v in x.invars if not isinstance(v, Literal)}
    return lambda x: not isinstance(x, Literal) and x in read


def _vary_alike(leaves: Sequence[Array]) -> bool:
    """Whether all leaves vary over the same axes of a mesh, within `shard_map`."""
    return len({varying_axes(jax.typeof(x)) for x in leaves}) == 1


def _evaluated(
    closed: ClosedJaxpr, leaves: Sequence[Array], known: Mapping[Any, Array]
) -> list[Array]:
    """The results of a traced function, if some of its values are known."""

    def compute(eqn: JaxprEqn, inputs: list[Any]) -> list[Any]:
        return list(map(known.get, eqn.outvars, bind(eqn, inputs)))

    return evaluate(closed, leaves, compute)


def _elementwise(first: Array, x: Array) -> Array:
    return order.read_after(x, first) if x.shape == first.shape else x
