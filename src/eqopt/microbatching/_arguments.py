"""Calls of functions of a batch: which arguments are batches, and parts of these."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from .._errors import InputError, naming
from ._rows import Split, check_shards, resolve_axis, take_rows


# Where a call passes an argument: an index in `args` or a name in `kwargs`.
Place: TypeAlias = int | str


class Call(NamedTuple):
    """A call of the user's function."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Wrapped(eqx.Module):
    owner: str
    fun: Callable[..., Any]
    run: Callable[..., Any]
    arguments: tuple[Any, ...]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with naming(self.owner):
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
        pairs = zip(self.leaves, self.axes, strict=True)
        return [
            x if axis is None else take_rows(x, axis, self.split, index)
            for x, axis in pairs
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
        args, kwargs = self.treedef.unflatten(leaves)
        new = {} if self.state_place is None else {self.state_place: state}
        if self.key_place is not None:
            # With the same key, all microbatches would have the same dropout masks.
            key = by_place(args, kwargs)[self.key_place]
            new[self.key_place] = jr.fold_in(key, index)
        args, kwargs = replace(args, kwargs, new)
        return fun(*args, **kwargs)


def find_batch(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    axes: Mapping[Place, int | None],
    size: int | None,
    key: Place | None = None,
) -> Batch:
    """Finds the arrays with a batch axis, the State and a single key.

    A single key with a batch axis is split into one per row. One that `axes` does not
    contain is folded with the number of the microbatch.

    **Arguments:**

    - `args`, `kwargs`: the arguments of a call.
    - `axes`: the batch axis of each argument that has one.
    - `size`: the number of rows per microbatch; `None` for all of them.
    - `key`: the place of the argument with this name.
    """
    given = by_place(args, kwargs)
    states = [i for i, x in given.items() if axes.get(i) is None and is_state(x)]
    if len(states) > 1:
        raise InputError(
            None,
            f"the arguments {states} are all an `eqx.nn.State`, but microbatches pass on "
            "only one. Make one model with one State.",
        )
    args, kwargs = replace(args, kwargs, dict.fromkeys(states))
    if key is not None and not is_single_key(given[key]):
        key = None
    if key is not None and axes.get(key) is not None:
        # The number of keys follows from the other arguments.
        rest = find_batch(*replace(args, kwargs, {key: None}), axes, size)
        args, kwargs = replace(args, kwargs, {key: _split_key(given[key], rest)})
        axes = {**axes, key: 0}
    with_path, treedef = jtu.tree_flatten_with_path((args, kwargs))
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
    return Batch(
        leaves=[x for _, x in with_path],
        treedef=treedef,
        axes=tuple(found_axes),
        split=split,
        state=given[states[0]] if states else None,
        state_place=states[0] if states else None,
        key_place=None if key in axes else key,
    )


def _split(found: dict[str, tuple[Any, int]], size: int | None) -> Split:
    if not found:
        raise InputError(
            None,
            "no batch argument has an array. Name the arguments that are batches, and "
            "convert numbers with `jnp.asarray`.",
        )
    lengths = {where: x.shape[axis] for where, (x, axis) in found.items()}
    first, rows = next(iter(lengths.items()))
    for where, length in lengths.items():
        if length != rows:
            raise InputError(
                None,
                f"`{first}` has {rows} rows, but `{where}` has {length}.",
            )
    if size is not None and 0 < rows < size:
        raise InputError(
            None,
            f"`microbatch_size={size}` is larger than the batch, as `{first}` has {rows} "
            "rows. Use `None` for one microbatch.",
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


#
# Places
#


def by_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Place, Any]:
    return dict(enumerate(args)) | kwargs


def replace(
    args: tuple[Any, ...], kwargs: dict[str, Any], new: Mapping[Place, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replaces the arguments at the places in `new`."""
    args = tuple(new.get(i, x) for i, x in enumerate(args))
    return args, {name: new.get(name, x) for name, x in kwargs.items()}


def list_places(call: Call) -> dict[int | str, Place]:
    """Lists where a call passes the argument with each number and each name.

    A number is a position in the signature, however the argument is passed:
    `eqx.filter_jit` passes by position whatever it can. Negative numbers count from the
    last position in use.
    """
    fun, args, kwargs = call
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # builtins may have no signature
        parameters = ()
    names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
    places = {i: name for i, name in enumerate(names) if name in kwargs}
    places |= {i: i for i in range(len(args))}
    end = max(places, default=-1) + 1
    return {
        **places,
        **{i - end: place for i, place in places.items()},
        **dict(zip(names, range(len(args)), strict=False)),
        **{name: name for name in kwargs},
    }


def find_places(
    places: Mapping[int | str, Place], wanted: tuple[int | str, ...]
) -> tuple[Place, ...]:
    """Finds the arguments with these numbers and names among `places`."""
    for x in wanted:
        if x not in places:
            passed = set(places.values())
            names = sorted(place for place in passed if isinstance(place, str))
            raise InputError(
                None,
                f"there is no argument {x!r} in this call, which has "
                f"{len(passed) - len(names)} positional arguments and the keyword "
                f"arguments {names}.",
            )
    found = tuple(places[x] for x in wanted)
    if len({*found}) < len(found):  # the gradient for the first of them would be zero
        raise InputError(None, f"{wanted} names an argument twice.")
    return found


def match_axes(
    in_axes: int | Sequence[int | None], places: Sequence[Place]
) -> dict[Place, int | None]:
    """The batch axis of each argument, from the argument `in_axes`."""
    axes = [in_axes] * len(places) if isinstance(in_axes, int) else in_axes
    if len(axes) != len(places):
        raise InputError(
            None,
            f"`in_axes={in_axes}` has length {len(axes)}, but there are {len(places)} "
            "such arguments. Pass an axis for each, or a single int for all.",
        )
    return dict(zip(places, axes, strict=True))


def as_tuple(numbers: int | str | Sequence[int | str]) -> tuple[Any, ...]:
    return (numbers,) if isinstance(numbers, int | str) else tuple(numbers)
