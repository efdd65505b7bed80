"""The structure of a tree, in a form that can be stored next to its arrays."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._trees.leaves import listed, type_name
from .._types import PyTree


class CheckpointError(ValueError):
    """A checkpoint is damaged, or does not fit the tree that it is loaded into.

    It is raised before anything is changed, on disk or in memory.
    """


def layout(tree: PyTree) -> list[list[str]]:
    """The structure of `tree`: classes of its nodes, dtypes and shapes of its leaves.

    Store it next to the arrays, and use [`eqopt.checkpoint.check_layout`][] to check
    whether they fit another tree. [`eqopt.checkpoint.save`][] does this automatically.

    !!! example

        ```python
        assert eqopt.checkpoint.layout((1.0, jnp.zeros((3, 2)))) == [
            ["", "tuple"],
            ["[0]", "float"],
            ["[1]", "float32[3,2]"],
        ]
        ```

    **Arguments:**

    - `tree`: any pytree. `jax.ShapeDtypeStruct`s count as arrays.

    **Returns:**

    Pairs of a key path and a description, which can be written as JSON. Functions,
    strings, `None` and other leaves that are neither arrays nor numbers are omitted. The
    states of [`eqopt.Flatten`][] and [`eqopt.ZeRO1`][] add the shapes that their arrays
    had before they were joined or padded. Older versions did not, so these shapes are
    not checked for their files.
    """
    return [list(row) for row in _rows(tree, "")]


def _rows(tree, path) -> Iterator[tuple[str, str]]:
    children, _ = jtu.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    if len(children) == 1 and children[0][1] is tree:
        if is_saved(tree):
            yield path, _described(tree)
    elif tree is not None:
        # For stored arrays, the same bits mean other numbers if static fields differ.
        yield path, getattr(tree, "layout_name", type(tree).__name__)
        for i, shape in enumerate(getattr(tree, "_layout_shapes", ())):
            if shape is not None:
                yield f"{path}.shapes[{i}]", f"{_SHAPE}{list(shape)}"
        for key, child in children:
            yield from _rows(child, path + jtu.keystr(key))


# How the rows for shapes begin that do not follow from the shapes of the leaves.
_SHAPE = "shape "


def is_saved(x):
    """Whether a leaf is an array or a number, of Python or NumPy."""
    return is_number(x) or isinstance(
        x, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
    )


def is_number(x: Any) -> bool:
    # NumPy's float64 is a subclass of Python's float, but its dtype must be kept.
    return isinstance(x, int | float | complex) and not isinstance(x, np.generic)


def is_key(x):
    """Whether a leaf is an array of typed random keys."""
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(
        x.dtype, jax.dtypes.prng_key
    )


def is_weak(x):
    """Whether a leaf is a weakly typed JAX array."""
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct) and bool(
        getattr(x, "weak_type", False)  # typed keys do not have it
    )


def _described(x):
    return type(x).__name__ if is_number(x) else type_name(x.dtype, x.shape)


def check_layout(
    saved: Sequence[Sequence[str]], like: PyTree, name: str = "the checkpoint"
) -> None:
    """Raises an error that names key paths, unless arrays fit the tree `like`.

    **Arguments:**

    - `saved`: the [`eqopt.checkpoint.layout`][] of the tree that was saved.
    - `like`: a tree with the expected structure.
    - `name`: the name of the checkpoint in the error.

    **Raises:**

    A [`eqopt.checkpoint.CheckpointError`][] that lists differences of classes, dtypes
    or shapes, and leaves that only one of them has.
    """
    expected = layout(like)
    if not any(text.startswith(_SHAPE) for _, text in saved):
        # Older versions did not write these rows.
        expected = [row for row in expected if not row[1].startswith(_SHAPE)]
    if [list(row) for row in saved] == expected:
        return
    there, here = ({row[0]: row[1] for row in rows} for rows in (saved, expected))
    other = [
        f"`{path or '(the root)'}` ({x} against {here[path]})"
        for path, x in there.items()
        if here.get(path, x) != x
    ]
    only_there = [path for path in there if path not in here]
    only_here = [path for path in here if path not in there]
    message = f"{name} does not fit `like`."
    if other:
        message += f" They differ at {listed(other, quote='')}."
    if only_there:
        message += f" Only the checkpoint has {listed(only_there)}."
    if only_here:
        message += f" Only `like` has {listed(only_here)}."
    if not (other or only_there or only_here):
        message += " It has the same leaves in another order."
    message += f" {_WHAT_TO_DO}"
    if any(there[path] in _BY_DEVICES and path in here for path in there):
        message += f" {_OF_AS_MANY}"
    raise CheckpointError(message)


_WHAT_TO_DO = (
    "Create `like` with the model and the optimizer of the saved run, with the same "
    "storage of state and parameters, or start a new run with another path."
)

# Classes of nodes whose arrays depend on the number of devices, and what to do then.
_BY_DEVICES = "Stacks", "ZeRO1State"
_OF_AS_MANY = (
    "If `ZeRO1` or `DistributeMatrices` had another number of devices, create `like` "
    "with a `jax.sharding.AbstractMesh` of as many, outside `jax.set_mesh`, and convert "
    "the loaded state with `eqopt.tree.migrate`."
)
