"""The state of an optimizer for another one, in the middle of a run."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._jax_internals import is_traced
from .._trees.sharding import in_full, moved_like, on_all_devices, on_device, unsharded
from .._trees.stacked import is_stacks, with_stacks, without_stacks
from .._trees.stored import is_stored, standard_promotion
from .._types import Params, State
from ..numerics._numerics import at_least_float32
from ._migration_plan import Drop, MigrationPlan, planned
from ._slots import without_padding


def migrate(
    new_opt: Any,
    old_state: State,
    model: Params,
    *,
    take: Mapping[str, str | None] = {},
    drop: Drop = (),
) -> State:
    """The state with which `new_opt` continues a run that another optimizer began.

    Use it to add clipping or [`eqopt.SkipStep`][], to start an average, to go from Adam
    to AdamW, or to store the state in 8 bits, without losing the moments.

    !!! example

        ```python
        old_opt = eqopt.Adam(1e-3)
        ...
        new_opt = eqopt.ParamEMA(eqopt.Chain(eqopt.Clip(1.0), eqopt.AdamW(1e-4)))
        state = eqopt.tree.migrate(new_opt, state, model)
        ```

    The states inside a state, such as `ScaleByAdamState`, are matched by their class,
    and if there are several of a class, by the labels of groups and the names of parts
    around them. Positions in a chain count only if both states have a class at the same
    positions, relative to each other. Values that only the new state has are initialised:
    an average starts at the parameters, and its count at zero. Counts that both states
    have continue, also the counts of schedules. Hyperparameters come from `new_opt`.

    Stored arrays of [`eqopt.StoreState`][] are loaded or encoded as `new_opt` requires.
    An array that is stored in the same form keeps its bits. If `new_opt.init` places
    arrays on specific devices, the values are moved there, also inside `jit`. What
    [`eqopt.ZeRO1`][] and [`eqopt.DistributeMatrices`][] have for one number of devices
    becomes what `new_opt` has, also without these wrappers.

    All arrays are copies, so both states can be donated, and `old_state` stays as it
    is. To move them without copies, donate the old state:

    !!! example

        ```python
        move = lambda model, state: eqopt.tree.migrate(new_opt, state, model)
        state = eqx.filter_jit(move, donate="all-except-first")(model, state)
        ```

    **Arguments:**

    - `new_opt`: the optimizer that continues the run.
    - `old_state`: the state that `step` of the old optimizer returned, or one that was
        loaded from a checkpoint. Its arrays may be NumPy arrays.
    - `model`: the parameters as they are now.
    - `take`: for key paths in the new state, the key path in the old state to take the
        values from, for this state and all states inside it. `""` is the whole state.
        `None` initialises. Several paths may take from the same one: the new groups
        of a [`eqopt.Partition`][] take the moments of their parameters from one group.
    - `drop`: the values of the old state to omit, one entry or several: a class of
        states such as `eqopt.ParamEMAState`, or its name; a field such as
        `"ScaleByAdamState.mu"`; or a key path, for everything at or below it. If
        `new_opt` has a place for a dropped value, it is initialised.

    **Returns:**

    A state with the structure, shapes and dtypes of `new_opt.init(model)`.

    **Raises:**

    A `ValueError` that names key paths if values of the old state would be lost, if
    several parts could be taken, if a shape or dtype does not fit, or if an entry of
    `take` or `drop` matches nothing.
    """
    made = new_opt.init(model)
    whole = _unpadded(made)
    new, old = without_stacks(whole), without_stacks(_unpadded(old_state))
    sources = planned(new, old, take, drop).sources
    found = dict(_leaves(old))
    was_divided, is_divided = _divided(old_state), _divided(made)

    def value(path, x):
        source = sources.get(path)
        if source is None:
            return x
        y = found[source]
        if was_divided(source) and not is_divided(path):
            y = jtu.tree_map(in_full, y)  # XLA would leave it divided inside `jit`
        return _value(x, y)

    values = [value(path, x) for path, x in _leaves(new)]
    moved = jtu.tree_structure(new, is_leaf=is_stored).unflatten(values)
    here = jtu.tree_map(_placed, moved, new)  # on the devices of the new arrays
    padded = jtu.tree_map(_placed, with_stacks(whole, here), made)
    return on_all_devices(jtu.tree_map(_in_shards, padded, made), model)


def migration_plan(
    new_opt: Any,
    old_state: State,
    model: Params,
    *,
    take: Mapping[str, str | None] = {},
    drop: Drop = (),
) -> MigrationPlan:
    """What [`eqopt.tree.migrate`][] takes, initialises and drops, as a table.

    It needs no arrays: `old_state` and `model` may come from `eqx.filter_eval_shape`.

    !!! example

        ```python
        new_opt = eqopt.ParamEMA(eqopt.Chain(eqopt.Clip(1.0), eqopt.AdamW(1e-4)))
        print(eqopt.tree.migration_plan(new_opt, state, model))
        # new state           class                     values
        # (the root)          ParamEMAState             initialised
        # .inner_state[1][0]  ScaleByAdamState          taken from [0]
        # .inner_state[1][2]  ScaleByLearningRateState  taken from [1]
        ```

    **Arguments:**

    - All: see [`eqopt.tree.migrate`][].

    **Returns:**

    An [`eqopt.tree.MigrationPlan`][]; `print` it, or use its `parts` and `dropped`.

    **Raises:**

    The errors of `migrate`.
    """
    new = eqx.filter_eval_shape(new_opt.init, model)
    own = lambda state: without_stacks(without_padding(state))
    return planned(own(new), own(old_state), take, drop).plan


def _leaves(state: State) -> list[tuple[tuple, Any]]:
    return jtu.tree_leaves_with_path(state, is_leaf=is_stored)


def _unpadded(state: State) -> State:
    """`state` without the padding of `eqopt.ZeRO1`, with the same structure."""
    own = lambda x, y: _cut(x, np.shape(y)) if np.shape(x) != np.shape(y) else x
    return jtu.tree_map(own, state, without_padding(state))


def _cut(x: Any, shape: tuple[int, ...]) -> Any:
    return unsharded(on_device(x))[tuple(map(slice, shape))]


def _value(new: Any, old: Any) -> Any:
    """`old`, a value of the old state, in the form of `new`."""
    if _forms(new) == _forms(old):
        return jtu.tree_map(_copied, new, old)
    if not (is_stored(new) or is_stored(old)):
        return _copied(new, old)
    with standard_promotion():
        full = old.load().astype(old.dtype) if is_stored(old) else jnp.asarray(old)
        if is_stored(new):
            return new.store(at_least_float32(full))
    return _copied(new, full)


def _forms(x: Any) -> Any:
    leaves, treedef = jtu.tree_flatten(x)
    return [(np.shape(x), getattr(x, "dtype", None)) for x in leaves], treedef


def _copied(new: Any, old: Any) -> Any:
    """A copy of an array with the type of `new`."""
    if not hasattr(new, "dtype"):
        return old  # a number of Python
    if isinstance(new, np.ndarray | np.generic):
        return np.array(old)[()]
    is_key = jnp.issubdtype(new.dtype, jax.dtypes.prng_key)
    made = jnp.array(old, None if is_key else new.dtype, copy=True)
    if not is_key and jax.typeof(new).weak_type and not jax.typeof(made).weak_type:
        return jnp.full_like(new, 0).at[...].set(made)
    return made


def _divided(state: State) -> Callable[[tuple], bool]:
    """Whether a wrapper divides the arrays at a key path along axes that it chooses."""
    is_own = lambda x: is_stacks(x) or hasattr(type(x), "_without_padding")
    places = [
        (*path, *within)
        for path, x in jtu.tree_leaves_with_path(state, is_leaf=is_own)
        for within in (x.divided_paths() if is_stacks(x) else [()])
        if is_own(x)
    ]
    return lambda path: any(path[: len(place)] == place for place in places)


def _placed(x: Any, like: Any) -> Any:
    """`x` with the padding of `like`, on its devices."""
    if np.shape(x) != np.shape(like):
        pairs = zip(np.shape(x), np.shape(like), strict=True)
        x = jnp.pad(on_device(x), [(0, m - n) for n, m in pairs])
    is_array = isinstance(x, jax.Array) and isinstance(like, jax.Array)
    if not is_array or is_traced(x) or is_traced(like) or not like.committed:
        return x
    return x if x.sharding == like.sharding else jax.device_put(x, like.sharding)


def _in_shards(x: Any, like: Any) -> Any:
    """`x` in the shards of `like` inside `jit`."""
    return moved_like(like, x) if is_traced(like) and x is not like else x
