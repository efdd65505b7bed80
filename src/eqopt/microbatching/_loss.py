"""The loss of one example, and the arguments to differentiate with respect to."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._types import PyTree
from ._arguments import find_places, list_places, replace
from ._keys import is_single_key
from ._rows import own_on_each_device
from ._state import is_state


# What an error in the function may be about, with and without `keep_batch_dim`.
_ONE_EXAMPLE = {
    True: "The function was called with one example, as a batch of one. If it takes an "
    "example without a batch axis, pass `keep_batch_dim=False`.",
    False: "The function was called with one example, without a batch axis, because of "
    "`keep_batch_dim=False`. If it takes a batch, omit this argument.",
}


class Loss(eqx.Module):
    """A function of one example, with the arguments that `micro_grad` takes for it."""

    fun: Callable[..., Any]
    has_aux: bool
    argnums: int | tuple[int, ...]
    batch_argnums: tuple[int, ...]
    keep_batch_dim: bool

    def __check_init__(self) -> None:
        if len(self.batch_argnums) == 0:
            raise ValueError(
                "`batch_argnums` is empty. Pass at least one argument that is a batch."
            )

    def at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_LossAt":
        """Finds the arguments in a call."""
        argnums = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        places = list_places(self.fun, args, kwargs)
        return _LossAt(
            self,
            find_places(places, argnums),
            find_places(places, self.batch_argnums, prefix="batch_"),
            frozenset(place for x, place in places.items() if isinstance(x, int)),
            places.get("key"),
        )


class _LossAt(eqx.Module):
    loss: Loss
    wrt_places: tuple[int | str, ...]
    batch_places: tuple[int | str, ...]
    numbered_places: frozenset[int | str]
    key: int | str | None  # the place of the argument with this name

    def axes(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[int | str, int]:
        """The batch axis of each argument that has one."""
        return {
            place: 0
            for place, x in (dict(enumerate(args)) | kwargs).items()
            if place in self.batch_places
            or (place == self.key and is_single_key(x))
            or not (place in self.numbered_places or is_state(x))
        }

    def wrt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
        """The arguments to differentiate with respect to."""
        by_place = dict(enumerate(args)) | kwargs
        batch = [by_place[i] for i in self.batch_places]
        chosen = tuple(by_place[i] for i in self.wrt_places)
        chosen = own_on_each_device(chosen, (batch, kwargs))
        return chosen[0] if isinstance(self.loss.argnums, int) else chosen

    def expand(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Makes examples batches of one, if the function expects batches."""
        if not self.loss.keep_batch_dim:
            return args, kwargs
        by_place = dict(enumerate(args)) | kwargs
        examples = {i: _expand(by_place[i]) for i in self.batch_places}
        return replace(args, kwargs, examples)

    def value_and_aux(
        self, wrt: PyTree, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The loss for expanded arguments, with the arguments in `wrt` replaced."""
        chosen = (wrt,) if isinstance(self.loss.argnums, int) else wrt
        chosen = dict(zip(self.wrt_places, chosen, strict=True))
        args, kwargs = replace(args, kwargs, chosen)
        try:
            out = self.loss.fun(*args, **kwargs)
        except (TypeError, ValueError) as error:
            error.add_note(_ONE_EXAMPLE[self.loss.keep_batch_dim])
            raise
        if not self.loss.has_aux:
            return out, None
        if not isinstance(out, tuple) or len(out) != 2:
            raise ValueError(
                "With `has_aux=True`, the function must return a pair of a scalar and "
                f"anything else, but returned {eqx.tree_pformat(out)}."
            )
        return out


def make_loss(
    fun: Callable[..., Any],
    has_aux: bool,
    argnums: Any,
    batch_argnums: Any,
    keep_batch_dim: bool,
) -> Loss:
    return Loss(
        fun,
        has_aux,
        argnums if isinstance(argnums, int) else tuple(argnums),
        (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums),
        keep_batch_dim,
    )


def _expand(example: PyTree) -> PyTree:
    return jtu.tree_map(
        lambda x: jnp.expand_dims(x, 0) if eqx.is_array(x) else x, example
    )
