"""Vectorise a function, one microbatch at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
from jaxtyping import Array, ArrayLike

from .._errors import InputError
from .._types import IntegerLike, PyTree, StaticInteger
from ._accumulator import AccumulationType
from ._arguments import Batch, Call, find_batch, is_state, list_places
from ._loop import Options, make_options, run
from ._wrapped import wrap


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] = 0,
    out_axes: int = 0,
    *,
    microbatch_size: StaticInteger | None = None,
    vmap_fn: Callable[..., Callable[..., Any]] = jax.vmap,
    accumulator: PyTree = AccumulationType.CONCAT,
    weights: ArrayLike | None = None,
    num_real_microbatches: IntegerLike | None = None,
) -> Callable[..., Any]:
    """Vectorises a function of one example, with the memory of one microbatch.

    Like `eqx.filter_vmap`, it maps over arrays and passes other leaves to every example
    unchanged. Unlike `eqx.filter_vmap`, it evaluates the examples in microbatches. The
    outputs can be reduced along the way, so they need not all exist at once.

    An `eqx.nn.State` that is not mapped is passed from one microbatch to the next, if
    `fun` also returns it. All examples of a microbatch must return the same State.

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
        an axis for each argument in the order of `fun`'s signature, or `None` for an
        argument that is not mapped. A call may pass the last of them by name. Axes may
        be negative. Other keyword arguments are mapped over axis 0, except for an
        `eqx.nn.State`. If an argument `key` is mapped and is a single random key, it is
        split into one per example, `jr.split(key, rows)`. Defaults to 0.
    - `out_axes`: the position of the mapped axis in the output. Only 0 is supported.
    - `microbatch_size`: the number of examples per microbatch. It need not divide the
        number of examples. Defaults to `None`: all examples at once.
    - `vmap_fn`: the function that vectorises a microbatch, like `jax.vmap`. It is
        called as `vmap_fn(function_of_arrays, in_axes=..., out_axes=0)`, or with
        `out_axes=(0, None)` if an argument that is not mapped is an `eqx.nn.State`.
        Defaults to `jax.vmap`.
    - `accumulator`: how to combine the outputs, as in
        [`eqopt.microbatching.microbatch`][]. Sums and means are over examples. Defaults
        to `CONCAT`: one output per example, along axis 0.
    - `weights`: the weight of each example, as in [`eqopt.microbatching.microbatch`][]:
        `SUM` adds `weights[i] * output[i]`, and the means divide this by the sum of the
        weights. An example with weight 0 is ignored, even if it is NaN. A weighted sum
        of integers is a float.
    - `num_real_microbatches`: as in [`eqopt.microbatching.microbatch`][].

    **Returns:**

    A function with the arguments of `fun`. Mapped arguments have an additional axis.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.microbatch`][] (except that integers have
    a mean here, as in `jnp.mean`); also a `ValueError` if `out_axes` is not 0, and
    JAX's error if examples return different `eqx.nn.State`s.
    """
    owner = "micro_vmap"
    if out_axes != 0:
        raise InputError(
            owner,
            f"`out_axes` must be 0, but is {out_axes}. Use `jnp.moveaxis` on the result.",
        )
    return wrap(
        owner,
        fun,
        _micro_vmap,
        in_axes if isinstance(in_axes, int) else tuple(in_axes),
        vmap_fn,
        make_options(
            owner, microbatch_size, accumulator, weights, num_real_microbatches
        ),
    )


def _micro_vmap(
    call: Call,
    in_axes: int | tuple[int | None, ...],
    vmap_fn: Callable[..., Callable[..., Any]],
    options: Options,
) -> Any:
    fun, args, kwargs = call
    if isinstance(in_axes, int):
        in_axes = (in_axes,) * len(args)
    places = list_places(call)
    if len(in_axes) < len(args) or not places.keys() >= set(range(len(in_axes))):
        raise InputError(
            None,
            f"`in_axes={in_axes}` has length {len(in_axes)}, but this call has "
            f"{len(args)} positional arguments. Pass an axis or `None` for each, "
            "or a single int for all.",
        )
    axes = {name: 0 for name, x in kwargs.items() if not is_state(x)}
    axes |= {places[i]: axis for i, axis in enumerate(in_axes)}
    batch = find_batch(args, kwargs, axes, options.size, places.get("key"))
    return map_examples(fun, batch, options, vmap_fn)


def map_examples(
    fun: Callable[..., Any],
    batch: Batch,
    options: Options,
    vmap_fn: Callable[..., Callable[..., Any]] = jax.vmap,
) -> Any:
    """Evaluates a function on each row of each microbatch, and combines the results."""
    in_axes = tuple(axis for axis in batch.axes if axis is not None)

    def evaluate(leaves: list[Any], state: Any, index: Any) -> Any:
        def one(*row: Array) -> Any:
            args, kwargs = batch.rebuild(leaves, state, index, row)
            # `jax.vmap` returns only arrays: everything else is passed through as
            # metadata.
            dynamic, static = eqx.partition(fun(*args, **kwargs), eqx.is_array)
            if state is None:
                return dynamic, eqxi.Static(static)
            new, rest = eqx.partition(dynamic, is_state, is_leaf=is_state)
            return (rest, eqxi.Static(static)), new

        mapped = batch.mapped(leaves)
        if state is None:
            dynamic, static = vmap_fn(one, in_axes=in_axes, out_axes=0)(*mapped)
            return eqx.combine(dynamic, static.value)
        # All rows get the same State, and must return the same one.
        out = vmap_fn(one, in_axes=in_axes, out_axes=(0, None))(*mapped)
        (rest, static), new = out
        return eqx.combine(eqx.combine(rest, new, is_leaf=is_state), static.value)

    return run(evaluate, batch, options, has_rows=True)
