"""One array or number of a checkpoint: whether it can be saved, and its bytes."""

import enum
import numbers

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from .._jax_internals import is_traced
from .._trees.leaves import type_name
from .._types import PyTree
from ._layout import CheckpointError, is_key, is_number, is_saved, is_weak


_Lost = tuple[str, str]  # what a leaf is, and what to do


def check_savable(tree: PyTree) -> None:
    """Raises an error with the key path of a leaf that could not be restored."""
    for path, leaf in jtu.tree_leaves_with_path(tree):
        lost = _lost(leaf)
        if lost is not None:
            found, advice = lost
            raise TypeError(
                f"eqopt.checkpoint.save: `{jtu.keystr(path) or '(the root)'}` is "
                f"{found}. {advice}"
            )


def _lost(x) -> _Lost | None:
    if isinstance(x, jax.ShapeDtypeStruct):
        return "a `jax.ShapeDtypeStruct`, which has no values", "Save the arrays."
    if isinstance(x, jax.Array):
        return _lost_of_jax(x)
    if isinstance(x, np.ndarray | np.generic):
        return _lost_of_numpy(x)
    name = type(x).__name__
    if is_number(x):
        if type(x) in _NUMBERS or isinstance(x, enum.Enum):
            return None
        plain = next(cls for cls in _NUMBERS if isinstance(x, cls)).__name__
        return f"a {name}; only its number would be saved", (
            f"Save `{plain}(x)` instead."
        )
    if isinstance(x, numbers.Number) or hasattr(type(x), "__array__"):
        return f"a {name}, not an array or number of JAX, NumPy or Python", (
            "Save `np.asarray(x)` or `float(x)` instead, or a string if `like` "
            "provides it."
        )
    return None


def _lost_of_jax(x) -> _Lost | None:
    if is_traced(x):
        return "a tracer, which has no values yet", (
            "Save outside `jit`, `vmap` and `grad`."
        )
    if x.is_deleted():
        return "an array that has been deleted, for example by donation", (
            "Save the result of the step, not its arguments."
        )
    if not (x.is_fully_addressable or x.is_fully_replicated):
        return "an array that is partly on other processes", (
            "Save it with Orbax, or copy it to all devices first: `jax.jit(lambda x: x, "
            "out_shardings=NamedSharding(x.sharding.mesh, PartitionSpec()))(x)`."
        )
    if is_weak(x) and _as_weak(np.zeros((), x.dtype)) is None:
        return f"an array of the weak type {x.dtype}, which cannot be restored", (
            "Save `jnp.asarray(x, x.dtype)` instead."
        )
    return None


def _lost_of_numpy(x) -> _Lost | None:
    if isinstance(x, np.ndarray) and type(x) is not np.ndarray:
        name = f"{type(x).__module__}.{type(x).__qualname__}"
        return f"a `{name}`; only its values would be saved", (
            "Save `np.asarray(x)` instead, and the mask of a masked array separately."
        )
    if x.dtype.kind == "V" and not jnp.issubdtype(x.dtype, np.number):
        return f"of the structured dtype {x.dtype}", (
            "Save its fields as arrays in a dictionary."
        )
    if x.dtype.metadata is not None:
        return "of a dtype with metadata, which would not be saved", (
            "Save `x.astype(x.dtype.str)` instead."
        )
    return None


def write_leaf(file, x) -> None:
    if is_saved(x):
        x = np.asarray(jr.key_data(x) if is_key(x) else x)
        np.save(file, x.view(_stored(x.dtype)))


def _stored(dtype):
    """The dtype of an array in the file: NumPy's format does not support bfloat16."""
    dtype = np.dtype(dtype)
    was_registered = dtype.isbuiltin == 2
    return np.dtype(f"V{dtype.itemsize}") if was_registered else dtype


def read_leaf(file, like, path, weak, name):
    """The result of `write_leaf`, with the dtype and shape of `like`, or an error.

    It is at `path` in the file `name`. `weak` has the paths of weak types, and is
    `None` if the file is too old to contain them.
    """
    if not is_saved(like):
        return like
    try:
        x = _values(file, like)
        x = type(like)(x.item()) if is_number(like) else x
    except OSError:
        raise
    # For invalid bytes, NumPy raises about ten kinds of exceptions.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(
            f"{name} is damaged at `{path or '(the root)'}`: {reason}. Use an older "
            "checkpoint or a copy."
        ) from error
    if is_number(like) or type(like) is np.ndarray:
        return x
    if isinstance(like, np.ndarray | np.generic):
        return x[()]
    place = _place(like)
    if is_key(like):
        impl = jr.key_impl(jnp.empty((), like.dtype))
        return _placed(jr.wrap_key_data(jnp.asarray(x), impl=impl), place)
    has_weak_type = is_weak(like) if weak is None else path in weak
    is_wide: bool = jax.config.jax_enable_x64  # type: ignore  # added at run time
    # Placed from the host: as a whole, it may be too large for one device.
    made = _as_weak(x) if has_weak_type else _made(x, place)
    if made is None or made.dtype != like.dtype:
        kind = "the weak type" if made is None else "the dtype"
        raise CheckpointError(
            f"{name} has an array of {kind} {like.dtype} at `{path or '(the root)'}`, "
            f"which JAX cannot create with jax_enable_x64={is_wide}. "
            "Set it to its value in the saved run: "
            '`jax.config.update("jax_enable_x64", ...)`.'
        )
    return _placed(made, place) if has_weak_type else made


# The dtypes of a Python number in NumPy's file format.
_NUMBERS = {
    bool: ("b1",),
    int: ("i8", "u8", "i4"),
    float: ("f8",),
    complex: ("c16",),
}

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _values(file, like):
    """The next array. Its header is compared first, because it may claim to be huge."""
    begin = file.tell()
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"it has version {version} of NumPy's format")
    shape, _, dtype = _HEADERS[version](file)
    if is_number(like):
        kinds = next(x for cls, x in _NUMBERS.items() if isinstance(like, cls))
        fits = shape == () and dtype.str[1:] in kinds
    else:
        data = jax.eval_shape(jr.key_data, like) if is_key(like) else like
        fits = shape == data.shape and dtype == _stored(data.dtype)
    if not fits:
        raise ValueError(f"it has {type_name(dtype, shape)}, unlike its layout")
    file.seek(begin)
    x = np.lib.format.read_array(file, allow_pickle=False)
    if is_number(like) or is_key(like):
        return x
    return x.view(like.dtype)  # type: ignore  # no number here


def _as_weak(x):
    """`x` as a weakly typed array, or `None` if JAX has no such type."""
    # Values written into a weak array take its type; Python numbers create weak arrays.
    weak = jnp.full(x.shape, x.dtype.type(0).item())
    return weak.at[...].set(x) if weak.dtype == x.dtype and is_weak(weak) else None


def _place(like):
    """The sharding of `like`, if it has specific devices."""
    is_struct = isinstance(like, jax.ShapeDtypeStruct)
    sharding = like.sharding if is_struct or like.committed else None
    if not isinstance(sharding, NamedSharding):
        return sharding
    if not isinstance(sharding.mesh, AbstractMesh):
        return sharding
    # `eval_shape` on a mesh with explicit axes keeps the axes, but not the devices.
    mesh = jax.sharding.get_mesh()
    return None if mesh.empty else NamedSharding(mesh, sharding.spec)


def _placed(x, place):
    return x if place is None else jax.device_put(x, place)


def _made(x, place):
    """A NumPy array as a JAX array, which shares no memory with it."""
    return jnp.array(x) if place is None else jax.device_put(x, place, may_alias=False)
