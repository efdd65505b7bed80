import difflib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Integer

from .._arguments.annotations import kinds
from .._arguments.checks import check_fields
from .._arguments.construction import Module
from .._errors import InputError, naming
from .._trees.leaves import listed, type_name
from .._trees.routes import is_optimizer
from .._types import PyTree, State, Tree


_Filtering: TypeAlias = Callable[[tuple[Any, ...], Any], bool] | None


def get_all_with_path(
    tree: PyTree, key: str, filtering: _Filtering = None
) -> list[tuple[tuple[Any, ...], Any]]:
    """Everything in `tree` with the name `key`, with its key path.

    **Arguments:**

    - `tree`: a state, an optimizer or any other pytree.
    - `key`: the name of a field or of a dictionary key, the name of the class of a node,
        such as `"ScaleByAdamState"`, or a key path, such as `".inner.learning_rate"`.
    - `filtering`: a function of the key path and the value that returns whether to keep
        the value. By default, all are kept.

    **Returns:**

    A list of pairs of a key path (for `jax.tree_util.keystr`) and a value. `None` counts
    as a value only if nothing else has the name: it stands for a number that is not used,
    such as the `count` of a part without a schedule.
    """
    found = []
    _walk((), None, tree, key, filtering, found)
    return [pair for pair in found if pair[1] is not None] or found


# Types are not checked: these are called for each leaf, and `get` is used in training
# loops.


def _walk(path, name, node, key, filtering, found):
    # Key paths begin like this. To make one for each node takes long.
    is_here = key.startswith((".", "[")) and key == jtu.keystr(path)
    has_name = is_here or key in (name, type(node).__name__)
    if has_name and (filtering is None or filtering(path, node)):
        found.append((path, node))
    for entry, child in _children(node):
        _walk((*path, entry), _name(entry), child, key, filtering, found)


def _children(node: Any) -> Sequence[tuple[Any, Any]]:
    """The children of a node with their keys."""
    if isinstance(node, jax.Array):
        return ()
    # `is_leaf` stops after one level. JAX's own `flatten_one_level_with_keys` gives
    # every field of a named tuple the name of the first field.
    flat, _ = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return [(path[0], child) for path, child in flat if path]


