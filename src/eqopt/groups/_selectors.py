import dataclasses
import fnmatch
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import jax.tree_util as jtu

from .._errors import InputError, naming
from .._trees.leaves import is_leaf, is_parameter, listed, selected
from .._trees.parts import sees_part
from .._types import Params, PyTree


@dataclasses.dataclass(frozen=True)
class Selector:
    """A selection of parameters, made with the functions on this page.

    It is a function of the parameters that returns a tree of bools, so you can use it
    wherever a `mask` is accepted. `a & b` selects what both select, `a | b` what at
    least one of them selects, and `~a` everything else.

    Selectors that are made in the same way are equal, also if they were made twice. A
    function, such as the argument of [`eqopt.groups.leaf`][], is only equal to itself.
    """

    description: str
    # Not a closure, which would only be equal to itself: in two equal training states
    # that hold the optimizer, static fields would differ.
    rule: Callable[..., list[bool]] = dataclasses.field(repr=False)
    arguments: tuple[Any, ...] = dataclasses.field(default=(), repr=False)
    required: bool = dataclasses.field(default=False, repr=False)

    @naming("eqopt.groups")
    def __call__(self, params: Params) -> PyTree[bool]:
        """A tree of bools with the structure of `params`, false at other leaves.

        **Raises:**

        A `ValueError` that lists the available key paths if a rule matches nothing.
        """
        _, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
        return treedef.unflatten(self.choose(params))

    def __and__(self, other: "Selector") -> "Selector":
        both = f"({self.description} & {other.description})"
        return Selector(both, _in_both, (self, other))

    def __or__(self, other: "Selector") -> "Selector":
        either = f"({self.description} | {other.description})"
        return Selector(either, _in_either, (self, other))

    def __invert__(self) -> "Selector":
        return Selector(f"~{self.description}", _outside, (self,))

    def __bool__(self) -> bool:
        # Python has no other hook: `not rule` would be `False`, a mask of nothing.
        problem = f"`{self.description}` is neither true nor false."
        fix = "Combine rules with `&`, `|` and `~`, not with `and`, `or` and `not`."
        raise InputError(f"{problem} {fix}")

    def choose(self, params: Params) -> list[bool]:
        """One bool for each leaf of `params`, `None`s included."""
        chosen = self.rule(params, *self.arguments)
        # A rule that names a bias of `None`, or weights in 8 bits, is no typo.
        if self.required:
            advice = " If this is intended, pass `required=False`."
            advice = _FORM * (self.rule is _on_glob) + advice
            check_matches(self.description, any(chosen), params, advice)
        leaves = jtu.tree_leaves(params, is_leaf=is_leaf)
        pairs = zip(chosen, leaves, strict=True)
        return [flag and is_parameter(x) for flag, x in pairs]


_FORM = (
    " The pattern of `.layers[0].bias` is `layers/0/bias`, and `**/bias` is for all "
    "biases."
)


def _in_both(params: Params, a: Selector, b: Selector) -> list[bool]:
    return [x and y for x, y in zip(a.choose(params), b.choose(params), strict=True)]


def _in_either(params: Params, a: Selector, b: Selector) -> list[bool]:
    return [x or y for x, y in zip(a.choose(params), b.choose(params), strict=True)]


