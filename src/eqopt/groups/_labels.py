import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax.tree_util as jtu

from .._trees.leaves import is_leaf
from .._trees.parts import sees_part
from .._types import Params, PyTree
from ._selectors import Selector


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
    return _Labels(tuple(rules.items()))


@dataclasses.dataclass(frozen=True)
class _Labels:
    rules: tuple[tuple[Hashable, Selector], ...]

    def __call__(self, params: Params) -> PyTree:
        treedef = jtu.tree_structure(params, is_leaf=is_leaf)
        labels: list[Hashable] = [None] * treedef.num_leaves
        for name, selector in self.rules:
            chosen = selector.choose(params)
            taken = [i for i, flag in enumerate(chosen) if flag and labels[i] is None]
            if any(chosen) and not (taken or sees_part()):
                raise ValueError(
                    f"Earlier rules match all parameters that the rule for {name!r} "
                    "matches. Put it before them, because the first rule that matches "
                    "counts."
                )
            for i in taken:
                labels[i] = name
        return treedef.unflatten(labels)
