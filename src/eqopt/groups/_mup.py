"""Learning rates that stay valid when the width of a model changes."""

from typing import Any, Literal

import jax.tree_util as jtu

from .._arguments.construction import Module
from .._errors import InputError
from .._matrices import Axes, DimensionNumbers, resolve_dimension_numbers
from .._trees.leaves import (
    check_parameters,
    disagreement,
    is_leaf,
    is_parameter,
    keystr,
)
from .._trees.stored import shapes_if_stored
from .._types import Params, PyTree


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
    check_parameters("mup", model)
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
    return MupFactors(
        treedef.unflatten(factors),
        treedef.unflatten(None if f is None else 1 / f for f in factors),
    )


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
    here, there = (
        jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
        for tree in (base_model, model)
    )
    if [path for path, _ in here] != [path for path, _ in there]:
        differ = disagreement("base_model", base_model, "model", model)
        raise InputError("mup", f"{differ} {_FIX}")
    axes = lambda x: len(x.shape) if is_parameter(x) else None
    for i, ((_, base), (_, x)) in enumerate(zip(here, there, strict=True)):
        if axes(base) != axes(x):
            raise InputError(
                "mup",
                f"`{keystr(model, i)}` must have as many axes in `base_model` as in "
                f"`model`, but has {axes(base)} and {axes(x)}. {_FIX}",
            )
    return [base for _, base in here]


def _ratios(
    model: Params, index: int, base: Any, x: Any, axes: Axes | None
) -> tuple[float | None, float | None]:
    """The ratios of the inputs and of the outputs, `None` if the sizes are equal."""
    ratios = {
        axis: n / base.shape[axis]
        for axis, n in enumerate(x.shape)
        if n != base.shape[axis]
    }
    every = tuple(range(len(x.shape)))
    sides = ((), every) if axes is None else (axes.reduction, axes.output)
    infinite = [[axis for axis in side if axis in ratios] for side in sides]
    if len(ratios) > sum(map(len, infinite)) or any(len(side) > 1 for side in infinite):
        raise InputError(
            "mup",
            f"`{keystr(model, index)}` has shape {base.shape} in `base_model` and "
            f"{x.shape} in `model`, but only one input axis and one output axis of a "
            "matrix may differ, or one axis of another array. Describe matrices with "
            "`weight_dimension_numbers`.",
        )
    inputs, outputs = (ratios[side[0]] if side else None for side in infinite)
    return inputs, outputs
