"""The batch arguments of a call: their rows, and how microbatches divide them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from .._arguments.checks import check_integer, check_interval
from .._errors import InputError, naming
from .._trees.sharding import is_in_shard_map
from .._types import IntegerLike, PyTree, StaticInteger


def reshape_batch_axis(
    tree: PyTree, microbatch_size: StaticInteger, axis: int = 0
) -> PyTree:
    """Splits the batch axis of every array into `(num_microbatches, microbatch_size)`.

    Microbatch `i` of `n` holds the rows `i, i + n, i + 2n, ...`. An array that is
    sharded over its batch axis is then sharded over `microbatch_size`: every device
    keeps its rows, and has its share of every microbatch.

    !!! example

        ```python
        reshape_batch_axis(jnp.arange(6), 2)  # [[0, 3], [1, 4], [2, 5]]
        ```

    **Arguments:**

    - `tree`: any pytree. Leaves that are not arrays stay unchanged.
    - `microbatch_size`: the number of rows per microbatch. It must divide the batch
        axis of every array.
    - `axis`: the batch axis. It may be negative.

    **Returns:**

    `tree` with each array of shape `(..., batch, ...)` replaced by an array of shape
    `(..., num_microbatches, microbatch_size, ...)` and the same dtype.

    **Raises:**

    `ValueError` if `axis` is out of range for an array, or if `microbatch_size` is not
    positive or does not divide a batch axis.
    """
    size = check_integer("microbatch_size", microbatch_size, 1)

    def reshape(path: Any, x: Any) -> Any:
        if not eqx.is_array(x):
            return x
        where = f"tree{jtu.keystr(path)}"
        i = resolve_axis(where, x, axis)
        split = Split(x.shape[i], size)
        if split.rest != 0:
            raise InputError(
                f"`microbatch_size={size}` does not divide the {split.rows} rows of "
                f"`{where}`. Pad the batch."
            )
        check_shards(where, x, i, split)
        return jnp.swapaxes(_columns(x, i, split), i, i + 1)

    return jtu.tree_map_with_path(reshape, tree)


class Split(eqx.Module):
    """`rows` rows divided into `count` microbatches of `size` rows, and one of `rest`."""

    rows: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @property
    def count(self) -> int:
        return self.rows // self.size

    @property
    def rest(self) -> int:
        return self.rows % self.size

    @property
    def total(self) -> int:
        return self.count + (self.rest > 0)

    def executed(self, num_real: IntegerLike | None) -> int | Array:
        """The number of microbatches to evaluate; checks `num_real_microbatches`."""
        if num_real is None:
            return self.total
        if not isinstance(num_real, int):
            return jnp.clip(jnp.asarray(num_real).astype(jnp.int32), 0, self.total)
        advice = f"There are {self.total} microbatches."
        check_interval("num_real_microbatches", num_real, 0, self.total, advice=advice)
        return num_real


def take_rows(x: Any, axis: int, split: Split, index: Any) -> Any:
    """The rows of `x` in the microbatch `index`; `None` means the last, smaller one."""
    if index is None:
        start = split.rows - split.rest
        return lax.slice_in_dim(jnp.asarray(x), start, split.rows, axis=axis)
    if split.count == 0:
        # An empty batch: the function is traced for its output's shapes, but never run.
        shape = (*x.shape[:axis], split.size, *x.shape[axis + 1 :])
        return jnp.empty_like(x, shape=shape)
    if split.rest == 0:
        columns = _columns(x, axis, split)
        return lax.dynamic_index_in_dim(columns, index, axis + 1, keepdims=False)
    # The full microbatches end before the batch. Slicing off the remaining rows to
    # reshape would copy nearly the whole batch; gathering one microbatch does not.
    rows = index + split.count * jnp.arange(split.size, dtype=jnp.int32)
    return jnp.take(
        x, rows, axis, mode="clip", unique_indices=True, indices_are_sorted=True
    )


def _columns(x: Any, axis: int, split: Split) -> Any:
    # Row-major to (size, count), so that a microbatch is a *column*. It has the same
    # rows as a row of a column-major (count, size), but no data moves, and the sharding
    # stays.
    shape = (*x.shape[:axis], split.size, split.count, *x.shape[axis + 1 :])
    return jnp.reshape(x, shape)


def resolve_axis(where: str, x: Any, axis: int) -> int:
    """The axis counted from the front; `where` names the array in an error."""
    if not -x.ndim <= axis < x.ndim:
        problem = f"`{where}` of shape {x.shape} has no axis {axis}."
        fix = "If it is no batch, pass it in another argument."
        raise InputError(f"{problem} {fix}")
    return axis % x.ndim


def check_shards(where: str, x: Any, axis: int, split: Split) -> None:
    """Raises unless each device has an equal share of every microbatch."""
    # On an automatic mesh, the type of an array has no sharding: XLA moves data if
    # necessary. Inside `jax.shard_map`, each device has its own rows.
    if is_in_shard_map() or split.rows == 0:
        return
    local = jax.typeof(x).sharding.shard_shape(x.shape)[axis]
    shards = x.shape[axis] // local
    if shards > 1 and (split.rest or split.size % shards):
        raise InputError(
            f"`{where}` has its {split.rows} rows explicitly sharded {shards} ways, so "
            f"`microbatch_size={split.size}` must divide {split.rows} and be a "
            f"multiple of {shards}."
        )


# Where a call passes an argument: an index in `args` or a name in `kwargs`.
Place: TypeAlias = int | str


class Call(NamedTuple):
    """A call of the user's function."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def result(self) -> Any:
        return self.fun(*self.args, **self.kwargs)

    @property
    def given(self) -> dict[Place, Any]:
        """The arguments by their places."""
        return dict(enumerate(self.args)) | self.kwargs

    def replaced(self, new: Mapping[Place, Any]) -> "Call":
        """The same call with other arguments at the places in `new`."""
        args = tuple(new.get(i, x) for i, x in enumerate(self.args))
        kwargs = {name: new.get(name, x) for name, x in self.kwargs.items()}
        return Call(self.fun, args, kwargs)

    @property
    def places(self) -> dict[int | str, Place]:
        """Where the argument with each number and each name is.

        A number is a position in the signature, however the argument is passed:
        `eqx.filter_jit` passes by position whatever it can. Negative numbers count from
        the last position in use.
        """
        try:
            parameters = inspect.signature(self.fun).parameters.values()
        except (TypeError, ValueError):  # builtins may have no signature
            parameters = ()
        names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
        places = {i: name for i, name in enumerate(names) if name in self.kwargs}
        places |= {i: i for i in range(len(self.args))}
        end = max(places, default=-1) + 1
        return {
            **places,
            **{i - end: place for i, place in places.items()},
            **dict(zip(names, range(len(self.args)), strict=False)),
            **{name: name for name in self.kwargs},
        }

    def find(self, wanted: Sequence[int | str]) -> tuple[Place, ...]:
        """Finds the places of the arguments with these numbers and names."""
        places = self.places
        for x in wanted:
            if x not in places:
                raise InputError(
                    f"there is no argument {x!r} in this call, which has "
                    f"{len(self.args)} positional arguments and the keyword arguments "
                    f"{sorted(self.kwargs)}."
                )
        return tuple(places[x] for x in wanted)


