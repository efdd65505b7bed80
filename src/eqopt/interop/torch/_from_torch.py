"""torch optimizers as eqopt optimizers."""

from collections.abc import Sequence
from typing import Any

import jax.tree_util as jtu

from ..._combinators.partition import Partition
from ..._core import AbstractTransformation
from ..._errors import InputError
from ..._matrices import DimensionNumbers, MatrixDimensionNumbers
from ..._transforms.scale import SetToZero
from ..._trees.leaves import is_leaf, parameters
from ..._types import Mask, Params
from .._require import require
from ._arrays import number
from ._groups import RECIPES, WITHOUT_RECIPE, recipe
from ._places import Places, given_in, places


def from_torch(
    optimizer: Any,
    params: Params | None = None,
    *,
    paths: Sequence[str | None] | None = None,
    transpose: Mask | None = None,
) -> AbstractTransformation:
    """The eqopt optimizer that computes the same numbers as a `torch.optim` optimizer.

    !!! example

        ```python
        opt = from_torch(optimizer)
        state = state_from_torch(opt, optimizer.state_dict(), model)
        model, state = opt.step(grads, state, model)
        ```

    It supports ASGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Muon, NAdam,
    RAdam, RMSprop, Rprop and SGD, with their options. The hyperparameters are the
    current ones of the groups; a learning rate scheduler is not converted. It returns
    the eqopt optimizer with the same name, or a chain of transformations if that
    optimizer has no arguments that give the same numbers.

    Numbers are the same up to rounding, except:

    - Muon iterates in bfloat16 in torch, and in float32 or wider here.
    - eqopt does not have Adafactor's lower bound of the second moment, `eps[0]`:
        gradient entries below it, by default the spacing of numbers at 1, are not
        damped.
    - In torch, Muon divides by at least `eps`, but not here. The difference matters
        only for gradients with a norm below `eps`.
    - NAdam keeps a product in `torch.get_default_dtype()`. In float32, it has fewer
        digits than in eqopt, also for float64 parameters.

    **Arguments:**

    - `optimizer`: a `torch.optim.Optimizer`.
    - `params`: the model. It is needed if there are groups with different
        hyperparameters, or with `paths`, or with `transpose` for Muon.
    - `paths`, `transpose`: how torch's parameters correspond to the parameters of the
        model, as in [`eqopt.interop.torch.params_from_torch`][], in the order of
        `optimizer.param_groups`. With `paths`, parameters of the model that torch's
        optimizer does not have are frozen.

    **Returns:**

    An optimizer; or, for several groups, an [`eqopt.Partition`][] with the labels
    `"group_0"`, `"group_1"` and so on, and `"frozen"`.

    **Raises:**

    A `TypeError` if `optimizer` is not supported. A `ValueError` if an option has no
    counterpart in eqopt, if `params` is missing, and in the same cases as for
    [`eqopt.interop.torch.params_from_torch`][].
    """
    kind = _kind(optimizer)
    groups = optimizer.param_groups
    where = None
    if params is not None:
        shapes = {
            i: tuple(x.shape)
            for i, x in enumerate(x for group in groups for x in group["params"])
        }
        where = places("from_torch", _given(groups, shapes), params, paths, transpose)
    elif paths is not None or transpose is not None:
        raise InputError("from_torch", "`paths` and `transpose` need the model.")
    numbers = _numbers(params, where)
    opts = [recipe(kind, _plain(group), numbers) for group in groups]
    if any(opt != opts[0] for opt in opts):
        if where is None:
            raise InputError(
                "from_torch",
                f"`optimizer` has {len(groups)} groups with different hyperparameters. "
                "Pass the model, too: `from_torch(optimizer, model)`.",
            )
        return _partition(opts, params, where)
    if where is not None and len(where.given) < len(_paths(params)):
        return _partition(opts, params, where)
    return opts[0]


def _kind(optimizer: Any) -> str:
    require("torch", "eqopt.interop.torch")
    cls = type(optimizer)
    supported = sorted([*RECIPES, "Muon"])
    is_torch = cls.__module__.startswith("torch.optim")
    if not (is_torch and cls.__name__ in supported):
        reason = WITHOUT_RECIPE.get(cls.__name__, "") if is_torch else ""
        raise InputError(
            "from_torch",
            f"`optimizer` must be one of {', '.join(supported)} of torch.optim, but is a "
            f"{cls.__module__}.{cls.__qualname__}. {reason}".rstrip(),
        )
    return cls.__name__


def _given(groups: Any, shapes: dict[int, tuple[int, ...]]) -> list:
    """The parameters of an optimizer, numbered in their order."""
    keys = iter(shapes)
    numbered = [
        {**group, "params": [next(keys) for _ in group["params"]]} for group in groups
    ]
    return given_in(numbered, shapes)


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a group, without tensors."""
    return {
        name: tuple(map(number, x)) if isinstance(x, tuple | list) else number(x)
        for name, x in group.items()
        if name not in ("params", "param_names")
    }


def _numbers(params: Params | None, where: Places | None) -> DimensionNumbers:
    """torch's matrices have their outputs first; transposed ones have them last."""
    first = MatrixDimensionNumbers(-1, -2)
    if where is None or not where.transposed:
        return first
    last = MatrixDimensionNumbers(-2, -1)
    leaves, treedef = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
    return treedef.unflatten(
        None
        if getattr(x, "ndim", 0) < 2
        else (last if jtu.keystr(path) in where.transposed else first)
        for path, x in leaves
    )


def _paths(params: Params | None) -> list[str]:
    return [jtu.keystr(p) for p, _ in jtu.tree_leaves_with_path(parameters(params))]


def _partition(opts: Sequence, params: Params | None, where: Places) -> Partition:
    leaves, treedef = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
    labels = [
        f"group_{where.given[path].group}" if path in where.given else "frozen"
        for path in (jtu.keystr(path) for path, _ in leaves)
    ]
    parts: dict[str, Any] = {f"group_{i}": opt for i, opt in enumerate(opts)}
    return Partition({**parts, "frozen": SetToZero()}, treedef.unflatten(labels))
