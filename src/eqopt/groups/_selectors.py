import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._leaves import is_leaf, is_parameter, listed
from .._types import Params


@dataclasses.dataclass(frozen=True)
class Selector:
    """A selection of parameters, made with the functions on this page.

    It is a function of the parameters that returns a tree of bools, so you can use it
    wherever a `mask` is accepted. `a & b` selects what both select, `a | b` what at
    least one of them selects, and `~a` everything else.
    """

    description: str
    choose: Callable[[Params], list[bool]] = dataclasses.field(repr=False)

    def __call__(self, params: Params) -> PyTree[bool]:
        """A tree of bools with the structure of `params`, false at other leaves.

        **Raises:**

        A `ValueError` that lists the available key paths if a rule matches nothing.
        """
        _, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
        return treedef.unflatten(self.choose(params))

    def __and__(self, other: "Selector") -> "Selector":
        return self._with(other, "&", lambda a, b: a and b)

    def __or__(self, other: "Selector") -> "Selector":
        return self._with(other, "|", lambda a, b: a or b)

    def __invert__(self) -> "Selector":
        invert = lambda params: [
            is_parameter(x) and not chosen
            for (_, x), chosen in zip(_leaves(params), self.choose(params), strict=True)
        ]
        return Selector(f"~{self.description}", invert)

    def _with(self, other: "Selector", sign: str, combine: Callable) -> "Selector":
        both = lambda params: [*map(combine, self.choose(params), other.choose(params))]
        return Selector(f"({self.description} {sign} {other.description})", both)


def path(pattern: str, *, required: bool = True) -> Selector:
    r"""Chooses parameters by their key paths.

    !!! example

        ```python
        no_decay = eqopt.groups.path(r"\.bias$") | eqopt.groups.path("norm")
        opt = eqopt.AdamW(1e-3, mask=~no_decay)
        ```

    **Arguments:**

    - `pattern`: a regular expression that is searched for in the key path, which looks
        like `.layers[0].weight` or `['encoder'].bias`.
    - `required`: whether it is an error if there is no such path.
    """
    found = re.compile(pattern).search
    return _rule(
        f"path({pattern!r})",
        lambda params: [bool(found(name)) for name, _ in _leaves(params)],
        required,
    )


def leaf(predicate: Callable[[Any], bool], *, required: bool = False) -> Selector:
    """Chooses parameters by a function of the array.

    !!! example

        ```python
        matrices = eqopt.groups.leaf(lambda x: x.ndim >= 2)
        ```

    **Arguments:**

    - `predicate`: a function of an array (or its shape and dtype) that returns a bool.
    - `required`: whether it is an error if there is no such parameter.
    """
    return _rule(
        f"leaf({getattr(predicate, '__name__', predicate)})",
        lambda params: [
            is_parameter(x) and bool(predicate(x)) for _, x in _leaves(params)
        ],
        required,
    )


def module(*types: type, required: bool = True) -> Selector:
    """Chooses all parameters inside modules of some types.

    !!! example

        ```python
        norms = eqopt.groups.module(eqx.nn.LayerNorm, eqx.nn.GroupNorm)
        ```

    **Arguments:**

    - `types`: classes; subclasses also count.
    - `required`: whether it is an error if there is no such module.
    """

    def choose(params):
        is_module = lambda x: isinstance(x, types)
        nodes = jtu.tree_leaves(params, is_leaf=lambda x: x is None or is_module(x))
        return [
            is_module(node)
            for node in nodes
            for _ in jtu.tree_leaves(node, is_leaf=is_leaf)
        ]

    return _rule(f"module({', '.join(t.__name__ for t in types)})", choose, required)


def where(fn: Callable[[Any], Any], *, required: bool = True) -> Selector:
    """Chooses the parameters in a part of the model.

    !!! example

        ```python
        encoder = eqopt.groups.where(lambda model: model.encoder)
        opt = eqopt.SelectiveTransform(eqopt.AdamW(1e-3), freeze_mask=encoder)
        ```

    **Arguments:**

    - `fn`: a function of the model that returns a part of it, or a tuple of parts, as
        in `eqx.tree_at`.
    - `required`: whether it is an error if there are no parameters.
    """
    return _rule(
        f"where({getattr(fn, '__name__', fn)})", lambda p: pointed_at(fn, p), required
    )


def pointed_at(fn: Callable[[Any], Any], params: Params) -> list[bool]:
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
    nothing = treedef.unflatten([_Place(i) for i in range(len(leaves))])
    chosen = {place.index for place in jtu.tree_leaves(fn(nothing))}
    return [i in chosen for i in range(len(leaves))]


@dataclasses.dataclass(frozen=True)
class _Place:
    """The leaf with that number."""

    index: int


everything = Selector(
    "everything", lambda params: [is_parameter(x) for _, x in _leaves(params)]
)
"""Chooses all parameters. Use it as the last rule."""


def _rule(
    description: str, choose: Callable[[Params], list[bool]], required: bool
) -> Selector:
    def checked(params):
        flags = [
            chosen and is_parameter(x)
            for chosen, (_, x) in zip(choose(params), _leaves(params), strict=True)
        ]
        if required and not any(flags):
            names = [name for name, x in _leaves(params) if is_parameter(x)]
            raise ValueError(
                f"The rule `{description}` matches no parameter. The parameters are "
                f"{listed(names) or 'none'}. If this is intended, pass "
                "`required=False`."
            )
        return flags

    return Selector(description, checked)


def _leaves(params: Params) -> list[tuple[str, Any]]:
    """The key paths and leaves, `None`s included."""
    leaves, _ = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
    return [(jtu.keystr(path), x) for path, x in leaves]