class _Wrapped(eqx.Module):
    owner: str
    fun: Callable[..., Any]
    run: Callable[..., Any]
    arguments: tuple[Any, ...]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with naming(f"eqopt.microbatching.{self.owner}"):
            return self.run(Call(self.fun, args, kwargs), *self.arguments)


def wrap(
    owner: str, fun: Callable[..., Any], run: Callable[..., Any], *arguments: Any
) -> Callable[..., Any]:
    """A function with the name and the signature of `fun` that calls `run`.

    It is a Module, so that the arrays in `fun` and in `arguments` are inputs of what
    `eqx.filter_jit` compiles.

    **Arguments:**

    - `owner`: the public function, for errors.
    - `fun`: the function of the user.
    - `run`: a function of a `Call` and all of `arguments`.
    """
    return eqx.module_update_wrapper(_Wrapped(owner, fun, run, arguments))


class Batch(eqx.Module):
    """The arguments of a function, with access to any microbatch of them.

    **Attributes:**

    - `leaves`, `treedef`: of `(args, kwargs)`, without the State.
    - `axes`: the batch axis of each leaf; `None` if all rows share it.
    - `split`: how the rows are divided into microbatches.
    - `state`, `state_place`: the `eqx.nn.State` that each microbatch passes on, if any.
    - `key_place`: the place of a key, if each microbatch gets another one.
    """

    leaves: list[Any]
    treedef: Any
    axes: tuple[int | None, ...]
    split: Split
    state: eqx.nn.State | None
    state_place: Place | None
    key_place: Place | None

    def take(self, index: Any) -> list[Any]:
        """The leaves for the microbatch `index`; `None` means the last, smaller one."""
        return [
            x if axis is None else take_rows(x, axis, self.split, index)
            for x, axis in zip(self.leaves, self.axes, strict=True)
        ]

    def mapped(self, leaves: Sequence[Any]) -> list[Array]:
        """The leaves that have a batch axis."""
        pairs = zip(leaves, self.axes, strict=True)
        return [x for x, axis in pairs if axis is not None]

    def call(
        self,
        fun: Callable[..., Any],
        leaves: Sequence[Any],
        state: Any,
        index: Any,
        row: Sequence[Array] | None = None,
    ) -> Any:
        """Calls a function with the microbatch `index`, or with one row of it.

        **Arguments:**

        - `fun`: a function with the arguments of the user's function.
        - `leaves`: the leaves for the microbatch.
        - `state`: the `eqx.nn.State` that the previous microbatch returned, if any.
        - `index`: the number of the microbatch.
        - `row`: one row of each of the `mapped` leaves. Defaults to all rows.
        """
        if row is not None:
            rows, pairs = iter(row), zip(leaves, self.axes, strict=True)
            leaves = [x if axis is None else next(rows) for x, axis in pairs]
        call = Call(fun, *self.treedef.unflatten(leaves))
        new = {} if self.state_place is None else {self.state_place: state}
        if self.key_place is not None:
            # With the same key, all microbatches would have the same dropout masks.
            key = call.given[self.key_place]
            new[self.key_place] = jr.fold_in(key, index)
        return call.replaced(new).result()


