"""The error for arrays that may be matrices, or not."""

import re
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .dimension_numbers import Unknown
from .leaves import is_leaf, is_parameter, keystr, listed
from .named import named_leaves
from .recognition import INPUTS_FIRST


def check_known(owner: str, tree: PyTree, leaves: list, numbers: list) -> None:
    """Raises if the numbers of a parameter in `tree` are `Unknown`.

    `owner` is the argument that can say more.
    """
    own = [i for i, n in enumerate(numbers) if n is Unknown and is_parameter(leaves[i])]
    if not own:
        return
    (first, *others), shape = own, leaves[own[0]].shape
    path, named = keystr(tree, first), named_leaves(tree)[first]
    selector = _selector(path)
    what, kind, sides = (
        "in no layer of Equinox",
        "a stack of matrices, inputs first",
        "",
    )
    if named is not None:
        names = [name for i, name in enumerate(named.names) if i not in named.stack]
        what = f"in no layer that names its inputs (it has the axes {named.names})"
        kind = f"a matrix with the inputs {names[0]!r}"
        sides = f'inputs="{names[0]}", outputs={tuple(names[1:])}'
    elif len(shape) == 2:
        what = "in no layer of Equinox, next to stacks of that size"
        kind, sides = "a single matrix, inputs first", "inputs=0, outputs=1"
    rule = f"eqopt.groups.matrices({selector}, {sides or 'inputs=-2, outputs=-1'})"
    message = (
        f"`{path}` has shape {shape} and is {what}, and `{owner}` does not describe it. "
        f"If it is {kind}, pass `{owner}={rule}`. If it is not a matrix, pass "
        f"`eqopt.groups.no_matrices({selector})`. If a whole part of the model is a "
        "stack of layers, pass `eqopt.groups.stacked(lambda m: m.layers)`. Join such "
        "rules with `|`."
    )
    if others:
        message += f" Decide the same for {listed([keystr(tree, i) for i in others])}."
    near = _vectors(tree, leaves, numbers, first) if len(shape) > 2 else None
    if near is not None:
        message += (
            f" `{keystr(tree, near)}`, of shape {leaves[near].shape}, counts as a single "
            "matrix. If it is a stack of vectors, decide that, too."
        )
    raise ValueError(message)


def _selector(path: str) -> str:
    """The code that selects the parameter at this path."""
    if path == "(the root)":
        return "eqopt.groups.everything"
    # `re.escape` would also escape what needs no backslash, such as a quote.
    pattern = re.sub(r"([][.^$*+?{}\\|()])", r"\\\1", path)
    quote = '"' if "'" in pattern else "'"
    return f"eqopt.groups.path(r{quote}^{pattern}${quote})"


def _vectors(tree: PyTree, leaves: list, numbers: list, index: int) -> Any:
    """An array near to a stack that may be a stack of vectors, or `None`."""
    paths = [path for path, _ in jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]]
    *node, _ = paths[index] or (None,)
    for i, (path, x) in enumerate(zip(paths, leaves, strict=True)):
        is_near = [*path[: len(node)]] == node and is_parameter(x)
        is_first = numbers[i] is INPUTS_FIRST and x.shape[0] == leaves[index].shape[0]
        if is_near and is_first:
            return i
    return None