def on_the_way(tree: Any, path: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The nodes from the root to the leaf at `path`, each with the key to the next."""
    for key in path:
        yield tree, key
        tree = next(child for k, child in _children(tree) if k == key)


def _name(entry):
    return getattr(entry, "name", getattr(entry, "key", None))


def get(
    tree: PyTree, key: str, default: Any = ..., filtering: _Filtering = None
) -> Any:
    """The only value in `tree` with the name `key`.

    !!! example

        ```python
        opt = eqopt.Adam(eqopt.schedules.Linear(1e-3, 0.0, 100))
        state = opt.init(model)
        eqopt.tree.get(state, "learning_rate")  # the current one, a 0-d array
        ```

    **Arguments:**

    - `tree`: a state, an optimizer or any other pytree.
    - `key`: the name of a field or of a dictionary key, the name of the class of a node,
        such as `"ScaleByAdamState"`, or a key path, such as `".inner.learning_rate"`.
    - `default`: the result if there is no such value. If it is omitted, this is an
        error.
    - `filtering`: a function of the key path and the value that returns whether to
        consider the value. By default, all are considered.

    **Returns:**

    The value, or `default`.

    **Raises:**

    A `KeyError` that lists the key paths if several values have that name, and one that
    lists similar names if none has it and there is no `default`.
    """
    if default is ...:
        found = _found("get", tree, key, filtering)
    else:
        found = get_all_with_path(tree, key, filtering)
    if len(found) > 1:
        fix = "Pass one of these paths, or `filtering=`."
        if key == "count":
            fix += " For the number of steps, use `tree.step_count(state)`."
        raise KeyError(_several("get", key, found, fix))
    return found[0][1] if found else default


def _several(function: str, key: str, found: Sequence[tuple[tuple, Any]], fix: str):
    paths = listed([jtu.keystr(path) for path, _ in found])
    return f"tree.{function}: {len(found)} values have the name {key!r}: {paths}. {fix}"


def _found(function: str, tree: Any, key: str, filtering: _Filtering):
    """`get_all_with_path`; a `KeyError` with similar names if there is nothing."""
    found = get_all_with_path(tree, key, filtering)
    if found:
        return found
    names = dict.fromkeys(x for x in _names(None, tree) if isinstance(x, str))
    from .._names import ARGUMENTS  # imported only for an error

    meant = [x for x in ARGUMENTS.get(key, ()) if x in names]
    close = did_you_mean(meant or difflib.get_close_matches(key, names, n=3))
    name = type(tree).__name__
    raise KeyError(
        f"tree.{function}: nothing in this {name} has the name {key!r}.{close}"
    )


def did_you_mean(names: Sequence[str]) -> str:
    """A sentence for the end of a message, or nothing if there are no names."""
    return f" Did you mean {' or '.join(map(repr, names))}?" if names else ""


def _names(name: Any, node: Any) -> Iterator[Any]:
    yield from (name, type(node).__name__)
    for entry, child in _children(node):
        yield from _names(_name(entry), child)


def step_count(state: State) -> Integer[Array | np.ndarray, "..."]:
    """The number of steps that the optimizer with this state has taken.

    This works for every optimizer, also inside chains, groups and wrappers.

    !!! example

        ```python
        print(f"step {eqopt.tree.step_count(state)}: loss {loss}")
        ```

    It counts steps of the optimizer: several mini-steps of [`eqopt.MultiSteps`][] are
    one step, and a step that [`eqopt.ApplyIfFinite`][] skips does not count. The count
    restarts if [`eqopt.Lookahead`][] restarts its inner optimizer.

    **Arguments:**

    - `state`: the state that `init`, `update` or `step` of an optimizer returned.

    **Returns:**

    A 0-d integer array: the `count` next to the current `learning_rate` if
    there is one, otherwise the outermost `count`. If there are several, the largest: a
    group that has no parameters takes no steps.
    In the state of a population, the `count` has the shape of the `learning_rate`.

    **Raises:**

    A `KeyError` if nothing in `state` counts steps, for example if it is the state of a
    single [`eqopt.ClipByGlobalNorm`][].
    """
    counts = get_all_with_path(state, "count", lambda _, x: _is_count(x))
    rates = get_all_with_path(state, "learning_rate", lambda _, x: _is_array(x))
    shapes = {path[:-1]: rate.shape for path, rate in rates}
    beside = [pair for pair in counts if shapes.get(pair[0][:-1]) == pair[1].shape]
    found = beside or [pair for pair in counts if pair[1].ndim == 0]
    if found:
        depth = min(len(path) for path, _ in found)
        outermost = [count for path, count in found if len(path) == depth]
        return functools.reduce(jnp.maximum, outermost)
    fix = (
        "Pass the state of the whole optimizer, or end the chain with "
        "`eqopt.ScaleByLearningRate(...)`."
    )
    if counts:
        path, count = counts[0]
        fix = (
            f"`{jtu.keystr(path)}` has shape {count.shape}. For a population, call "
            "`step_count` inside `eqx.filter_vmap`."
        )
    name = type(state).__name__
    raise KeyError(f"step_count: nothing in this {name} counts steps. {fix}")


def _is_count(x):
    return _is_array(x) and jnp.issubdtype(x.dtype, jnp.integer)


def _is_array(x):
    return isinstance(x, jax.Array | np.ndarray)


def set(
    tree: Tree, filtering: _Filtering = None, /, *, all: bool = False, **values: Any
) -> Tree:
    """A copy of `tree` with the value of each given name replaced.

    !!! example

        ```python
        opt = eqopt.tree.set(opt, learning_rate=3e-4)
        muon = eqopt.Muon(0.02, fallback=eqopt.AdamW(1e-3))
        muon = eqopt.tree.set(muon, **{".fallback.learning_rate": 3e-4})
        ```

    A state only records the learning rate and the `hyperparams` of
    [`eqopt.Scheduled`][]: steps take them from the optimizer. So they are never
    replaced. `None` is replaced only if nothing else has the name.

    **Arguments:**

    - `tree`: a state, an optimizer or any other pytree.
    - `filtering`: a function of the key path and the value that returns whether to
        replace the value. All values for which it returns true are replaced.
    - `all`: whether to replace all values if several have the same name.
    - `values`: the new values by name or key path. A number that replaces an array
        becomes an array of the same dtype, so that nothing is compiled again.

    **Returns:**

    The changed copy.

    **Raises:**

    A `KeyError` if nothing in `tree` has one of the names, and one that lists the key
    paths if several values have it, without `filtering` and `all`. A `ValueError` if the
    only such values are records of the state, if the shape of an array would change, or
    if a hyperparameter would be out of its range. A `TypeError` for a string instead of
    an array, for a float or complex number instead of an integer, or for a complex
    number instead of a real one.
    """
    places = {}
    for key, value in values.items():
        found = _found("set", tree, key, filtering)
        settable = [pair for pair in found if not _is_recorded(tree, pair[0])]
        if not settable:
            raise InputError(
                f"`{jtu.keystr(found[0][0])}` only records the value of the last step. "
                "Change the optimizer: `eqopt.tree.set(opt, learning_rate=...)`."
            )
        if len(settable) > 1 and not (all or filtering):
            path = jtu.keystr(settable[-1][0])
            fix = f"Pass the path of one, `**{{{path!r}: ...}}`, or `all=True`."
            raise KeyError(_several("set", key, settable, fix))
        places |= {path: value for path, _ in settable}
    return _replaced((), tree, places)


def _is_recorded(tree: Any, path: Sequence[Any]) -> bool:
    """Whether a state on the path declares that it only records the field."""
    return any(
        isinstance(node, eqx.Module)
        and kinds(type(node)).get(str(_name(key))) == "recorded"
        for node, key in on_the_way(tree, path)
    )


def _replaced(path, node, places, in_optimizer=False) -> Any:
    if path in places:
        new = places[path]
        # A hyperparameter that is an array may become a schedule.
        is_schedule = in_optimizer and callable(new)
        return new if is_schedule else _like(node, new, path)
    children = _children(node)
    if not children:
        return node
    _, treedef = jtu.tree_flatten(node, is_leaf=lambda x: x is not node)
    is_inside = in_optimizer or is_optimizer(node)
    parts = (_replaced((*path, key), x, places, is_inside) for key, x in children)
    new = treedef.unflatten(parts)
    if is_inside and isinstance(new, Module) and not _is_population(new):
        with naming(new):
            check_fields(new)
    return new


def _is_population(optimizer: PyTree) -> bool:
    """Whether its numbers have another axis."""
    return any(map(np.ndim, jtu.tree_leaves(optimizer)))


def _like(old: Any, new: Any, path: tuple) -> Any:
    """`new` in the type of `old` if that is an array, so that nothing compiles again."""
    if not isinstance(old, jax.Array) or isinstance(new, jax.ShapeDtypeStruct):
        return new
    found = jnp.asarray(new)
    is_flag = (found.dtype == bool) != (old.dtype == bool)
    if found.shape != old.shape or is_flag or _rank(found) > _rank(old):
        before, after = (type_name(x.dtype, x.shape) for x in (old, found))
        raise InputError(
            f"`{jtu.keystr(path)}` is {before}, so the new value must have this shape "
            f"and kind, but it is {after}."
        )
    return jnp.full_like(old, new)  # weakly typed if the old one is


def _rank(x: jax.Array) -> int:
    """Integers before real numbers before complex numbers."""
    return sum(jnp.issubdtype(x.dtype, k) for k in (jnp.inexact, jnp.complexfloating))
