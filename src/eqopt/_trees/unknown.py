"""The error for arrays that may be matrices, or not."""

from .._errors import InputError
from .._types import PyTree
from .dimension_numbers import Unknown
from .leaves import is_parameter, keystr, listed
from .named import named_leaves


def check_known(owner: str, tree: PyTree, leaves: list, numbers: list) -> None:
    """Raises an error if the numbers of a parameter in `tree` are `Unknown`.

    `owner` is the argument that can say more.
    """
    unknown = [
        i for i, n in enumerate(numbers) if n is Unknown and is_parameter(leaves[i])
    ]
    if not unknown:
        return
    first, *others = unknown
    named = named_leaves(tree)[first]
    axes = "" if named is None else f" and the axes {named.names}"
    more = f", like {listed([keystr(tree, i) for i in others])}" if others else ""
    raise InputError(
        None,
        f"`{keystr(tree, first)}` has shape {leaves[first].shape}{axes}, and no layer of "
        f"Equinox says which axes are a matrix{more}. Pass `{owner}=eqopt.groups."
        "matrices(selector, inputs=-2, outputs=-1)` for matrices, `eqopt.groups."
        "no_matrices(selector)` for others, or both, joined with `|`.",
    )
