"""Vectorise a function, one microbatch at a time."""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
from jaxtyping import Array, ArrayLike, PyTree

from ._accumulator import AccumulationType, check_accumulator
from ._microbatch import accumulate, call
from ._rows import Batch, check_size, find_batch


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] = 0,
    out_axes: int = 0,
    *,
    microbatch_size: int | None = None,
    vmap_fn: Callable[..., Callable[..., Any]] = jax.vmap,
    accumulator: PyTree = AccumulationType.CONCAT,
    num_real_microbatches: ArrayLike | None = None,
) -> Callable[..., Any]:
    """Vectorises a function of one example, with the memory of one microbatch.

    As `eqx.filter_vmap`, arrays are mapped and other leaves are passed to every example
    as they are. Unlike there, the examples are evaluated in microbatches, and the
    outputs can be reduced on the way, so that they need never exist all at once.

    !!! example

        ```python
        from eqopt.microbatching import micro_vmap

        # `model` is the same for every row of `x`; 32 rows at a time.
        y = micro_vmap(lambda m, x: m(x), (None, 0), microbatch_size=32)(model, x)
        ```

    **Arguments:**

    - `fun`: a function of one example. Its arguments and its output may be any pytrees,
        with leaves that are not arrays.
    - `in_axes`: the axis to map over, for all positional arguments; or a sequence with
        an axis, or `None` for an argument that is not mapped, for each of them. May be
        negative. Keyword arguments are mapped over axis 0. Defaults to 0.
    - `out_axes`: where the mapped axis goes in the output. Only 0 is supported.
    - `microbatch_size`: the number of examples per microbatch. Need not divide the
        number of examples. Defaults to `None`: all at once.
    - `vmap_fn`: what vectorises a microbatch: a function like `jax.vmap`, called as
        `vmap_fn(function_of_arrays, in_axes=..., out_axes=0)`. Defaults to `jax.vmap`.
    - `accumulator`: what to do with the outputs, as in
        [`eqopt.microbatching.microbatch`][]. Sums and means are over examples. Defaults
        to `CONCAT`: one output per example, along axis 0.
    - `num_real_microbatches`: as in [`eqopt.microbatching.microbatch`][].

    **Returns:**

    A function with the arguments of `fun`, those that are mapped having one more axis.

    **Raises:**

    `ValueError` as [`eqopt.microbatching.microbatch`][] does (only that integers have a
    mean here, as in `jnp.mean`), and if `out_axes` is not 0.
    """
    check_size(microbatch_size)
    check_accumulator(accumulator)
    if out_axes != 0:
        raise ValueError(
            f"`out_axes` must be 0, got {out_axes}. Use `jnp.moveaxis` on the result."
        )
    out = _MicroVmap(
        fun,
        in_axes if isinstance(in_axes, int) else tuple(in_axes),
        microbatch_size,
        vmap_fn,
        accumulator,
        num_real_microbatches,
    )
    return eqx.module_update_wrapper(out)


class _MicroVmap(eqx.Module):
    fun: Callable[..., Any]
    in_axes: int | tuple[int | None, ...]
    microbatch_size: int | None
    vmap_fn: Callable[..., Callable[..., Any]]
    accumulator: PyTree
    num_real_microbatches: Any

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        in_axes = self.in_axes
        if isinstance(in_axes, int):
            in_axes = (in_axes,) * len(args)
        if len(in_axes) != len(args):
            raise ValueError(
                f"`in_axes={in_axes}` has length {len(in_axes)}, but this call has "
                f"{len(args)} positional arguments. Give an axis or `None` for each, "
                "or a single int for all."
            )
        kwarg_axes = dict.fromkeys(kwargs, 0)
        batch = find_batch(args, kwargs, in_axes, kwarg_axes, self.microbatch_size)
        mapped_axes = tuple(axis for axis in batch.axes if axis is not None)
        one = ft.partial(_one_example, self.fun, batch)
        vectorised = self.vmap_fn(one, in_axes=mapped_axes, out_axes=0)
        return accumulate(
            ft.partial(_examples, vectorised, batch),
            batch,
            self.accumulator,
            self.num_real_microbatches,
            has_rows=True,
        )


def _examples(vectorised: Callable[..., Any], batch: Batch, leaves: list[Any]) -> Any:
    mapped = [x for x, a in zip(leaves, batch.axes, strict=True) if a is not None]
    dynamic, static = vectorised(*mapped)
    return eqx.combine(dynamic, static.value)


def _one_example(fun: Callable[..., Any], batch: Batch, *mapped: Array) -> Any:
    rows = iter(mapped)
    pairs = zip(batch.leaves, batch.axes, strict=True)
    leaves = [x if axis is None else next(rows) for x, axis in pairs]
    # `jax.vmap` returns arrays only: whatever else there is goes through as metadata.
    dynamic, static = eqx.partition(call(fun, batch.treedef, leaves), eqx.is_array)
    return dynamic, eqxi.Static(static)
