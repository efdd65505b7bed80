import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu

from .._errors import InputError
from .._trees.leaves import is_leaf, is_parameter, listed
from .._types import Params, PyTree, RealScalarLike
from ._rules import MatrixRules, Stack, check_stack
from ._selectors import Selector, pointed_at


def layerwise_decay(
    decay: RealScalarLike, *parts: Callable[[Any], Any]
) -> Callable[[Params], PyTree]:
    r"""Factors for [`eqopt.ScaleByTree`][] that decay from the last layer to the first.

    The last layer has the factor 1, the layer before it $d$, the next $d^2$, and so on.
    Layers without parameters, such as an `eqx.nn.Dropout` in a list, do not count. Inside
    [`eqopt.SelectiveTransform`][], frozen layers do not count either: to count them, put
    `ScaleByTree` after the `SelectiveTransform`.

    !!! example

        ```python
        factors = eqopt.groups.layerwise_decay(
            0.8, lambda m: m.embedding, lambda m: m.layers, lambda m: m.head
        )
        opt = eqopt.Chain(eqopt.AdamW(1e-3), eqopt.ScaleByTree(factors))
        ```

    **Arguments:**

    - `decay`: $d$, a number or a 0-d array.
    - `parts`: functions of the model that return parts of it, from the first layer to
        the last. Each entry of a list or tuple counts as a layer, and so does each
        layer of a part wrapped in [`eqopt.groups.stacked`][]. A selector, such as
        [`eqopt.groups.path`][], chooses the parameters of one layer.

    **Returns:**

    A function of the parameters that returns a tree of factors.

    **Raises:**

    When that function is called, a `ValueError` that lists key paths if a parameter is
    in no part or in several parts, or if the arrays of a stack differ in their first
    axis.
    """
    return LayerwiseDecay(decay, parts)


# `eq=False`: an array has no hash, so arrays are compared by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class LayerwiseDecay:
    decay: Any
    parts: tuple[Callable, ...]

    def __call__(self, params: Params) -> PyTree:
        return _factors(self.decay, self.parts, params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerwiseDecay) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple:
        is_number = isinstance(self.decay, int | float)
        return self.decay if is_number else id(self.decay), is_number, self.parts


def _factors(decay: Any, parts: tuple[Callable, ...], params: Params) -> PyTree:
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
    names = [
        jtu.keystr(path) for path, _ in jtu.tree_flatten_with_path(params, is_leaf)[0]
    ]
    depths: list[list] = [[] for _ in leaves]
    total = 0
    for part in parts:
        layers = _layers(part, params)
        for flags, height in layers:
            chosen = [i for i, f in enumerate(flags) if f and is_parameter(leaves[i])]
            for i in chosen:
                depths[i].append((total, height))
            total += (height or 1) if chosen else 0
    wrong = [
        name
        for name, x, found in zip(names, leaves, depths, strict=True)
        if is_parameter(x) and len(found) != 1
    ]
    if wrong:
        raise InputError(
            "layerwise_decay",
            "each parameter must belong to exactly one part, but "
            f"{listed(wrong)} belong to none or to several.",
        )
    base = jnp.asarray(decay, float)
    factors = []
    for x, found in zip(leaves, depths, strict=True):
        if not is_parameter(x):
            factors.append(None)
            continue
        [(first, height)] = found
        powers = total - 1 - first - jnp.arange(height or 1)
        factor = base ** powers.astype(base.dtype)
        shape = (height,) + (1,) * (x.ndim - 1) if height else ()
        factors.append(factor.reshape(shape))
    return treedef.unflatten(factors)


def _layers(part: Any, params: Params) -> list[tuple[list[bool], int | None]]:
    """The leaves of each layer in a part, and its height if it is a stack of layers."""
    if isinstance(part, MatrixRules):
        (selector, rule), *others = part.rules
        if others or not isinstance(rule, Stack):
            raise InputError(
                "layerwise_decay",
                "a part must be a function of the model, or one "
                "`eqopt.groups.stacked(...)`, but it is other rules for matrices.",
            )
        flags = selector.choose(params)
        return [(flags, _height(flags, params))]
    if isinstance(part, Selector):
        return [(part.choose(params), None)]
    node = part(params)
    if type(node) in (list, tuple):
        return [
            (pointed_at(params, lambda m, i=i: part(m)[i]), None)
            for i in range(len(node))
        ]
    return [(pointed_at(params, part), None)]


def _height(flags: list[bool], params: Params) -> int | None:
    """The number of layers in a stack, or `None` if it has no parameters."""
    pairs = jtu.tree_leaves_with_path(params, is_leaf=is_leaf)
    arrays = [
        pair
        for pair, flag in zip(pairs, flags, strict=True)
        if flag and is_parameter(pair[1])
    ]
    return check_stack(1, arrays)[0] if arrays else None
