"""Factors for learning rates: by the depth of a layer, and by the width of a model."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import jax.tree_util as jtu

from .._arguments.construction import Module
from .._errors import InputError, naming
from .._matrices import Axes, DimensionNumbers, resolve_dimension_numbers
from .._trees.leaves import (
    check_parameters,
    disagreement,
    is_leaf,
    is_parameter,
    keystr,
    listed,
)
from .._trees.stored import shapes_if_stored
from .._types import Params, PyTree, RealScalarLike
from ._rules import MatrixRules, check_stack
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

    @naming("eqopt.groups.layerwise_decay")
    def __call__(self, params: Params) -> PyTree:
        leaves, treedef = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
        depths: list[list] = [[] for _ in leaves]
        total = 0
        for flags, height in (x for part in self.parts for x in _layers(part, params)):
            arrays = [is_parameter(x) for _, x in leaves]
            chosen = [i for i, flag in enumerate(flags) if flag and arrays[i]]
            for i in chosen:
                depths[i].append((total, height))
            total += (height or 1) if chosen else 0
        pairs = list(zip(leaves, depths, strict=True))
        names = [
            jtu.keystr(p) for (p, x), d in pairs if is_parameter(x) and len(d) != 1
        ]
        if names:
            expected = "each parameter must belong to exactly one part"
            found = f"{listed(names)} belong to none or to several"
            raise InputError(f"{expected}, but {found}.")
        base = jnp.asarray(self.decay, float)

        def factor(x: Any, first: int, height: int | None) -> Any:
            powers = total - 1 - first - jnp.arange(height or 1)
            shape = (height,) + (1,) * (x.ndim - 1) if height else ()
            return (base ** powers.astype(base.dtype)).reshape(shape)

        return treedef.unflatten(factor(x, *d[0]) if d else None for (_, x), d in pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerwiseDecay) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple:
        is_number = isinstance(self.decay, int | float)
        return self.decay if is_number else id(self.decay), is_number, self.parts


def _layers(part: Any, params: Params) -> list[tuple[list[bool], int | None]]:
    """The leaves of each layer in a part, and its height if it is a stack of layers."""
    if isinstance(part, MatrixRules):
        [(selector, _)] = part.rules  # of `stacked`
        flags = selector.choose(params)
        return [(flags, _height(flags, params))]
    if isinstance(part, Selector):
        return [(part.choose(params), None)]
    node = part(params)
    if type(node) in (list, tuple):
        layers = [lambda m, i=i: part(m)[i] for i in range(len(node))]
        return [(pointed_at(params, layer), None) for layer in layers]
    return [(pointed_at(params, part), None)]


def _height(flags: list[bool], params: Params) -> int | None:
    """The number of layers in a stack, or `None` if it has no parameters."""
    pairs = jtu.tree_leaves_with_path(params, is_leaf=is_leaf)
    arrays = [p for p, f in zip(pairs, flags, strict=True) if f and is_parameter(p[1])]
    return check_stack(1, arrays)[0] if arrays else None


#
# The width of a model
#


class MupFactors(Module):
    """The result of [`eqopt.groups.mup`][]: two trees like the parameters.

    They hold Python floats, and `None` at leaves that are not parameters.

    **Attributes:**

    - `learning_rate`: the factor of the learning rate of each parameter.
    - `weight_decay`: the factor of its weight decay, for optimizers in which the
        learning rate and its factor also multiply the decay: the inverse of the other
        factor.
    """

    learning_rate: PyTree[float]
    weight_decay: PyTree[float]


def mup(
    base_model: Params,
    model: Params,
    optimizer: Literal["adam", "sgd", "muon"] = "adam",
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> MupFactors:
    r"""Factors that transfer a learning rate from a small model to a wide one.

    This is the optimizer's part of the maximal update parametrization (µP). The base
    model is the model that the learning rate was tuned on: the same model, but narrower
    or wider. An axis is *infinite* if its size differs from the base model. With
    $r_\text{in}$ and $r_\text{out}$, the ratios of the sizes of a matrix's inputs and
    outputs to the base model, the factors of the learning rate are:

    | | both infinite | inputs or outputs | none |
    | --- | --- | --- | --- |
    | `"adam"` | $1 / r_\text{in}$ | $1$ | $1$ |
    | `"sgd"` | $r_\text{out} / r_\text{in}$ | $r_\text{in}$ or $r_\text{out}$ | $1$ |
    | `"muon"` | $1$, as in the first row for the fallback | $1$ | $1$ |

    [`eqopt.groups.layer_matrices`][] decides which parameters are matrices. Others, such
    as biases, norms and embeddings, have only outputs.

    The model must do its own part: the initial values, and a multiplier on its output.
    See [Transfer over widths](../width_transfer.md).

    !!! example

        Put [`eqopt.ScaleByTree`][] before the decay, which then stays
        $\eta_t \lambda p$ for all parameters:

        ```python
        class Model(eqx.Module):
            mlp: eqx.nn.MLP
            multiplier: float  # of the output: µP's other part

            def __init__(self, width, key):
                self.mlp = eqx.nn.MLP(2, 1, width, depth=2, key=key)
                self.multiplier = 64 / width

            def __call__(self, x):
                return self.multiplier * self.mlp(x)

        base = eqx.filter_eval_shape(Model, 64, jax.random.key(0))
        model = Model(256, jax.random.key(0))
        factors = eqopt.groups.mup(base, model)
        assert factors.learning_rate.mlp.layers[1].weight == 1 / 4

        opt = eqopt.Chain(
            eqopt.ScaleByAdam(),
            eqopt.ScaleByTree(factors.learning_rate),
            eqopt.AddDecayedWeights(0.1),
            eqopt.ScaleByLearningRate(1e-3),
        )
        ```

        Without decay, `eqopt.ScaleByTree` may also follow `eqopt.Adam(1e-3)`. After
        `eqopt.AdamW`, it would also multiply the decay, and wide matrices would decay
        less. To compensate, give each parameter its own $\lambda$, multiplied by
        `factors.weight_decay`.

    **Arguments:**

    - `base_model`: the model that the learning rate was tuned on, with arrays or
        shapes: `eqx.filter_eval_shape(make_model, ...)` takes no memory.
    - `model`: the model to train, with arrays or shapes.
    - `optimizer`: `"adam"` for Adam and all other optimizers whose steps do not depend
        on the scale of the gradients, such as Lion or RMSProp; `"sgd"` for gradient
        descent with or without momentum; `"muon"` for [`eqopt.Muon`][] without
        `consistent_rms`, whose steps for matrices suit all widths, with a fallback like
        Adam. Leave the last layer to the fallback: a step of Muon changes the output
        less in a wide model.
    - `weight_dimension_numbers`: which arrays are matrices, and how: a tree of
        [`eqopt.MatrixDimensionNumbers`][] and `None` like the parameters, or a function
        of the parameters that returns one. Pass it if the model has its own arrays with
        three or more axes. If you pass one to Muon, pass the same here. Defaults to
        [`eqopt.groups.layer_matrices`][].

    **Returns:**

    An [`eqopt.groups.MupFactors`][].

    **Raises:**

    A `ValueError` that names the key path if the models have different structures, if
    arrays have different numbers of axes, or if more than one input axis, more than one
    output axis, or an axis along which matrices are stacked is infinite.

    ??? cite "Reference"

        ```bibtex
        @article{yang2022tensor,
            author = {Yang, Greg and Hu, Edward J. and Babuschkin, Igor and others},
            title = {Tensor Programs {V}: Tuning Large Neural Networks via Zero-Shot
                     Hyperparameter Transfer},
            journal = {arXiv:2203.03466},
            year = {2022},
        }
        ```
    """
    base_model, model = shapes_if_stored(base_model), shapes_if_stored(model)
    check_parameters(model)
    bases = _leaves_like(base_model, model)
    axes = resolve_dimension_numbers(weight_dimension_numbers, model, model)
    by_muon = [optimizer == "muon" and a is not None for a in axes]
    if optimizer == "muon":  # the fallback may also have matrices
        by_default = resolve_dimension_numbers(None, model, model)
        axes = [a or b for a, b in zip(axes, by_default, strict=True)]
    leaves, treedef = jtu.tree_flatten(model, is_leaf=is_leaf)
    factors: list[float | None] = [None] * len(leaves)
    for i, (base, x) in enumerate(zip(bases, leaves, strict=True)):
        if is_parameter(x):
            ratios = _ratios(model, i, base, x, axes[i])
            factors[i] = 1.0 if by_muon[i] else _RULES[optimizer](*ratios)
    inverse = [None if f is None else 1 / f for f in factors]
    return MupFactors(treedef.unflatten(factors), treedef.unflatten(inverse))


def _of_adam(inputs: float | None, outputs: float | None) -> float:
    return 1.0 if inputs is None or outputs is None else 1 / inputs


def _of_sgd(inputs: float | None, outputs: float | None) -> float:
    if inputs is None or outputs is None:
        return inputs or outputs or 1.0
    return outputs / inputs


# `"muon"`: for parameters of its fallback.
_RULES = {"adam": _of_adam, "sgd": _of_sgd, "muon": _of_adam}
_FIX = "Create both models with the same function of the width."


def _leaves_like(base_model: Params, model: Params) -> list:
    """The leaves of the base model, each with a parameter of `model` or with none.

    Static fields may differ: layers keep their sizes there.
    """
    flat = lambda tree: jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
    here, there = flat(base_model), flat(model)
    if [path for path, _ in here] != [path for path, _ in there]:
        differ = disagreement("base_model", base_model, "model", model)
        raise InputError(f"{differ} {_FIX}")
    axes = lambda x: len(x.shape) if is_parameter(x) else None
    for i, ((_, base), (_, x)) in enumerate(zip(here, there, strict=True)):
        if axes(base) != axes(x):
            raise InputError(
                f"`{keystr(model, i)}` must have as many axes in `base_model` as in "
                f"`model`, but has {axes(base)} and {axes(x)}. {_FIX}"
            )
    return [base for _, base in here]


def _ratios(model: Params, index: int, base: Any, x: Any, axes: Axes | None):
    """The ratios of the inputs and of the outputs, `None` if the sizes are equal."""
    pairs = enumerate(zip(x.shape, base.shape, strict=True))  # of equal length
    ratios = {axis: n / m for axis, (n, m) in pairs if n != m}
    every = tuple(range(len(x.shape)))
    sides = ((), every) if axes is None else (axes.reduction, axes.output)
    infinite = [[axis for axis in side if axis in ratios] for side in sides]
    if len(ratios) > sum(map(len, infinite)) or any(len(side) > 1 for side in infinite):
        raise InputError(
            f"`{keystr(model, index)}` has shape {base.shape} in `base_model` and "
            f"{x.shape} in `model`, but only one input axis and one output axis of a "
            "matrix may differ, or one axis of another array. Describe matrices with "
            "`weight_dimension_numbers`."
        )
    inputs, outputs = (ratios[side[0]] if side else None for side in infinite)
    return inputs, outputs
