"""Functions and gradients of single examples, one microbatch at a time."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike

from .._errors import noting
from .._jax_internals import varying_axes
from .._trees.control import vary
from .._trees.sharding import is_in_shard_map
from .._types import IntegerLike, PyTree, StaticInteger
from ._accumulator import AccumulationType, Accumulators
from ._batch import (
    Batch,
    Call,
    Place,
    as_tuple,
    find_batch,
    is_single_key,
    is_state,
    match_axes,
    wrap,
)
from ._microbatch import Options, make_options, run


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] = 0,
    out_axes: Literal[0] = 0,
    *,
    microbatch_size: StaticInteger | None = None,
    vmap_fn: Callable[..., Callable[..., Any]] = jax.vmap,
    accumulator: Accumulators = AccumulationType.CONCAT,
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
    - `out_axes`: the position of the mapped axis in the output. Only 0 is supported:
        use `jnp.moveaxis` on the result.
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
    owner, given = "micro_vmap", (accumulator, weights, num_real_microbatches)
    options = make_options(owner, microbatch_size, *given)
    return wrap(owner, fun, _micro_vmap, in_axes, vmap_fn, options)


def _micro_vmap(call: Call, in_axes: Any, vmap_fn: Any, options: Options) -> Any:
    # A call may pass the last of the arguments by name.
    axes_given = 0 if isinstance(in_axes, int) else len(in_axes)
    axes = {name: 0 for name, x in call.kwargs.items() if not is_state(x)}
    axes |= match_axes(in_axes, call.find(range(max(len(call.args), axes_given))))
    batch = find_batch(call, axes, options.size)
    return map_rows(functools.partial(batch.call, call.fun), batch, options, vmap_fn)


def map_rows(
    fun: Callable[..., Any],
    batch: Batch,
    options: Options,
    vmap_fn: Callable[..., Callable[..., Any]] = jax.vmap,
) -> Any:
    """Evaluates a function on each row of each microbatch, and combines the results.

    `fun` is a function of `(leaves, state, index, row)`, as `batch.call` takes them.
    """
    in_axes = tuple(axis for axis in batch.axes if axis is not None)

    def evaluate(leaves: list[Any], state: Any, index: Any) -> Any:
        def one(*row: Array) -> Any:
            # `jax.vmap` returns only arrays: everything else is passed through as
            # metadata.
            out = fun(leaves, state, index, row)
            dynamic, static = eqx.partition(out, eqx.is_array)
            if state is None:
                return dynamic, eqxi.Static(static)
            new, rest = eqx.partition(dynamic, is_state, is_leaf=is_state)
            return (rest, eqxi.Static(static)), new

        # All rows get the same State, and must return the same one.
        out_axes = 0 if state is None else (0, None)
        out = vmap_fn(one, in_axes=in_axes, out_axes=out_axes)(*batch.mapped(leaves))
        if state is None:
            dynamic, static = out
            return eqx.combine(dynamic, static.value)
        (rest, static), new = out
        return eqx.combine(eqx.combine(rest, new, is_leaf=is_state), static.value)

    return run(evaluate, batch, options, has_rows=True)


class PerExample(NamedTuple):
    """The second result of `micro_grad`; axis 0 is the batch axis."""

    values: Any
    metrics: Any
    aux: Any


def micro_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: StaticInteger | None = None,
    accumulator: Accumulators = AccumulationType.SUM,
    transform_fn: Callable[[PyTree], Any] = lambda grads: grads,
    metrics_fn: Callable[[PyTree], Any] = lambda grads: None,
    weights: ArrayLike | None = None,
    num_real_microbatches: IntegerLike | None = None,
) -> Callable[..., Any]:
    """Computes the gradient for every example, transforms it, and accumulates.

    The gradients of different examples are combined only after `transform_fn`, which
    can clip or square them, for example. They exist for one microbatch at a time.

    Like `eqx.filter_grad`, it differentiates with respect to the floating-point arrays
    of an argument; other leaves are `None`.

    !!! example

        ```python
        from eqopt.microbatching import AccumulationType, micro_grad

        def loss(params, features, targets):
            return 0.5 * jnp.mean((features @ params - targets) ** 2)

        grad_fn = micro_grad(
            loss,
            batch_argnums=(1, 2),
            microbatch_size=2,
            accumulator=AccumulationType.MEAN,
            transform_fn=lambda g: (g, g**2),
            metrics_fn=jnp.linalg.norm,
        )
        features, targets = jnp.ones((4, 1)), jnp.array([0.0, 2.0, 4.0, 6.0])
        (mean, mean_square), aux = grad_fn(jnp.zeros(1), features, targets)
        mean, mean_square  # [-3.], [14.]
        aux.values         # [0., 2., 8., 18.]
        aux.metrics        # [0., 2., 4., 6.]
        ```

    ??? cite "Reference"

        ```bibtex
        @misc{roulet2025per,
            title={Per-Example Gradients: a New Frontier for Understanding and Improving
                   Optimizers},
            author={Vincent Roulet and Atish Agarwala},
            year={2025},
            eprint={2510.00236},
            archivePrefix={arXiv},
            primaryClass={cs.LG},
        }
        ```

    **Arguments:**

    - `fun`: a function that returns a scalar, or with `has_aux` a pair of a scalar and
        anything else.
    - `has_aux`: whether `fun` returns such a pair. Defaults to `False`.
    - `argnums`: the position in the signature of `fun` of the argument to differentiate
        with respect to, or a sequence of these, which makes the gradient a tuple. A
        call may pass it by name. Negative numbers count from the last position in use.
        Defaults to 0.
    - `batch_argnums`: the positions of the arguments that are batches: every array in
        them has its examples along axis 0. Defaults to 1. Every array in a keyword-only
        argument must also have its examples along axis 0, except for an `eqx.nn.State`,
        as in [`eqopt.microbatching.micro_vmap`][]. A single random key in an argument
        `key` is split into one per example.
    - `keep_batch_dim`: whether `fun` gets an example of the arguments in
        `batch_argnums` as a batch of size one, or without its batch axis. Other
        arguments never have a batch axis. Defaults to `True`.
    - `microbatch_size`: the number of examples per microbatch. It need not divide the
        number of examples. Defaults to `None`: all examples at once.
    - `accumulator`: how to combine the results of `transform_fn`, as in
        [`eqopt.microbatching.microbatch`][]. Sums and means are over examples. Defaults
        to the sum.
    - `transform_fn`: a function of one example's gradient. Defaults to the identity. If
        you add noise to the sum, let it return float32: sums of lower precision are
        rounded.
    - `metrics_fn`: a function of one example's gradient, before `transform_fn`, that
        returns a small result. By default, the result is `None`.
    - `weights`: the weight of each example in the sum or mean of the results of
        `transform_fn`, as in [`eqopt.microbatching.micro_vmap`][].
    - `num_real_microbatches`: as in [`eqopt.microbatching.microbatch`][].

    **Returns:**

    A function with the arguments of `fun` that returns `(gradients, aux)`. `gradients`
    are accumulated. `aux` is a named tuple with the fields `values` (the scalars),
    `metrics` and `aux` (`None` without `has_aux`), all with one entry per example along
    axis 0; except for an `eqx.nn.State` in `aux`, which is the last State.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.micro_vmap`][].
    """
    owner, given = "micro_grad", (accumulator, weights, num_real_microbatches)
    options = make_options(owner, microbatch_size, *given)
    of_loss = has_aux, argnums, batch_argnums, keep_batch_dim
    return wrap(owner, fun, _micro_grad, of_loss, transform_fn, metrics_fn, options)


def _micro_grad(call, of_loss, transform_fn, metrics_fn, options) -> Any:
    loss = find_loss(call, *of_loss)
    batch = find_batch(call, loss.axes, options.size)

    def one_example(*args: Any, **kwargs: Any) -> tuple[Any, PerExample]:
        example = loss.expand(Call(call.fun, args, kwargs))
        grad_fn = eqx.filter_value_and_grad(loss.value_and_aux, has_aux=True)
        (value, aux), grads = grad_fn(loss.wrt(example), example)
        metrics = metrics_fn(grads)
        return transform_fn(grads), PerExample(value, metrics, aux)

    kinds = options.accumulator, AccumulationType.CONCAT
    of_row = functools.partial(batch.call, one_example)
    return map_rows(of_row, batch, options._replace(accumulator=kinds))


#
# The loss of one example
#


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

    - `has_aux`, `keep_batch_dim`: as in `micro_grad`.
    - `wrt_places`, `is_one`: the arguments to differentiate with respect to, and whether
        the gradient is the one for a single argument rather than a tuple.
    - `batch_places`: the arguments in `batch_argnums`.
    - `axes`: the batch axis of each argument that has one.
    """

    has_aux: bool
    keep_batch_dim: bool
    wrt_places: tuple[Place, ...]
    is_one: bool
    batch_places: tuple[Place, ...]
    axes: dict[Place, int]

    def wrt(self, call: Call) -> PyTree:
        """The arguments to differentiate with respect to."""
        given = call.given
        batch = [given[i] for i in self.batch_places]
        chosen = tuple(given[i] for i in self.wrt_places)
        chosen = _own_on_each_device(chosen, (batch, call.kwargs))
        return chosen[0] if self.is_one else chosen

    def expand(self, call: Call) -> Call:
        """Makes examples batches of one, if the function expects batches."""
        if not self.keep_batch_dim:
            return call
        expand = lambda x: jnp.expand_dims(x, 0) if eqx.is_array(x) else x
        given = call.given
        return call.replaced(
            {i: jtu.tree_map(expand, given[i]) for i in self.batch_places}
        )

    def value_and_aux(self, wrt: PyTree, call: Call) -> tuple[Any, Any]:
        """The loss for expanded arguments, with the arguments in `wrt` replaced."""
        chosen = (wrt,) if self.is_one else wrt
        call = call.replaced(dict(zip(self.wrt_places, chosen, strict=True)))
        with noting(_ONE_EXAMPLE[self.keep_batch_dim], TypeError, ValueError):
            out = call.result()
        return out if self.has_aux else (out, None)


def find_loss(
    call: Call,
    has_aux: bool,
    argnums: int | Sequence[int],
    batch_argnums: int | Sequence[int],
    keep_batch_dim: bool,
) -> Loss:
    """Finds the arguments of the function in a call."""
    places, batch_places = call.places, call.find(as_tuple(batch_argnums))
    numbered = {place for x, place in places.items() if isinstance(x, int)}
    key = places.get("key")
    is_batch = lambda place, x: (
        place in batch_places
        or (place == key and is_single_key(x))
        or not (place in numbered or is_state(x))
    )
    wrt = call.find(as_tuple(argnums)), isinstance(argnums, int)
    axes = {i: 0 for i, x in call.given.items() if is_batch(i, x)}
    return Loss(has_aux, keep_batch_dim, *wrt, batch_places, axes)


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
