"""The loss of one example, and the arguments to differentiate with respect to."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._jax_internals import varying_axes
from .._trees.control import vary
from .._trees.sharding import is_in_shard_map
from .._types import PyTree
from ._arguments import (
    Call,
    Place,
    as_tuple,
    by_place,
    find_places,
    is_single_key,
    is_state,
    list_places,
    replace,
)


# What an error in the function may be about, with and without `keep_batch_dim`.
_ONE_EXAMPLE = {
    True: "The function was called with one example, as a batch of one. If it takes an "
    "example without a batch axis, pass `keep_batch_dim=False`.",
    False: "The function was called with one example, without a batch axis, because of "
    "`keep_batch_dim=False`. If it takes a batch, omit this argument.",
}


@dataclasses.dataclass(frozen=True)
class Loss:
    """A function of one example, as `micro_grad` takes it, in one call.

    **Attributes:**

    - `fun`, `has_aux`, `keep_batch_dim`: as in `micro_grad`.
    - `wrt_places`, `is_one`: the arguments to differentiate with respect to, and whether
        the gradient is the one for a single argument rather than a tuple.
    - `batch_places`: the arguments in `batch_argnums`.
    - `axes`: the batch axis of each argument that has one.
    - `key`: the place of the argument with this name.
    """

    fun: Callable[..., Any]
    has_aux: bool
    keep_batch_dim: bool
    wrt_places: tuple[Place, ...]
    is_one: bool
    batch_places: tuple[Place, ...]
    axes: dict[Place, int]
    key: Place | None

    def wrt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
        """The arguments to differentiate with respect to."""
        given = by_place(args, kwargs)
        batch = [given[i] for i in self.batch_places]
        chosen = tuple(given[i] for i in self.wrt_places)
        chosen = _own_on_each_device(chosen, (batch, kwargs))
        return chosen[0] if self.is_one else chosen

    def expand(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Makes examples batches of one, if the function expects batches."""
        if not self.keep_batch_dim:
            return args, kwargs
        given = by_place(args, kwargs)
        expand = lambda x: jnp.expand_dims(x, 0) if eqx.is_array(x) else x
        examples = {i: jtu.tree_map(expand, given[i]) for i in self.batch_places}
        return replace(args, kwargs, examples)

    def value_and_aux(
        self, wrt: PyTree, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The loss for expanded arguments, with the arguments in `wrt` replaced."""
        chosen = (wrt,) if self.is_one else wrt
        chosen = dict(zip(self.wrt_places, chosen, strict=True))
        args, kwargs = replace(args, kwargs, chosen)
        try:
            out = self.fun(*args, **kwargs)
        except (TypeError, ValueError) as error:
            error.add_note(_ONE_EXAMPLE[self.keep_batch_dim])
            raise
        return out if self.has_aux else (out, None)


def find_loss(
    call: Call,
    has_aux: bool,
    argnums: int | Sequence[int],
    batch_argnums: int | Sequence[int],
    keep_batch_dim: bool,
) -> Loss:
    """Finds the arguments of the function in a call."""
    places, given = list_places(call), by_place(call.args, call.kwargs)
    batch_places = find_places(places, as_tuple(batch_argnums))
    numbered = {place for x, place in places.items() if isinstance(x, int)}
    key = places.get("key")
    is_batch = lambda place, x: (
        place in batch_places
        or (place == key and is_single_key(x))
        or not (place in numbered or is_state(x))
    )
    return Loss(
        call.fun,
        has_aux,
        keep_batch_dim,
        wrt_places=find_places(places, as_tuple(argnums)),
        is_one=isinstance(argnums, int),
        batch_places=batch_places,
        axes={i: 0 for i, x in given.items() if is_batch(i, x)},
        key=key,
    )


def _own_on_each_device(tree: PyTree, batch: PyTree) -> PyTree:
    """`tree`, whose arrays vary between devices wherever the batch does.

    Inside `jax.shard_map`, JAX would add up the gradients of all devices with respect to
    an array that does not, and mix different examples.
    """
    if not is_in_shard_map():
        return tree
    arrays = filter(eqx.is_array, jtu.tree_leaves(batch))
    axes = varying_axes(*map(jax.typeof, arrays))
    return jtu.tree_map(lambda x: vary(x, axes) if eqx.is_inexact_array(x) else x, tree)