def _outside(params: Params, selector: Selector) -> list[bool]:
    return [not flag for flag in selector.choose(params)]


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
    - `required`: whether it is an error if there is no such path in the whole
        model.

    **Raises:**

    An `re.error` if `pattern` is not a regular expression.
    """
    re.compile(pattern)
    return Selector(f"path({pattern!r})", _on_path, (pattern,), required)


def _on_path(params: Params, pattern: str) -> list[bool]:
    return [bool(re.search(pattern, name)) for name, _ in _leaves(params)]


def glob(pattern: str, *, required: bool = True) -> Selector:
    """Chooses parameters by a pattern of their key paths, as for files.

    In a pattern, the key path `.layers[0].weight` is `layers/0/weight`, and
    `['encoder'].bias` is `encoder/bias`. `*` stands for any text within a name, `?` for
    one character, `[ab]` for one of these, and `**` for any number of names, also none.
    The pattern must match the whole path, in the same case.

    !!! example

        ```python
        glob = eqopt.groups.glob
        no_decay = glob("**/bias") | glob("**/*norm*/**") | glob("embedding/**")
        opt = eqopt.AdamW(1e-3, mask=~no_decay)
        ```

    Unlike the regular expressions of [`eqopt.groups.path`][], a pattern takes little
    time whatever it is, so it may come from a file.

    **Arguments:**

    - `pattern`: names and wildcards, separated by `/`.
    - `required`: whether it is an error if there is no such path in the whole
        model.
    """
    return Selector(f"glob({pattern!r})", _on_glob, (pattern,), required)


def _on_glob(params: Params, pattern: str) -> list[bool]:
    leaves, _ = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
    names = [[jtu.keystr((key,), simple=True) for key in path] for path, _ in leaves]
    return [_fits(names_of_one, pattern.split("/")) for names_of_one in names]


def _fits(names: list[str], wanted: list[str]) -> bool:
    # How many of the names the pattern may have matched so far: not a regular
    # expression, which may try each way to divide the names between several `**`.
    ends = {0}
    for part in wanted:
        if part == "**":
            ends = {*range(min(ends), len(names) + 1)}
        else:
            inside = [i for i in ends if i < len(names)]
            ends = {i + 1 for i in inside if fnmatch.fnmatchcase(names[i], part)}
        if not ends:
            return False
    return len(names) in ends


def leaf(predicate: Callable[[Any], bool], *, required: bool = False) -> Selector:
    """Chooses parameters by a function of the array.

    !!! example

        ```python
        matrices = eqopt.groups.leaf(lambda x: x.ndim >= 2)
        ```

    **Arguments:**

    - `predicate`: a function of an array (or its shape and dtype) that returns a bool.
    - `required`: whether it is an error if there is no such parameter in the whole
        model.
    """
    description = f"leaf({getattr(predicate, '__name__', predicate)})"
    return Selector(description, _by_array, (predicate,), required)


def _by_array(params: Params, predicate: Callable[[Any], bool]) -> list[bool]:
    flags: list[Any] = [is_parameter(x) and predicate(x) for _, x in _leaves(params)]
    if any(flag is None for flag in flags):  # it would choose nothing, in silence
        name = getattr(predicate, "__name__", predicate)
        raise InputError(
            f"`{name}` returned None, not a bool. Does it lack a `return`?"
        )
    return [*map(bool, flags)]


def module(*types: type, required: bool = True) -> Selector:
    """Chooses all parameters inside modules of some types.

    !!! example

        ```python
        norms = eqopt.groups.module(eqx.nn.LayerNorm, eqx.nn.GroupNorm)
        ```

    **Arguments:**

    - `types`: classes; subclasses also count.
    - `required`: whether it is an error if there is no such module in the whole
        model.
    """
    description = f"module({', '.join(t.__name__ for t in types)})"
    return Selector(description, _in_modules, (types,), required)


def _in_modules(params: Params, types: tuple[type, ...]) -> list[bool]:
    is_module = lambda x: isinstance(x, types)
    nodes = jtu.tree_leaves(params, is_leaf=lambda x: x is None or is_module(x))
    return [is_module(node) for node in nodes for _ in jtu.tree_leaves(node, is_leaf)]


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
    - `required`: whether it is an error if that part of the whole model is empty.
    """
    description = f"where({getattr(fn, '__name__', fn)})"
    return Selector(description, pointed_at, (fn,), required)


def pointed_at(params: Params, fn: Callable[[Any], Any]) -> list[bool]:
    name = f"`{getattr(fn, '__name__', fn)}`"
    chosen = {*jtu.tree_leaves(selected(params, fn, name))}
    return [i in chosen for i in range(len(_leaves(params)))]