def find_batch(
    call: Call,
    axes: Mapping[Place, int | None],
    size: int | None,
    split_key: bool = True,
) -> Batch:
    """Finds the arrays with a batch axis, the State and a single key.

    A single key with a batch axis is split into one per row. One that `axes` does not
    contain is folded with the number of the microbatch.

    **Arguments:**

    - `call`: the call of the user.
    - `axes`: the batch axis of each argument that has one.
    - `size`: the number of rows per microbatch; `None` for all of them.
    - `split_key`: whether the argument `key` may be a single key for all rows.
    """
    given, key = call.given, call.places.get("key") if split_key else None
    states = [i for i, x in given.items() if axes.get(i) is None and is_state(x)]
    if len(states) > 1:
        raise InputError(
            f"the arguments {states} are all an `eqx.nn.State`, but microbatches pass "
            "on only one. Make one model with one State."
        )
    call = call.replaced(dict.fromkeys(states))
    if key is not None and not is_single_key(given[key]):
        key = None
    if key is not None and axes.get(key) is not None:
        # The number of keys follows from the other arguments.
        rest = find_batch(call.replaced({key: None}), axes, size, split_key=False)
        call = call.replaced({key: _split_key(given[key], rest)})
        axes = {**axes, key: 0}
    with_path, treedef = jtu.tree_flatten_with_path((call.args, call.kwargs))
    found_axes: list[int | None] = []
    found: dict[str, tuple[Any, int]] = {}
    for (which, name, *path), x in with_path:
        axis = axes.get(name.key if which.idx else name.idx)
        if axis is None or not eqx.is_array(x):
            found_axes.append(None)
            continue
        where = f"{'kwargs' if which.idx else 'args'}{jtu.keystr((name, *path))}"
        axis = resolve_axis(where, x, axis)
        found_axes.append(axis)
        found[where] = x, axis
    split = _split(found, size)
    for where, (x, axis) in found.items():
        check_shards(where, x, axis, split)
    arrays = [x for _, x in with_path], treedef, tuple(found_axes), split
    passed_on = (given[states[0]], states[0]) if states else (None, None)
    return Batch(*arrays, *passed_on, None if key in axes else key)


def _split(found: dict[str, tuple[Any, int]], size: int | None) -> Split:
    if not found:
        raise InputError(
            "no batch argument has an array. Name the arguments that are batches, "
            "and convert numbers with `jnp.asarray`."
        )
    lengths = {where: x.shape[axis] for where, (x, axis) in found.items()}
    first, rows = next(iter(lengths.items()))
    for where, length in lengths.items():
        if length != rows:
            raise InputError(f"`{first}` has {rows} rows, but `{where}` has {length}.")
    if size is not None and 0 < rows < size:
        raise InputError(
            f"`microbatch_size={size}` is larger than the batch, as `{first}` has "
            f"{rows} rows. Use `None` for one microbatch."
        )
    return Split(rows, max(rows, 1) if size is None else size)


def is_state(x: Any) -> bool:
    return isinstance(x, eqx.nn.State)


def is_single_key(x: Any) -> bool:
    """Whether `x` is one key, typed or raw, rather than an array of several."""
    if not isinstance(x, jax.Array):
        return False
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x.ndim == 0
    raw = jax.eval_shape(jr.PRNGKey, 0)
    return (x.shape, x.dtype) == (raw.shape, raw.dtype)


def _split_key(key: Array, batch: Batch) -> Array:
    """One key for each row of `batch`, along axis 0."""
    keys = jr.split(key, batch.split.rows)
    pairs = zip(batch.leaves, batch.axes, strict=True)
    x, axis = next((x, a) for x, a in pairs if a is not None)
    # Explicitly sharded axes can be mapped over together if they are sharded in the
    # same way. On an automatic mesh, the type of an array has no sharding: XLA chooses.
    sharding = jax.typeof(x).sharding
    if sharding.spec[axis] is None:
        return keys
    spec = PartitionSpec(sharding.spec[axis], *([None] * (keys.ndim - 1)))
    return jax.sharding.reshard(keys, NamedSharding(sharding.mesh, spec))


def match_axes(
    in_axes: int | Sequence[int | None], places: Sequence[Place]
) -> dict[Place, int | None]:
    """The batch axis of each argument, from the argument `in_axes`."""
    axes = [in_axes] * len(places) if isinstance(in_axes, int) else in_axes
    if len(axes) != len(places):
        raise InputError(
            f"`in_axes={in_axes}` has length {len(axes)}, but there are {len(places)} "
            "such arguments. Pass an axis for each, or a single int for all."
        )
    return dict(zip(places, axes, strict=True))


def as_tuple(numbers: int | str | Sequence[int | str]) -> tuple[Any, ...]:
    return (numbers,) if isinstance(numbers, int | str) else tuple(numbers)
