"""The parameters of a model from torch, and which of them belong together."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ..._errors import InputError
from ..._trees.leaves import is_leaf, is_parameter, listed
from ..._trees.masks import resolve
from ..._types import Mask, Params
from ...numerics._numerics import common_dtype


def params_from_torch(
    tensors: Iterable[Any],
    params: Params,
    *,
    paths: Sequence[str | None] | None = None,
    transpose: Mask | None = None,
) -> Params:
    """The model with the parameters of a torch module.

    !!! example

        ```python
        model = params_from_torch(network.parameters(), model)
        ```

    **Arguments:**

    - `tensors`: `network.parameters()`, `network.named_parameters()` or
        `network.state_dict()`; or NumPy arrays, alone or in a dictionary with their
        names. A `state_dict` may also have buffers: pass `None` for them in `paths`.
    - `params`: the model.
    - `paths`: the key path in the model of each tensor in order, such as
        `".layers[0].weight"`, and `None` for a tensor that the model does not have. By
        default, tensors are matched by name if every name is a key path of the model
        (`layers.0.weight` is `.layers[0].weight`). Otherwise, they are matched in order
        if their shapes agree in order, or by shape if no shape occurs twice. The bias
        of an `eqx.nn.Conv`, which has more axes here, agrees with torch's.
    - `transpose`: which matrices of the model are the transposes of torch's: a tree of
        bools like the model or a prefix of it (`True` for all matrices), or a function
        of the model that returns one, such as an [`eqopt.groups.Selector`][]. The last
        two axes are swapped. Equinox's linear layers, convolutions, embeddings and
        norms have the same layout as torch's and do not need this. The kernel of a
        transposed convolution is flipped, too: pass it in Equinox's layout.

    **Returns:**

    `params`, with the values of torch in the dtypes of the model. A parameter that is
    not in `paths` stays unchanged.

    **Raises:**

    A `ValueError` that names key paths if parameters cannot be matched, if shapes
    differ, if a parameter is complex, or if the dtype of the model would lose digits.
    """
    tensors = tensors.items() if isinstance(tensors, Mapping) else tensors
    pairs = [x if isinstance(x, tuple) else (None, x) for x in tensors]
    arrays = [array_of(x) for _, x in pairs]
    given = [
        Given(i, 0, x.shape, name)
        for i, ((name, _), x) in enumerate(zip(pairs, arrays, strict=True))
    ]
    where = places("params_from_torch", given, params, paths, transpose)

    def taken(path: tuple, x: Any) -> Any:
        name = jtu.keystr(path)
        if name not in where.given:
            return x
        source = arrays[where.given[name].key]
        return fitted(source, x, f"The parameter `{name}`", name in where.transposed)

    return jtu.tree_map_with_path(taken, params, is_leaf=is_leaf)


@dataclasses.dataclass(frozen=True)
class Given:
    """A parameter of torch, as far as it is known.

    - `key`: its key in the state of an optimizer.
    - `group`: the number of its group.
    - `shape`, `name`: `None` if they are not known.
    """

    key: Any
    group: int
    shape: tuple[int, ...] | None
    name: str | None


@dataclasses.dataclass(frozen=True)
class Places:
    """The position of each parameter of torch in a model.

    - `given`: torch's parameters by the key paths of the model. Parameters that torch
        does not have are not in it.
    - `transposed`: the key paths of transposed matrices.
    """

    given: dict[str, Given]
    transposed: frozenset[str]


def given_in(groups: Iterable[dict], shape_of: Callable[[Any], Any]) -> list[Given]:
    """The parameters in `param_groups`, in order, with their shapes by their keys."""
    found = []
    for i, group in enumerate(groups):
        keys = group["params"]
        names = group.get("param_names") or [None] * len(keys)
        for key, name in zip(keys, names, strict=True):
            found.append(Given(key, i, shape_of(key), name))
    return found


def places(
    owner: str,
    given: Sequence[Given],
    params: Params,
    paths: Sequence[str | None] | None,
    transpose: Mask | None,
) -> Places:
    """Where the parameters in `given` are, by `paths`, by their names or their shapes."""
    leaves = {
        jtu.keystr(path): x
        for path, x in jtu.tree_leaves_with_path(params, is_leaf)
        if is_parameter(x)
    }
    transposed = _transposed(params, transpose)
    shapes = {
        path: _swapped(x.shape) if path in transposed else tuple(x.shape)
        for path, x in leaves.items()
    }
    name, places = ("the model", leaves) if paths is None else ("`paths`", paths)
    if len(places) != len(given):
        raise InputError(
            owner,
            f"torch has {len(given)} parameters, but {name} has {len(places)}. "
            f"{_how_to(leaves)}",
        )
    if paths is None:
        chosen = _named(given, leaves) or _shaped(owner, given, shapes)
    else:
        chosen = list(paths)
        known = [path for path in chosen if path is not None]
        wrong = [x for x in known if x not in leaves or known.count(x) > 1]
        if wrong:
            raise InputError(
                owner,
                f"`paths` has {listed(wrong)} more than once, or the model has no such "
                f"parameter. {_how_to(leaves)}",
            )
        for path, one in zip(chosen, given, strict=True):
            if path and one.shape is not None and not _fits(one.shape, shapes[path]):
                raise InputError(
                    owner,
                    f"`paths` has `{path}`, of shape {shapes[path]} in torch's layout, "
                    f"for a parameter of shape {one.shape}. If matrices are transposed, "
                    "pass `transpose`.",
                )
    for path in chosen:
        if path is not None and jnp.issubdtype(leaves[path].dtype, np.complexfloating):
            raise InputError(
                owner,
                f"`{path}` is complex, which torch's optimizers treat as two numbers, "
                "but eqopt's do not.",
            )
    pairs = zip(chosen, given, strict=True)
    return Places({path: one for path, one in pairs if path is not None}, transposed)


def _fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether shapes are equal without axes of length 1, which may be missing."""
    return [n for n in shape if n != 1] == [n for n in other if n != 1]


