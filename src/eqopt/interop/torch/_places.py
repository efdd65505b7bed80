"""Which parameter of torch is which one of a model."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._leaves import is_leaf, is_parameter, listed, resolve
from ..._types import Mask, Params
from ._arrays import same_shape


@dataclasses.dataclass(frozen=True)
class Given:
    """A parameter of torch, as far as torch says.

    - `key`: what the state of an optimizer calls it.
    - `group`: the number of its group.
    - `shape`, `name`: `None` if they are not known.
    """

    key: Any
    group: int
    shape: tuple[int, ...] | None
    name: str | None


@dataclasses.dataclass(frozen=True)
class Places:
    """Where each parameter of torch is in a model.

    - `given`: by the key paths of the model; what torch does not have is not in it.
    - `transposed`: the key paths of those that are stored the other way round.
    - `left_out`: what the model does not have.
    """

    given: dict[str, Given]
    transposed: frozenset[str]
    left_out: tuple[Given, ...]


def given_in(groups: Iterable[dict], shapes: dict[Any, Any]) -> list[Given]:
    """The parameters in `param_groups`, in order; `shapes` by their keys."""
    found = []
    for i, group in enumerate(groups):
        keys = group["params"]
        names = group.get("param_names") or [None] * len(keys)
        for key, name in zip(keys, names, strict=True):
            found.append(Given(key, i, shapes.get(key), name))
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
    transposed = _transposed(owner, params, transpose)
    shapes = {
        path: _swapped(x.shape) if path in transposed else tuple(x.shape)
        for path, x in leaves.items()
    }
    if paths is None:
        chosen = _named(given, leaves) or _shaped(owner, given, shapes)
    else:
        chosen = _checked(owner, given, shapes, list(paths))
    for path in chosen:
        if path is not None and jnp.issubdtype(leaves[path].dtype, np.complexfloating):
            raise ValueError(
                f"{owner}: `{path}` is complex. torch's optimizers take a complex number "
                "for two real ones, but eqopt's do not, so that the numbers would differ."
            )
    pairs = list(zip(chosen, given, strict=True))
    return Places(
        {path: one for path, one in pairs if path is not None},
        transposed,
        tuple(one for path, one in pairs if path is None),
    )


def _swapped(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape that an array has in torch if it is transposed here."""
    return (*shape[:-2], *reversed(shape[-2:]))


def _transposed(owner: str, params: Params, mask: Mask | None) -> frozenset[str]:
    if mask is None:
        return frozenset()
    flags = resolve("transpose", mask, params, None)
    found = set()
    leaves = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)[0]
    for (path, x), flag in zip(leaves, flags, strict=True):
        if not is_parameter(x):
            continue
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(
                f"{owner}: `transpose` has {flag!r} at `{jtu.keystr(path)}`, but must "
                "have `True` where a matrix is torch's transposed, and `False` elsewhere."
            )
        if flag:
            found.add(jtu.keystr(path))
    return frozenset(found)


def _named(given: Sequence[Given], leaves: dict[str, Any]) -> list[str] | None:
    """By the names in torch, if they name all parameters of the model."""
    tokens = {tuple(re.findall(r"\w+", path)): path for path in leaves}
    found = [tokens.get(tuple((one.name or "").split("."))) for one in given]
    known = [path for path in found if path is not None]
    return known if len(known) == len(given) == len(leaves) == len({*known}) else None


def _shaped(
    owner: str, given: Sequence[Given], shapes: dict[str, tuple[int, ...]]
) -> list[str]:
    """In order if the shapes agree, else by shapes if each occurs once."""
    paths = list(shapes)
    if len(given) != len(paths):
        raise ValueError(
            f"{owner}: torch has {len(given)} parameters, but the model {len(paths)}. "
            + _how_to(paths)
        )
    fits = lambda one, path: one.shape is None or same_shape(one.shape, shapes[path])
    wrong = [
        (i, one, path)
        for i, (one, path) in enumerate(zip(given, paths, strict=True))
        if not fits(one, path)
    ]
    if not wrong:
        return paths
    known = [[path for path in paths if fits(one, path)] for one in given]
    if all(len(found) == 1 for found in known):
        unique = [found[0] for found in known]
        if len({*unique}) == len(paths):
            return unique
    i, one, path = wrong[0]
    name = f" ({one.name})" if one.name else ""
    raise ValueError(
        f"{owner}: parameter {i} of torch{name} has shape {one.shape}, but the one in "
        f"this place of the model, `{path}`, has {shapes[path]}, and the shapes alone do "
        f"not decide which one is which. {_how_to(paths)} Or, if matrices are stored the "
        "other way round, pass `transpose`."
    )


def _checked(
    owner: str,
    given: Sequence[Given],
    shapes: dict[str, tuple[int, ...]],
    paths: list[str | None],
) -> list[str | None]:
    if len(paths) != len(given):
        raise ValueError(
            f"{owner}: `paths` has {len(paths)} entries, but torch has {len(given)} "
            f"parameters. {_how_to(list(shapes))}"
        )
    unknown = [path for path in paths if path is not None and path not in shapes]
    if unknown:
        raise ValueError(
            f"{owner}: `paths` has {listed(unknown)}, where the model has no parameter. "
            f"It has {listed(list(shapes))}."
        )
    known = [path for path in paths if path is not None]
    twice = [path for path in dict.fromkeys(known) if known.count(path) > 1]
    if twice:
        raise ValueError(f"{owner}: `paths` has {listed(twice)} more than once.")
    for i, (one, path) in enumerate(zip(given, paths, strict=True)):
        if path and one.shape is not None and not same_shape(one.shape, shapes[path]):
            raise ValueError(
                f"{owner}: `paths[{i}]` is `{path}`, which has shape {shapes[path]} "
                f"in torch's layout, but parameter {i} of torch has {one.shape}. Correct "
                "`paths`, or say by `transpose` which matrices are stored the other way "
                "round."
            )
    return paths


def _how_to(paths: list[str]) -> str:
    return (
        "Pass `paths`, with the key path of each parameter of torch in the order of "
        "`param_groups`, and `None` for one that the model does not have. The model has "
        f"{listed(paths)}."
    )