def _everywhere(params: Params) -> list[bool]:
    return [is_parameter(x) for _, x in _leaves(params)]


everything = Selector("everything", _everywhere)
"""Chooses all parameters. Use it as the last rule."""


# The functions that make selectors with these rules, and their arguments.
_MADE = {
    _in_both: ("all", "of"),
    _in_either: ("any", "of"),
    _outside: ("not", "of"),
    _on_path: ("path", "pattern"),
    _on_glob: ("glob", "pattern"),
    _by_array: ("leaf", "predicate"),
    _in_modules: ("module", "types"),
    pointed_at: ("where", "fn"),
}


def how_selected(selector: Selector) -> tuple[str, dict[str, Any]] | None:
    """The function that makes an equal selector, and its arguments.

    For a selector that is joined from others, it is `"all"`, `"any"` or `"not"`, and
    the argument `of`. It is `None` for a selector with a rule that is not from here.
    """
    if selector == everything:
        return "everything", {}
    if selector.rule not in _MADE:
        return None
    maker, argument = _MADE[selector.rule]
    if argument == "of":
        return maker, {"of": selector.arguments}
    return maker, {argument: selector.arguments[0], "required": selector.required}


def check_matches(
    description: str, has_matches: Any, params: Params, advice: str = ""
) -> None:
    """Raises an error if a rule matches nothing in a whole model."""
    if not (has_matches or sees_part()):
        names = [name for name, x in _leaves(params) if is_parameter(x)]
        fix = f"The parameters are {listed(names) or 'none'}.{advice}"
        raise InputError(f"`{description}` matches no parameter. {fix}")


def check_in_time(rule: str, new: Collection[int]) -> None:
    """Raises an error if earlier rules match all that a rule matches in a whole model.

    `new`: the leaves that only this rule matches.
    """
    if not (new or sees_part()):
        raise InputError(
            f"the rule `{rule}` comes too late: earlier rules match all of its "
            "parameters, and the first one counts."
        )


def _leaves(params: Params) -> list[tuple[str, Any]]:
    """The key paths and leaves, `None`s included."""
    leaves, _ = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
    return [(jtu.keystr(path), x) for path, x in leaves]


def label(rules: Mapping[Any, Selector]) -> Callable[[Params], PyTree]:
    """Labels for [`eqopt.Partition`][]: the first rule that matches gives the label.

    !!! example

        ```python
        groups = eqopt.groups
        hidden = groups.leaf(lambda x: x.ndim >= 2) & ~groups.module(eqx.nn.Embedding)
        labels = groups.label({"muon": hidden, "adamw": groups.everything})
        opt = eqopt.Partition(
            {"muon": eqopt.Muon(0.02), "adamw": eqopt.AdamW(1e-3)}, labels
        )
        print(groups.table(labels, model))
        ```

    **Arguments:**

    - `rules`: selectors by label, which are tried in this order. A label is a string or
        another hashable value, as in [`eqopt.Partition`][].

    **Returns:**

    A function of the parameters that returns a tree of labels, with `None` where no rule
    matches. [`eqopt.Partition`][] rejects that for a parameter that it trains.

    **Raises:**

    When that function is called, a `ValueError` if earlier rules match everything that a
    rule matches in the whole model.
    """
    return Labels(tuple(rules.items()))


@dataclasses.dataclass(frozen=True)
class Labels:
    rules: tuple[tuple[Hashable, Selector], ...]

    @naming("eqopt.groups.label")
    def __call__(self, params: Params) -> PyTree:
        treedef = jtu.tree_structure(params, is_leaf=is_leaf)
        labels: list[Hashable] = [None] * treedef.num_leaves
        for name, selector in self.rules:
            chosen = selector.choose(params)
            taken = [i for i, flag in enumerate(chosen) if flag and labels[i] is None]
            if any(chosen):
                check_in_time(str(name), taken)
            for i in taken:
                labels[i] = name
        return treedef.unflatten(labels)
