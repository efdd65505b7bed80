"""Workers along a mapped axis, and what they can send to each other."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from .._arguments.construction import Module
from .._errors import InputError
from .._trees.sharding import is_in_shard_map


class Workers(Module):
    """The workers along an axis of `jax.shard_map` or `jax.vmap`.

    **Arguments:**

    - `axis_name`: the name of the axis, or several names. `None` means one worker.
    - `owner`: the class to name in errors. Defaults to `"Workers"`.

    **Raises:**

    A `ValueError` if no axis has this name.
    """

    axis_name: str | tuple[str, ...] | None
    owner: str = "Workers"

    def __check_init__(self) -> None:
        try:
            self.count  # noqa: B018
        except NameError:
            raise InputError(
                self.owner,
                f"`axis_name` is {self.axis_name!r}, but no such axis is mapped here. "
                "Call `step` inside `jax.shard_map` or `jax.vmap` over this axis. For "
                "one worker, pass `axis_name=None`.",
            ) from None

    @property
    def count(self) -> int:
        """The number of workers, $K$."""
        return 1 if self.axis_name is None else lax.axis_size(self.axis_name)

    def mean(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The mean over all workers."""
        return x if self.axis_name is None else lax.pmean(x, self.axis_name)

    def gather(self, x: Shaped[Array, "..."]) -> Shaped[Array, "workers ..."]:
        """The arrays of all workers, equal for all of them."""
        if self.axis_name is None:
            return x[None]
        # `shard_map` has to know that the result is the same for all. `vmap` does not,
        # and in JAX 0.10 it cannot gather in this way.
        to = "invarying" if is_in_shard_map() else "varying"
        return lax.all_gather(x, self.axis_name, to=to)

    def exchange(self, x: Shaped[Array, "workers ..."]) -> Shaped[Array, "workers ..."]:
        """Sends row $i$ to worker $i$; row $j$ of the result is from worker $j$."""
        if self.axis_name is None:
            return x
        return lax.all_to_all(x, self.axis_name, 0, 0)

    def only_here(self, x: Shaped[Array, "..."]) -> Shaped[Array, "workers ..."]:
        """`x` in the row of this worker, and zeros in the rows of the others."""
        if self.axis_name is None:
            return x[None]
        rows = jnp.arange(self.count).reshape(-1, *[1] * x.ndim)
        return jnp.where(rows == lax.axis_index(self.axis_name), x[None], 0)
