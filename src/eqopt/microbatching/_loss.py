"""The loss of one example, and the arguments to differentiate with respect to."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from ._arguments import resolve_argnums
from ._rows import own_on_each_device


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

    def __check_init__(self):
        if len(self.batch_argnums) == 0:
            raise ValueError(
                "`batch_argnums` is empty. Pass at least one argument that is a batch."
            )

    def at(self, args: tuple[Any, ...]) -> "_LossAt":
        """The same for a call with these positional arguments."""
        argnums = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        return _LossAt(
            self,
            resolve_argnums("argnums", argnums, len(args)),
            resolve_argnums("batch_argnums", self.batch_argnums, len(args)),
        )


class _LossAt(eqx.Module):
    loss: Loss
    argnums: tuple[int, ...]
    batch_argnums: tuple[int, ...]

    def axes(self, args: tuple[Any, ...]) -> list[int | None]:
        """The batch axis of every argument."""
        return [0 if i in self.batch_argnums else None for i in range(len(args))]

    def wrt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
        """The arguments to differentiate with respect to."""
        batch = [args[i] for i in self.batch_argnums]
        chosen = own_on_each_device(
            tuple(args[i] for i in self.argnums), (batch, kwargs)
        )
        return chosen[0] if isinstance(self.loss.argnums, int) else chosen

    def expand(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Examples as batches of one, if the function expects batches."""
        if not self.loss.keep_batch_dim:
            return args
        return tuple(
            _expand(x) if i in self.batch_argnums else x for i, x in enumerate(args)
        )

    def value_and_aux(
        self, wrt: PyTree, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The loss for expanded arguments, with the arguments in `wrt` replaced."""
        chosen = (wrt,) if isinstance(self.loss.argnums, int) else wrt
        replaced = dict(zip(self.argnums, chosen, strict=True))
        args = tuple(replaced.get(i, x) for i, x in enumerate(args))
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
