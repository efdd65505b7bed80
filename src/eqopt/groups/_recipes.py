"""How selectors and rules were made, so that they can be written down."""

from typing import Any

from ._factors import LayerwiseDecay
from ._rules import Matrix, MatrixRules, Stack
from ._selectors import Labels, Selector, how_selected


def recipe(x: Any) -> tuple[str, dict[str, Any]] | None:
    """The function of this room that makes an object equal to `x`, and its arguments.

    If it is joined from others, it is `"all"`, `"any"` or `"not"`, and the argument `of`.
    It is `None` for anything else.
    """
    if isinstance(x, Selector):
        return how_selected(x)
    if isinstance(x, Labels):
        names, rules = zip(*x.rules, strict=True) if x.rules else ((), ())
        return "label", {"names": names, "rules": rules}
    if isinstance(x, LayerwiseDecay):
        return "layerwise_decay", {"decay": x.decay, "parts": x.parts}
    if isinstance(x, MatrixRules) and len(x.rules) == 1:
        return _of_one(*x.rules[0])
    if isinstance(x, MatrixRules):
        return "any", {"of": tuple(MatrixRules((rule,)) for rule in x.rules)}
    return None


def _of_one(selector: Selector, rule: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(rule, Stack):
        return "stacked", {"part": selector, "axes": rule.axes}
    if isinstance(rule, Matrix):
        sides = {"inputs": rule.inputs, "outputs": rule.outputs}
        blocks = dict(zip(("input_blocks", "output_blocks"), rule.blocks, strict=True))
        return "matrices", {"selector": selector, **sides, **blocks}
    return "no_matrices", {"selector": selector}
