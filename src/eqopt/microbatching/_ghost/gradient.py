"""The gradient of one example, in factors."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Inexact, Int

from ..._errors import InputError
from ..._jax_internals import ClosedJaxpr, Jaxpr, JaxprEqn, attempt, bind, varying_axes
from ..._trees.control import vary
from .._batch import is_state
from .._interpret import (
    as_array,
    checkpointed,
    dtype_of,
    evaluate,
    flattened,
    inlined,
    rematerialised,
    shape_of,
)
from .factors import AbstractFactor, Layout, Picks, Rows, Whole, combine


# How a parameter's part of the norm of an example's gradient is computed: from factors
# of the gradient; from the gradient itself, which is no larger than the values that are
# combined with the parameter; or from the gradient itself, although it is larger.
Path: TypeAlias = Literal["ghost", "direct", "per_example", "unused"]

# What the user chooses.
Method: TypeAlias = Literal["auto", "ghost", "per_example"]


#
# Equations that are linear in a parameter, and how its gradient factors
#


# For each axis of an input of an equation, the axis of the parameter that it is; `None`
# for an axis of size 1.
Axes: TypeAlias = tuple[int | None, ...]


class Kind(NamedTuple):
    """The properties of a primitive.

    **Attributes:**

    - `layout`: a function `(equation, operand, axes, shape) -> Layout` for the
        parameter that is input number `operand` of the equation; `None` if its gradient
        does not factor.
    - `factor`: a function `(equation, operand, layout, inputs, cotangent) -> factor`.
    - `is_lookup`: whether the factor is `Picks`.
    """

    layout: Callable[[JaxprEqn, int, Axes, tuple[int, ...]], Layout | None]
    factor: Callable[[JaxprEqn, int, Layout, Sequence[Any], Array], Rows | Picks]
    is_lookup: bool


def _dot_layout(eqn, operand, axes, shape):
    batch, summed, free = _dot_axes(eqn, operand)
    named = (_some([axes[i] for i in group]) for group in (batch, summed, free))
    return Layout(shape, shape, *named)


def _dot_factor(eqn, operand, layout, inputs, cotangent):
    batch, _, free = _dot_axes(eqn, operand)
    other_batch, other_summed, other_free = _dot_axes(eqn, 1 - operand)
    other = inputs[1 - operand]
    if not jnp.issubdtype(other.dtype, jnp.inexact):
        other = other.astype(cotangent.dtype)  # features may be integers or bools
    other = jnp.transpose(other, (*other_batch, *other_free, *other_summed))
    left = _cut(other, (len(other_batch), len(other_free)))
    # The output has the batch axes, the axes of its first input, and the axes of the
    # second.
    if operand == 0:
        count = len(batch)
        mine = range(count, count + len(free))
        theirs = range(count + len(free), cotangent.ndim)
        cotangent = jnp.transpose(cotangent, (*range(count), *theirs, *mine))
    right = _cut(cotangent, (len(batch), len(other_free)))
    return Rows(left, right, layout)


def _dot_axes(eqn: JaxprEqn, operand: int) -> tuple[list[int], list[int], list[int]]:
    summed, batch = (list(x[operand]) for x in eqn.params["dimension_numbers"])
    ndim = len(shape_of(eqn.invars[operand]))
    return batch, summed, [i for i in range(ndim) if i not in (*batch, *summed)]


def _cut(x: Array, counts: tuple[int, int]) -> Inexact[Array, "groups rows columns"]:
    """Merges the first axes, the axes after them, and the rest."""
    i, j = counts[0], counts[0] + counts[1]
    parts = x.shape[:i], x.shape[i:j], x.shape[j:]
    return jnp.reshape(x, [math.prod(part) for part in parts])


def _conv_layout(eqn, operand, axes, shape):
    moved = any(axis not in (i, None) for i, axis in enumerate(axes))
    if operand != 1 or moved or len(axes) != len(shape):
        return None
    if eqn.params["batch_group_count"] != 1:
        return None
    out, features, *window = eqn.params["dimension_numbers"].rhs_spec
    groups = eqn.params["feature_group_count"]
    # The axis of the outputs is split into groups and the outputs of each group.
    view = (*shape[:out], groups, shape[out] // groups, *shape[out + 1 :])
    left = [i + (i > out) for i in (features, *window)]
    named = [out], left, [out + 1]
    return Layout(shape, view, *(tuple(i for i in x if view[i] != 1) for x in named))


def _conv_factor(eqn, operand, layout, inputs, cotangent):
    spec = eqn.params["dimension_numbers"]
    groups = eqn.params["feature_group_count"]
    out = jnp.transpose(cotangent, spec.out_spec)
    rows, columns = out.shape[0], out.shape[1]
    right = jnp.reshape(out, (rows, groups, columns // groups, -1))
    patches = _patches(eqn, inputs[0], out.shape[2:])
    patches = jnp.reshape(patches, (rows, groups, -1, right.shape[-1]))
    left, right = (jnp.transpose(x, (1, 0, 3, 2)) for x in (patches, right))
    return Rows(_cut(left, (1, 2)), _cut(right, (1, 2)), layout)


def _patches(eqn: JaxprEqn, x: Array, out_shape: Sequence[int]):
    """The factors of each element of the window."""
    spec, params = eqn.params["dimension_numbers"], eqn.params
    x = jnp.transpose(x, spec.lhs_spec)
    pairs = zip(params["padding"], params["lhs_dilation"], strict=True)
    padding = [(low, high, dilation - 1) for (low, high), dilation in pairs]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *padding])
    kernel = shape_of(eqn.invars[1])
    window = tuple(kernel[i] for i in spec.rhs_spec[2:])
    strides = params["window_strides"]
    slices = []
    for offset in itertools.product(*map(range, window)):
        start = [i * d for i, d in zip(offset, params["rhs_dilation"], strict=True)]
        axes = zip(start, out_shape, strides, strict=True)
        stop = [i + (n - 1) * stride + 1 for i, n, stride in axes]
        stop = *x.shape[:2], *stop
        slices.append(lax.slice(x, (0, 0, *start), stop, (1, 1, *strides)))
    return jnp.stack(slices, 2)


def _table_layout(eqn, operand, axes, shape):
    table = shape_of(eqn.invars[0])
    cut = [i for i, n in enumerate(eqn.params["slice_sizes"]) if n != table[i]]
    if operand != 0 or len(cut) != 1 or eqn.params["slice_sizes"][cut[0]] != 1:
        return None
    numbers = eqn.params.get("dimension_numbers")
    if numbers is not None and numbers.operand_batching_dims:
        return None
    right = [axis for i, axis in enumerate(axes) if i != cut[0]]
    return Layout(shape, shape, (), _some([axes[cut[0]]]), _some(right))


def _gather_factor(eqn, operand, layout, inputs, cotangent):
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    positions = _positions(eqn)
    mode = params["mode"]
    if mode is lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        # JAX has no gradient for indices that break the promise of being in bounds.
        mode = lax.GatherScatterMode.FILL_OR_DROP
    filled: dict[str, Any] = {"mode": mode, "fill_value": positions.size}
    index = lax.gather(positions, inputs[1], numbers, (1,) * positions.ndim, **filled)
    rows = [i for i in range(cotangent.ndim) if i not in numbers.offset_dims]
    right = jnp.transpose(cotangent, (*rows, *numbers.offset_dims))
    return Picks(index.ravel(), _cut(right, (0, len(rows)))[0], layout)


def _dynamic_slice_factor(eqn, operand, layout, inputs, cotangent):
    positions = _positions(eqn)
    index = lax.dynamic_slice(positions, inputs[1:], (1,) * positions.ndim)
    return Picks(index.ravel(), cotangent.reshape(1, -1), layout)


def _positions(eqn: JaxprEqn) -> Int[Array, "..."]:
    """For the rows of a table: a look-up shows which row it uses."""
    pairs = zip(shape_of(eqn.invars[0]), eqn.params["slice_sizes"], strict=True)
    shape = [1 if size == part else size for size, part in pairs]
    return jnp.arange(math.prod(shape)).reshape(shape)


def _some(axes: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(axis for axis in axes if axis is not None)


KINDS = {
    "dot_general": Kind(_dot_layout, _dot_factor, False),
    "conv_general_dilated": Kind(_conv_layout, _conv_factor, False),
    "gather": Kind(_table_layout, _gather_factor, True),
    "dynamic_slice": Kind(_table_layout, _dynamic_slice_factor, True),
}


#
# Where a traced function multiplies values by its parameters
#


class Use(NamedTuple):
    """A parameter is multiplied by values that depend on the example.

    **Attributes:**

    - `eqn`: the equation of the product, which is linear in the parameter.
    - `operand`: the position of the parameter among the inputs of the equation.
    - `layout`: how the gradient factors.
    - `is_real`: whether the parameter is real, even if the other values are complex.
    """

    eqn: JaxprEqn
    operand: int
    layout: Layout
    is_real: bool

    @property
    def is_lookup(self) -> bool:
        return KINDS[self.eqn.primitive.name].is_lookup

    def factor(self, inputs: Sequence[Any], cotangent: Array) -> Rows | Picks:
        kind = KINDS[self.eqn.primitive.name]
        factor = kind.factor(self.eqn, self.operand, self.layout, inputs, cotangent)
        return factor.real if self.is_real else factor


class Uses(NamedTuple):
    """All uses of a parameter.

    **Attributes:**

    - `linear`: the uses whose gradient can be factored.
    - `others`: for every other equation that combines it with values that depend on the
        example, the size of the largest output.
    """

    linear: list[Use]
    others: list[int]

    @property
    def factors(self) -> bool:
        """Whether the whole gradient can be factored."""
        if not self.linear or self.others:
            return False
        # Look-ups determine the sides of the matrix; products can be transposed.
        lookups = [use.layout for use in self.linear if use.is_lookup]
        first = (lookups or [self.linear[0].layout])[0]
        alike = all(x.layout in (first, first.swapped) for x in self.linear)
        return alike and all(layout == first for layout in lookups)


def find_uses(closed: ClosedJaxpr, count: int, num_mapped: int) -> list[Uses]:
    """How the first `count` arguments of a function without calls are used.

    The `num_mapped` arguments after them depend on the example.
    """
    jaxpr = closed.jaxpr
    found = [Uses([], []) for _ in range(count)]
    mapped = set(jaxpr.invars[count : count + num_mapped])
    # The parameters that each variable depends on, and the variables that are a
    # parameter, possibly with other axes or in another dtype.
    made_of: dict[Any, set[int]] = {}
    views: dict[Any, tuple[int, Axes]] = {}
    for i, var in enumerate(jaxpr.invars[:count]):
        shape = shape_of(var)
        made_of[var] = {i}
        views[var] = i, tuple(None if n == 1 else k for k, n in enumerate(shape))
    equations, outputs = flattened(closed)
    for eqn, inputs in equations:
        operands = [k for k, var in enumerate(inputs) if var in made_of]
        indices = set().union(*(made_of[inputs[k]] for k in operands))
        if not any(var in mapped for var in inputs):
            if indices:
                made_of |= dict.fromkeys(eqn.outvars, indices)
            if len(inputs) == 1 and inputs[0] in views:
                index, axes = views[inputs[0]]
                moved = _moved(eqn, axes)
                if moved is not None:
                    views[eqn.outvars[0]] = index, moved
            continue
        mapped.update(eqn.outvars)
        use = None
        if len(operands) == 1 and inputs[operands[0]] in views:
            index, axes = views[inputs[operands[0]]]
            use = _use(eqn, operands[0], axes, jaxpr.invars[index])
            if use is not None:
                found[index].linear.append(use)
        if use is None:
            size = max([math.prod(shape_of(v)) for v in eqn.outvars], default=0)
            for i in indices:
                found[i].others.append(size)
    # The first output is the loss. If it does not depend on an example, it is not an
    # input of anything.
    for i in made_of.get(outputs[0], ()):
        found[i].others.append(1)
    return found


def _use(eqn: JaxprEqn, operand: int, axes: Axes, parameter: Any) -> Use | None:
    kind = KINDS.get(eqn.primitive.name)
    layout = kind and kind.layout(eqn, operand, axes, shape_of(parameter))
    if layout is None:
        return None
    is_real = not jnp.issubdtype(dtype_of(parameter), jnp.complexfloating)
    return Use(eqn, operand, layout, is_real)


def _moved(eqn: JaxprEqn, axes: Axes) -> Axes | None:
    """The axes of the output, if the equation only moves axes of a parameter."""
    name, params = eqn.primitive.name, eqn.params
    if name == "copy":
        return axes
    if name == "convert_element_type":
        # A conversion to real numbers drops a part, which has no gradient.
        kinds = [jnp.floating, jnp.complexfloating]
        dtypes = dtype_of(eqn.invars[0]), params["new_dtype"]
        old, new = ([jnp.issubdtype(x, kind) for kind in kinds] for x in dtypes)
        return axes if old == new or (old[0] and new[1]) else None
    if name == "transpose":
        return tuple(axes[i] for i in params["permutation"])
    if name in ("reshape", "squeeze", "broadcast_in_dim"):
        # Only axes of size 1 may be added or removed.
        old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
        if [n for n in old if n != 1] != [n for n in new if n != 1]:
            return None
        rest = iter(axis for axis in axes if axis is not None)
        return tuple(None if n == 1 else next(rest) for n in new)
    return None


#
# The gradient
#


def path_of(uses: Uses, size: int, ghost: bool) -> Path:
    if not ghost:
        return "per_example"
    if uses.factors:
        return "ghost"
    if not uses.linear and not uses.others:
        return "unused"
    return "direct" if size <= max(uses.others, default=0) else "per_example"


class Traced(NamedTuple):
    """A function `(params, mapped) -> (value, aux)` of lists of arrays.

    **Attributes:**

    - `fun`: the function.
    - `closed`: its program, inlined; `None` if it cannot be read.
    - `output`: its result, with a `jax.ShapeDtypeStruct` for every array.
    - `uses`, `paths`: how each of `params` is used.
    """

    fun: Callable[..., Any]
    closed: ClosedJaxpr | None
    output: Any
    uses: list[Uses]
    paths: list[Path]


def trace(
    fun: Callable[..., Any], params: list[Array], mapped: list[Array], ghost: bool
) -> Traced:
    closed, like, static = eqx.filter_make_jaxpr(fun)(params, mapped)
    output = eqx.combine(like, static)
    _check_output(output)

    def read() -> Traced:
        program = inlined(closed, [*params, *mapped])
        uses = find_uses(program, len(params), len(mapped))
        pairs = zip(uses, params, strict=True)
        paths: list[Path] = [path_of(x, p.size, ghost) for x, p in pairs]
        return Traced(fun, program, output, uses, paths)

    return attempt(read, lambda: _unread(fun, output, len(params)))


def _unread(fun: Callable[..., Any], output: Any, count: int) -> Traced:
    return Traced(fun, None, output, [Uses([], [])] * count, ["per_example"] * count)


def _check_output(output: Any) -> None:
    is_pair = isinstance(output, tuple) and len(output) == 2
    parts: tuple[Any, Any] = output if is_pair else (output, None)
    value, aux = parts
    is_scalar = is_pair and _is_struct(value) and value.shape == ()
    if not is_scalar or not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(
            "the function must return a floating-point scalar, or with `has_aux=True` a "
            f"pair with one, but returned {eqx.tree_pformat(value)}."
        )
    if any(is_state(x) for x in jtu.tree_leaves(aux, is_leaf=is_state)):
        problem = "the function returns an `eqx.nn.State`, which mixes examples."
        fix = "Use `eqx.nn.GroupNorm` instead of `eqx.nn.BatchNorm`, for example."
        raise InputError(f"{problem} {fix}")


def gradient(
    traced: Traced, params: list[Array], mapped: list[Array]
) -> tuple[Array, Any, list[list[AbstractFactor]]]:
    """The value, `aux`, and the gradient with respect to each parameter.

    A parameter with a factored gradient is a constant here. Instead, a zero is added to
    each result in which it is used: the gradient with respect to that zero is the
    cotangent.
    """
    plain = _unread(traced.fun, traced.output, len(params))
    of = lambda function: _gradient(function, params, mapped)
    return attempt(lambda: of(traced), lambda: of(plain))


def _gradient(traced: Traced, params: list[Array], mapped: list[Array]):
    paths = traced.paths
    pairs = zip(traced.uses, paths, strict=True)
    tapped = [use for uses, path in pairs if path == "ghost" for use in uses.linear]
    number = {id(use.eqn): i for i, use in enumerate(tapped)}
    outputs: list[Any] = [use.eqn.outvars[0].aval for use in tapped]
    zeros = [vary(jnp.zeros(x.shape, x.dtype), varying_axes(x)) for x in outputs]
    taps = dict(enumerate(zeros))
    whole = {i: p for i, p in enumerate(params) if paths[i] not in ("ghost", "unused")}

    def forward(taps: dict[int, Array], whole: dict[int, Array]) -> tuple[Array, Any]:
        filled = [whole.get(i, p) for i, p in enumerate(params)]
        if traced.closed is None:
            result = eqx.filter(traced.fun(filled, mapped), eqx.is_array)
            value, *aux = jtu.tree_leaves(result)
            return value, (aux, {})
        outputs, inputs = run(traced.closed, taps, [*filled, *mapped])
        value, *aux = map(as_array, outputs, traced.closed.out_avals)
        return value, (aux, inputs)

    def run(
        closed: ClosedJaxpr | Jaxpr, taps: dict[int, Array], args: list[Any]
    ) -> tuple[list[Any], dict[int, list[Any]]]:
        """The outputs, and the values that multiply the tapped parameters."""
        inputs = {}

        def tap(eqn: JaxprEqn, values: list[Any]) -> list[Array] | None:
            inner = rematerialised(eqn)
            if inner is not None:
                inside = [number.get(id(eqn)) for eqn, _ in flattened(inner)[0]]
                mine = {i: taps[i] for i in inside if i is not None}
                again = checkpointed(eqn, functools.partial(run, inner))
                outputs, found = again(mine, values)
                inputs.update(found)
                return outputs
            if id(eqn) not in number:
                return None
            i = number[id(eqn)]
            k = tapped[i].operand
            inputs[i] = [*values[:k], None, *values[k + 1 :]]
            (out,) = bind(eqn, values)
            return [out + taps[i]]

        return evaluate(closed, args, tap), inputs

    value, pullback, (aux, inputs) = jax.vjp(forward, taps, whole, has_aux=True)
    cotangents, gradients = pullback(jnp.ones_like(value))
    factors: list[list[AbstractFactor]] = [
        [Whole(gradients[i])] if i in whole else [] for i in range(len(params))
    ]
    for i, uses in enumerate(traced.uses):
        if paths[i] == "ghost":
            places = [number[id(use.eqn)] for use in uses.linear]
            found = [tapped[k].factor(inputs[k], cotangents[k]) for k in places]
            factors[i] = combine(found)
    arrays, static = eqx.partition(traced.output, _is_struct)
    arrays = jtu.tree_unflatten(jtu.tree_structure(arrays), [value, *aux])
    return value, eqx.combine(arrays, static)[1], factors


def _is_struct(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)