def _swapped(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape that an array has in torch if it is transposed here."""
    return (*shape[:-2], *reversed(shape[-2:]))


def _transposed(params: Params, mask: Mask | None) -> frozenset[str]:
    if mask is None:
        return frozenset()
    flags = resolve("transpose", mask, params, params)
    leaves = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)[0]
    return frozenset(
        jtu.keystr(path)
        for (path, x), flag in zip(leaves, flags, strict=True)
        if is_parameter(x) and flag
    )


def _named(given: Sequence[Given], leaves: dict[str, Any]) -> list[str] | None:
    """By the names in torch, if all of them are key paths of the model."""
    tokens = {tuple(re.findall(r"\w+", path)): path for path in leaves}
    found = [tokens.get(tuple((one.name or "").split("."))) for one in given]
    known = [path for path in found if path is not None]
    return known if len(known) == len(given) == len(leaves) == len({*known}) else None


def _shaped(
    owner: str, given: Sequence[Given], shapes: dict[str, tuple[int, ...]]
) -> list[str]:
    """In order if the shapes agree, otherwise by shape if each shape occurs once."""
    paths = list(shapes)
    theirs = {one.shape for one in given}

    def fits(one: Given, path: str) -> bool:
        # The bias of a convolution in Equinox has axes of length 1 that torch lacks.
        # It could be the weight of `Linear(1, n)`, unless torch has no such shape.
        shape = shapes[path]
        tail = shape[len(one.shape or ()) :]
        longer = one.shape is not None and (*one.shape, *tail) == shape
        is_bias = longer and {*tail} == {1} and shape not in theirs
        return one.shape is None or one.shape == shape or is_bias

    wrong = [
        (i, one, path)
        for i, (one, path) in enumerate(zip(given, paths, strict=True))
        if not fits(one, path)
    ]
    if not wrong:
        return paths
    exact = lambda one: [path for path in paths if shapes[path] == one.shape]
    known = [exact(one) or [p for p in paths if fits(one, p)] for one in given]
    if all(len(found) == 1 for found in known):
        unique = [found[0] for found in known]
        if len({*unique}) == len(paths):
            return unique
    i, one, path = wrong[0]
    name = f" ({one.name})" if one.name else ""
    raise InputError(
        owner,
        f"parameter {i} of torch{name} has shape {one.shape}, but `{path}` has shape "
        f"{shapes[path]}. {_how_to(paths)} If matrices are transposed, pass `transpose`.",
    )


def _how_to(paths: Iterable[str]) -> str:
    return (
        "Pass `paths`, the key path of each parameter of torch, or `None`. The model has "
        f"{listed(list(paths))}."
    )


#
# Tensors as JAX arrays.
#


def array_of(tensor: Any) -> np.ndarray:
    """The values of a tensor, on any device, or of an array."""
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # not supported by NumPy
        import torch

        return tensor.contiguous().view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def number(x: Any) -> Any:
    """A hyperparameter of torch, a number or a tensor, as a Python number."""
    return x.item() if hasattr(x, "item") else x


def fitted(
    given: np.ndarray, expected: Any, what: str, transposed: bool = False
) -> Array:
    """A copy of `given` with the shape and dtype of `expected`.

    Axes of length 1 may be missing or surplus, and an array may become wider.
    """
    if transposed and given.ndim > 1:
        given = given.swapaxes(-1, -2)
    if not _fits(given.shape, expected.shape):
        raise InputError(
            None,
            f"{what} has shape {given.shape} in torch, expected {expected.shape}. If the "
            "matrix is transposed, pass `transpose`.",
        )
    if common_dtype(given.dtype, expected.dtype) != expected.dtype:
        raise InputError(
            None,
            f"{what} has dtype {given.dtype} in torch, expected {expected.dtype}, which "
            "would lose digits. Make the model or the state wider (`mu_dtype=...`), or "
            "convert torch's tensors.",
        )
    return jnp.array(given.reshape(expected.shape), expected.dtype, copy=True)
