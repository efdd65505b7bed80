"""The laws: about types and values, about training, and about JAX's transformations."""

import dataclasses
import functools
import io
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._core import AbstractTransformation, apply_updates
from .._trees.leaves import is_leaf, parameters
from .._types import PyTree
from ..tree._like import is_typed_key, unwrap_random_key_data
from ..tree._slots import slots_of
from . import _trial
from ._law import (
    Breach,
    expect,
    expect_same,
    expect_that,
    first_not_finite,
    law,
    of_types,
    of_values,
)
from ._trial import Trial, both, compiled, copied, given, grads_of, member, traces


#
# Structures, dtypes and values, and what is not trained
#


_ASTYPE = "convert each result with `.astype` to the dtype of the leaf that it replaces"


@law(_ASTYPE)
def updates(trial: Trial) -> None:
    """Updates have the structure, shapes and dtypes of the gradients, and `step` keeps
    the structure, shapes and dtypes of the model."""
    for i, now in enumerate(trial.trail[1:]):
        grads = grads_of(trial.model, i)
        expect(of_types(now.updated[0], grads), f"the update of step {i}")
        expect(of_types(now.params, trial.model), f"the model after step {i}")


@law(
    "keep only arrays of fixed types in the state, such as a count "
    "`jnp.zeros((), jnp.int32)` that `eqopt.numerics.safe_increment` increments"
)
def state(trial: Trial) -> None:
    """The state keeps its structure, shapes, dtypes and weak types from `init` on, so
    that a second step compiles nothing."""
    first, *later = trial.trail
    for i, now in enumerate(later):
        for name, found in (("update", now.updated[1]), ("step", now.state)):
            what = f"the state that `{name}` returned in step {i}"
            difference = of_types(found, first.state)
            expect(difference, what, "as in the state of `init`")
    again = later[-1].traces - later[0].traces
    expect_that(
        again == 0,
        f"the step was traced {again} more times for states of one type, expected no "
        "trace after the first step",
        "use no Python objects that are made in each step, such as functions, in the "
        "state",
    )


@law(
    "use only the shapes and dtypes of the parameters to decide what the state is made "
    "of, and no `float(x)` or `if x` of their values"
)
def abstract_init(trial: Trial) -> None:
    """`init` works under `eqx.filter_eval_shape`, and gives the types of the state."""
    shapes = eqx.filter_eval_shape(trial.opt.init, trial.model)
    strong = lambda tree: jax.tree.map(_without_weak_type, tree)
    difference = of_types(strong(shapes), strong(trial.state))
    expect(difference, "the abstract state", "as in the state of `init`")


def _without_weak_type(x: Any) -> Any:
    is_array = hasattr(x, "dtype")
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array else x


@law("put averages into the model with `eqx.combine`, in its dtypes")
def eval_params(trial: Trial) -> None:
    """`eval_params` returns a model of the same structure, shapes and dtypes."""
    now = trial.trail[1]
    evaluate = lambda: trial.opt.eval_params(now.state, now.params)
    difference = of_types(eqx.filter_eval_shape(evaluate), now.params)
    expect(difference, "the model that `eval_params` returned", "as in `params`")


@law("take `**extra` in `update` and `step`, and pass it on to what they call")
def extra_arguments(trial: Trial) -> None:
    """`update` and `step` accept extra arguments for other parts of a chain."""
    extra = {"value": jnp.ones(()), **given(trial.extra, trial.model)}
    args = grads_of(trial.model, 0), trial.state, trial.model
    for call in (trial.opt.update, trial.opt.step):
        eqx.filter_eval_shape(functools.partial(call, **extra), *args)


class _Other(eqx.Module):
    """What a model has besides parameters."""

    function: Any = jnp.tanh
    flag: bool = True
    nothing: None = None
    count: Any = eqx.field(default_factory=lambda: jnp.arange(2))
    name: str = eqx.field(default="name", static=True)


@law(
    "make the state with `eqopt.tree.zeros_like`, map over the updates, which are "
    "`None` where nothing is trained, and put results into the model with "
    "`eqopt.apply_updates`; if a hyperparameter is a tree like the model, check the law "
    "with a model that has functions or integers itself"
)
def untrained(trial: Trial) -> None:
    """Functions, integers, `None` and static fields of a model stay as they are."""
    is_plain = all(map(eqx.is_inexact_array, jax.tree.leaves(trial.model)))
    if is_plain and not any(map(callable, jax.tree.leaves(trial.extra))):
        trial = Trial(trial.opt, (trial.model, _Other()), trial.extra)
    others = lambda model: eqx.filter(model, eqx.is_inexact_array, inverse=True)
    for i, now in enumerate(trial.trail[1:3]):
        difference = of_values(others(now.params), others(trial.model), exactly=True)
        expect(difference, f"the model after step {i}")
        grads = grads_of(trial.model, i)
        expect(of_types(now.updated[0], grads), f"the update of step {i}")


@law(
    "treat `None` among the updates as a leaf that stays unchanged, as "
    "`eqopt.AbstractLeafwise` does: `jax.tree.map(..., is_leaf=lambda x: x is None)`"
)
def partly_trained(trial: Trial) -> None:
    """A parameter whose gradient is `None` stays unchanged, and the step works."""
    grads = grads_of(trial.model, 0)
    leaves, treedef = jax.tree.flatten(grads)
    if len(leaves) < 2:
        return
    without = treedef.unflatten([*leaves[:-1], None])
    (updated, _), (params, _) = trial.both(without, trial.state, trial.model)
    fix = "do not decay or move it: an update is `None` where the gradient is `None`"
    expect(of_types(updated, without), "without one gradient, the update", fix=fix)
    frozen = lambda tree: jax.tree.leaves(parameters(tree))[-1]
    path = jtu.tree_leaves_with_path(grads)[-1][0]
    expect_that(
        of_values(frozen(params), frozen(trial.model), exactly=True) is None,
        f"the model has another value at `{jtu.keystr(path)}` after a step whose "
        "gradient there is `None`, expected the old value",
        fix,
    )


@law(
    "compute in float32 (`eqopt.numerics.at_least_float32`), and store with `.astype` in "
    "the dtype of the slot"
)
def half_precision(trial: Trial) -> None:
    """Half-precision parameters stay half-precision, also with float32 gradients, and an
    ordinary gradient gives a finite step; float32 parameters stay float32."""
    _types_stay(trial, jnp.bfloat16)
    for grad_dtype in (jnp.bfloat16, jnp.float32):
        _types_stay(trial.cast(jnp.bfloat16), grad_dtype)
    half = trial.cast(jnp.float16)
    params, state = half.model, half.state
    for i in range(2):
        grads = grads_of(params, i)
        result = half.both(grads, state, params)
        (updates, _), (params, state) = result
        expect(first_not_finite(updates), f"in float16, the update of step {i}")
        _are_like(result, grads, half, "in float16")


def _types_stay(trial: Trial, grad_dtype: Any) -> None:
    """Traces one step."""
    arrays = jax.tree.leaves(parameters(trial.model))
    if any(map(jnp.iscomplexobj, arrays)):  # a real gradient is a mistake
        return
    grads = grads_of(trial.model, 0, grad_dtype)
    call = lambda *args: both(trial.opt, trial.extra, *args)
    counted = traces["both"]
    result = eqx.filter_eval_shape(call, grads, trial.state, trial.model)
    traces["both"] = counted
    dtypes = ", ".join(sorted({str(x.dtype) for x in arrays}))
    when = f"with {dtypes} parameters and {jnp.dtype(grad_dtype)} gradients"
    _are_like(result, grads, trial, when)


def _are_like(result: Any, grads: PyTree, trial: Trial, when: str) -> None:
    (updates, in_update), (params, in_step) = result
    fix = f"{_ASTYPE}, and decide in `init` about the dtype of each slot"
    expect(of_types(updates, grads), f"{when}, the update", fix=fix)
    expect(of_types(params, trial.model), f"{when}, the model", fix=fix)
    for state in (in_update, in_step):
        difference = of_types(state, trial.state)
        expect(difference, f"{when}, the state", "as in the state of `init`", fix)


@law("convert what comes in with `jnp.asarray`")
def numpy_arrays(trial: Trial) -> None:
    """Parameters and gradients may be arrays of NumPy: results have the same types, and
    `init` and the step neither keep nor change these arrays."""
    # An array of NumPy with a dtype that NumPy lacks, such as bfloat16, is no parameter.
    fits = lambda x: eqx.is_inexact_array(x) and np.issubdtype(x.dtype, np.inexact)
    convert = lambda x: np.array(x) if fits(x) else x
    of_numpy = lambda tree: jax.tree.map(convert, tree)
    grads = grads_of(trial.model, 0)

    def run(grads, params):
        state, extra = trial.opt.init(params), given(trial.extra, params)
        updated = trial.opt.update(grads, state, params, **extra)
        new, new_state = trial.opt.step(grads, state, params, **extra)
        evaluated = trial.opt.eval_params(new_state, new)
        return state, updated, (new, new_state), evaluated

    # As constants: arrays of NumPy that go into a trace are arrays of JAX inside.
    updates, model = of_numpy(grads), of_numpy(trial.model)
    abstract = lambda *args: eqx.filter_eval_shape(lambda: run(*args))
    found, expected = abstract(updates, model), abstract(grads, trial.model)
    names = "init", "update", "step", "eval_params"
    for name, one, other in zip(names, found, expected, strict=True):
        what = f"with arrays of NumPy, what `{name}` returned"
        expect(of_types(one, other), what, "as with arrays of JAX")
    expect(
        of_values((updates, model), (grads, trial.model), exactly=True),
        "after a step, an array of NumPy among gradients and parameters",
        fix="do not write into arrays that come in: use `g = g * x` and not `g *= x`",
    )
    state = trial.opt.init(model)
    for x in jax.tree.leaves(model):
        if isinstance(x, np.ndarray) and fits(x):
            x.fill(np.nan)
    expect(
        of_values(state, trial.state, exactly=True),
        "after writing over the arrays of NumPy that `init` got, the state",
        fix="copy parameters into the state with `jnp.array`, which copies",
    )


@law("implement `update`, and let `step` follow from it: omit your own `step`")
def step(trial: Trial) -> None:
    """`step` equals `update` followed by `eqopt.apply_updates`, up to rounding."""
    for i, (before, now) in enumerate(zip(trial.trail, trial.trail[1:], strict=False)):
        updated, state = now.updated
        expected = apply_updates(before.params, updated)
        when, base = f"after `step` {i}, the", before.params
        expect_same(when, now[:2], (expected, state), base, "as after `update`")


@law(
    "divide by `sqrt(x) + eps` with an `eps` that is not zero in the dtype, or choose "
    "with `jnp.where` instead of multiplying by zero"
)
def zero_gradients(trial: Trial) -> None:
    """A gradient of zero gives a finite step and no NaN, also in float16."""
    for name, asked in (("", trial), ("in float16, ", trial.cast(jnp.float16))):
        params, state = asked.model, asked.state
        zeros = jax.tree.map(jnp.zeros_like, grads_of(params, 0))
        for i in range(3):
            (updates, _), (params, state) = asked.both(zeros, state, params)
            _finite(f"{name}in step {i} with gradients of zero", updates, params, state)


def _finite(when: str, updates: PyTree, params: PyTree, state: PyTree) -> None:
    expect(first_not_finite(updates), f"{when}, the update")
    expect(first_not_finite(params), f"{when}, the model")
    # What is the least so far is infinite as long as there is nothing.
    expect(first_not_finite(state, only_nan=True), f"{when}, the state")


@law(
    "scale a gradient before you square it (`eqopt.numerics.safe_norm` does), and do not "
    "divide one infinity by another"
)
def huge_and_tiny_gradients(trial: Trial) -> None:
    """A finite gradient gives a finite step and no NaN, also if its square overflows or
    underflows."""
    for size in ("huge", "tiny"):
        for pattern in (_ALL_FIRST, _ONE_LATER):
            params, state = trial.model, trial.state
            for i, change in enumerate(pattern):
                grads = change(grads_of(params, i), size)
                (updates, in_update), (params, state) = trial.both(grads, state, params)
                when = f"in step {i} with {size} gradients"
                _finite(when, updates, params, (in_update, state))


def _usual(grads: PyTree, size: str) -> PyTree:
    return grads


def _all(grads: PyTree, size: str) -> PyTree:
    return jax.tree.map(lambda g: _of_size(g, size), grads)


def _one(grads: PyTree, size: str) -> PyTree:
    """One number of the largest leaf."""
    leaves, treedef = jax.tree.flatten(grads)
    i = max(range(len(leaves)), key=lambda i: leaves[i].size)
    numbers = np.array(leaves[i])
    changed = np.asarray(_of_size(leaves[i], size))
    numbers.reshape(-1)[-1] = changed.reshape(-1)[-1]
    leaves[i] = jnp.asarray(numbers)
    return treedef.unflatten(leaves)


_ALL_FIRST, _ONE_LATER = (_all, _all, _usual), (_usual, _one, _usual)


def _of_size(g: Any, size: str) -> Any:
    largest = float(jnp.finfo(g.dtype).max)
    huge = 1e25 if largest > 1e30 else 16 * largest**0.5
    value = huge if size == "huge" else 1 / huge
    return jnp.asarray(np.where(np.real(g) < 0, -value, value), g.dtype)


@law(
    "let `update` and `step` work without `jax.jit`, too: do not decide with Python's "
    "`if` what depends on a count, and do not count in Python"
)
def jit(trial: Trial) -> None:
    """A step gives the same with and without `eqx.filter_jit`, up to rounding."""
    params, state = _with_own_containers((trial.model, trial.state))
    for i, now in enumerate(trial.trail[1:3]):
        params, state = trial.step(grads_of(params, i), state, params)
        when, found = f"without `eqx.filter_jit`, after step {i}, the", (params, state)
        expect_same(when, found, now[:2], trial.model, "as when compiled")


@law(
    "do not write into dicts or lists that come in: return new ones, such as "
    "`{**state, 'count': count}`"
)
def inputs(trial: Trial) -> None:
    """`init`, `update` and `step` do not change what they are given."""
    grads = grads_of(trial.model, 0)
    originals = trial.model, trial.state, grads
    for name in ("init", "update", "step"):
        params, state, updates = map(_with_own_containers, originals)
        if name == "init":
            trial.opt.init(params)
        else:
            getattr(trial, name)(updates, state, params)
        given, names = (params, state, updates), ("model", "state", "gradients")
        for what, found, expected in zip(names, given, originals, strict=True):
            difference = of_values(found, expected, exactly=True)
            expect(difference, f"after `{name}`, the {what} that it got")


def _with_own_containers(tree: PyTree) -> PyTree:
    """The same arrays in other dicts and lists."""
    return jax.tree.map(lambda x: x, tree)


#
# Training: all that is kept or set has an effect
#


_MANY_STEPS = 8
_CURVATURE = 0.01  # so flat that learning rates below 200 do not overshoot


@law("return updates that are added to the parameters: `-learning_rate * u`")
def descent(trial: Trial) -> None:
    """Anything with a learning rate lowers a convex quadratic, at least in some step."""
    rates = [getattr(x, "learning_rate", None) for _, x in owners(trial.opt)]
    if all(rate is None for rate in rates):
        return
    trial = trial.cast(jnp.float32)
    slope, start = grads_of(trial.model, 0), parameters(trial.model)
    params, state = trial.model, trial.state
    call = compiled(_trial.step)
    for _ in range(_MANY_STEPS):
        moved = jax.tree.map(lambda p, p0: p - p0, parameters(params), start)
        grads = jax.tree.map(lambda d, x: d + _CURVATURE * x, slope, moved)
        params, state = call(trial.opt, trial.extra, grads, state, params)
        if _rise(slope, start, parameters(params)) < 0:
            return
    raise Breach(
        f"none of {_MANY_STEPS} steps lowered a convex quadratic, expected one"
    )


def _rise(slope: PyTree, start: PyTree, end: PyTree) -> float:
    """How much larger the quadratic is at `end`, from the distance that was moved."""
    rise = 0.0
    for d, p, q in zip(*map(jax.tree.leaves, (slope, start, end)), strict=True):
        wide = lambda x: np.asarray(x, np.result_type(x.dtype, np.float64))
        d, p, q = wide(d), wide(p), wide(q)
        rise += np.sum(np.real(np.conj(d) * (q - p)) + _CURVATURE / 2 * abs(q - p) ** 2)
    return float(rise)


_LARGE = 1e3
_NOTHING = f"changed nothing in {_MANY_STEPS} steps, expected other parameters"


@law("remove what no step reads, or skip this law if it has another purpose")
def effects(trial: Trial) -> None:
    """Each slot of the state, a tree like the parameters, and each hyperparameter that is
    a float, changes some later step, or the parameters that `eval_params` returns."""
    values = numbers(trial.opt)
    opt = with_numbers(trial.opt, values)
    start = compiled(_init)
    moments = [(trial.model, start(opt, trial.model))]
    for i in range(_MANY_STEPS):
        moments.append(_step(trial, opt, i, *moments[-1]))
    expected = compiled(_outcome)(opt, *moments[-1])

    def has_effect(opt, i, params, state):
        for j in range(i, _MANY_STEPS):
            params, state = _step(trial, opt, j, params, state)
        found = compiled(_outcome)(opt, params, state)
        return of_values(found, expected, exactly=True) is not None

    for path in _slots(moments[0][1], trial.model):
        is_read = any(
            has_effect(opt, i, params, _disturbed(state, path, factor))
            for i, (params, state) in enumerate(moments[1:4], start=1)
            for factor in (_LARGE, None)
        )
        what = f"another value of the state at `{jtu.keystr(path)}`"
        expect_that(is_read, f"{what} {_NOTHING}")
    for name, value in values.items():
        # A small number, such as `eps`, and a bound that is not reached, need more. (What
        # is traced may be out of its range.)
        others = (0.9 * value, value + 0.5, value + _LARGE, value - _LARGE)
        opts = [with_numbers(opt, {**values, name: x}) for x in others]
        model = trial.model
        is_read = any(has_effect(x, 0, model, start(x, model)) for x in opts)
        expect_that(is_read, f"another value of `{name}` {_NOTHING}")


def _init(opt: Any, model: PyTree) -> PyTree:
    return opt.init(model)


def _step(trial: Trial, opt: Any, i: int, params: PyTree, state: PyTree) -> Any:
    grads = grads_of(params, i)
    return compiled(_trial.step)(opt, trial.extra, grads, state, params)


def _outcome(opt: Any, params: PyTree, state: PyTree) -> PyTree:
    return params, opt.eval_params(state, params)


def _slots(state: PyTree, model: PyTree) -> list[tuple]:
    """The key paths of the trees in the state that are like the parameters."""
    shapes = [np.shape(x) for x in jtu.tree_leaves(parameters(model), is_leaf=is_leaf)]
    return [
        slot.path
        for slot in slots_of(model, state)
        if any(map(eqx.is_inexact_array, slot.parts or ()))
        and [*map(np.shape, slot.parts or ())] == shapes
    ]


def _disturbed(state: PyTree, slot: tuple, factor: float | None) -> PyTree:
    """Adds random numbers of this size to a slot, or makes it zero for `None`.

    They are positive, for second moments.
    """

    def disturb(path, x):
        if path[: len(slot)] != slot or not eqx.is_inexact_array(x):
            return x
        if factor is None:
            return jnp.zeros_like(x)
        return x + factor * jnp.abs(grads_of(x, 0)).astype(x.dtype)

    return jtu.tree_map_with_path(disturb, state)


#
# Hyperparameters, which are data: traced, mapped over, differentiated
#


def owners(opt: Any) -> list[tuple[tuple, AbstractTransformation]]:
    """The transformations in `opt`, with their key paths."""
    found: list[tuple[tuple, AbstractTransformation]] = []

    def visit(path, node):
        if isinstance(node, AbstractTransformation):
            found.append((path, node))
        children = jtu.tree_leaves_with_path(node, is_leaf=lambda x: x is not node)
        for key, child in children:
            if key:
                visit(path + key, child)

    visit((), opt)
    return found


def _is_number(x: Any) -> bool:
    is_array = eqx.is_inexact_array(x) and not jnp.iscomplexobj(x)
    return type(x) is float or (is_array and x.ndim == 0)


def numbers(opt: Any) -> dict[str, Array]:
    """The hyperparameters of `opt` by key path, as arrays: its leaves that are floats.

    An integer may determine the program, such as the length of a history.
    """
    dtype = jnp.result_type(float)
    return {
        jtu.keystr(path): jnp.asarray(leaf, getattr(leaf, "dtype", dtype))
        for path, leaf in jtu.tree_leaves_with_path(opt)
        if _is_number(leaf)
    }


def with_numbers(opt: Any, values: dict[str, Any]) -> Any:
    leaves, treedef = jtu.tree_flatten_with_path(opt)
    return treedef.unflatten(values.get(jtu.keystr(p), leaf) for p, leaf in leaves)


_DATA = (
    "make it a field `float | Array` without `static=True` or a converter to `float`, "
    "and use it only in `jax.numpy`"
)


@law(_DATA)
def ordinary_fields(trial: Trial) -> None:
    """A hyperparameter that is a float is an ordinary field of its class, and not static,
    unless it determines shapes."""
    for path, owner in owners(trial.opt):
        for field in dataclasses.fields(owner):
            value = getattr(owner, field.name)
            expect_that(
                type(value) is not float or not field.metadata.get("static"),
                f"the static field `{jtu.keystr(path)}.{field.name}` is {value}, "
                "expected an ordinary field",
                f"{_DATA}, or skip this law if the number determines shapes",
            )


@law(_DATA)
def hyperparameters(trial: Trial) -> None:
    """Numeric hyperparameters are data: a number and an array give the same, and a new
    value of an array compiles nothing."""
    values = numbers(trial.opt)
    if not values:
        return
    call, opt = compiled(_trial.step), with_numbers(trial.opt, values)
    params, state = trial.model, opt.init(trial.model)
    for i, now in enumerate(trial.trail[1:3]):
        params, state = call(opt, trial.extra, grads_of(params, i), state, params)
        when, found = "with arrays as hyperparameters, the", (params, state)
        expect_same(when, found, now[:2], trial.model, "as with numbers")
    counted, grads = traces["step"], grads_of(params, 0)
    opt = with_numbers(trial.opt, {name: 0.9 * x for name, x in values.items()})
    call(opt, trial.extra, grads, state, params)
    what = f"new values at `{'`, `'.join(values)}`"
    expect_that(
        traces["step"] == counted, f"{what} were traced again, expected no trace"
    )
    weakly = {name: jnp.asarray(float(x)) for name, x in values.items()}
    weak = with_numbers(trial.opt, weakly)
    step = lambda *args: _trial.step(weak, trial.extra, *args)
    found = eqx.filter_eval_shape(step, grads, state, params)
    traces["step"] = counted
    what = "with weakly typed arrays as hyperparameters (`jnp.asarray(0.5)`), the"
    fix = "convert results with `.astype`, which makes a weak type strong"
    expect(of_types(found[0], params), f"{what} model", fix=fix)
    expect(of_types(found[1], state), f"{what} state", fix=fix)


@law(_DATA)
def populations(trial: Trial) -> None:
    """`vmap` over hyperparameters trains each member as if it were alone."""
    values = numbers(trial.opt)
    if not values:
        return
    many = {name: jnp.stack([x, 0.9 * x]) for name, x in values.items()}
    grads = grads_of(trial.model, 0)

    def one_step(values, grads, model):
        opt = with_numbers(trial.opt, values)
        return opt.step(grads, opt.init(model), model, **given(trial.extra, model))

    over = dict.fromkeys(values, 0)
    mapped = _trial.compiler(eqx.filter_vmap(one_step, in_axes=(over, None, None)))
    found = mapped(many, grads, trial.model)
    alone = _trial.compiler(one_step)
    for i in range(2):
        expected = alone({name: x[i] for name, x in many.items()}, grads, trial.model)
        when = f"in a `vmap` over hyperparameters, member {i} of the"
        expect_same(when, member(found, i), expected, trial.model, "as alone")


def slopes_of(trial: Trial) -> Any:
    """The derivatives, as a function of hyperparameters and the size of gradients."""
    # Compiled inside, so that JAX differentiates what has been traced.
    step = eqx.filter_jit(lambda opt, *args: opt.step(*args[:-1], **args[-1]))

    def loss(inputs, model, grads):
        values, scale = inputs
        opt = with_numbers(trial.opt, values)
        state = opt.init(model)
        for g in grads:
            g = jax.tree.map(lambda g: g * scale.astype(g.dtype), g)
            extra = given(trial.extra, model)
            model, state = step(opt, g, state, model, extra)
        arrays = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        return sum(jnp.sum(jnp.abs(x) ** 2).astype(scale.dtype) for x in arrays)

    slopes_at = _trial.compiler(eqx.filter_grad(loss))
    grads = [grads_of(trial.model, i) for i in range(2)]
    return lambda inputs: slopes_at(inputs, trial.model, grads)


@law(
    "take roots and norms that may be zero with `eqopt.numerics.safe_sqrt` and "
    "`eqopt.numerics.safe_norm`, and loop with `lax.scan` instead of `lax.while_loop`"
)
def derivatives(trial: Trial) -> None:
    """Derivatives through steps are finite, with respect to hyperparameters and the size
    of the gradients, also at gradients of zero."""
    arrays = jax.tree.leaves(parameters(trial.model))
    if any(jnp.finfo(x.dtype).bits < 32 for x in arrays):
        trial = trial.cast(jnp.float32)  # an ordinary slope overflows in float16
    values = numbers(trial.opt)
    slopes_at = slopes_of(trial)
    for scale in (1.0, 0.0):
        inputs = values, jnp.asarray(scale, jnp.result_type(float))
        slopes = slopes_at(inputs)
        what = "at gradients of zero, " if scale == 0 else ""
        named = {**slopes[0], "the size of the gradients": slopes[1]}
        for name, slope in named.items():
            expect_that(
                bool(np.isfinite(np.asarray(slope))),
                f"{what}the derivative with respect to `{name}` is {slope}, expected a "
                "finite number",
            )
        expect(of_types(slopes, inputs), f"{what}the tree of derivatives")


#
# JAX's transformations, buffers and files
#


_TRACED = (
    "decide with `lax.cond` or `jnp.where` instead of Python's `if`, and convert nothing "
    "with `float` or `np.asarray`"
)


@law(_TRACED)
def vmap(trial: Trial) -> None:
    """A `vmap` over models trains each of them as if it were alone."""
    models = trial.model, _halved(trial.model)
    params = jax.tree.map(_stacked, *models)
    state = _trial.compiler(eqx.filter_vmap(trial.opt.init))(params)
    mapped = _trial.compiler(eqx.filter_vmap(trial.step))
    for i in range(2):
        grads = grads_of(trial.model, i)
        both = jax.tree.map(_stacked, grads, grads)
        params, state = mapped(both, state, params)
    for i, model in enumerate(models):
        alone, of_alone = model, trial.opt.init(model)
        for j in range(2):
            grads = grads_of(trial.model, j)
            alone, of_alone = trial.both(grads, of_alone, alone)[1]
        when = f"in a `vmap` over models, number {i} of the"
        found, expected = member((params, state), i), (alone, of_alone)
        expect_same(when, found, expected, model, "as alone")


def _halved(model: PyTree) -> PyTree:
    halve = lambda x: x * jnp.asarray(0.5, x.dtype) if eqx.is_inexact_array(x) else x
    return jax.tree.map(halve, model)


def _stacked(x: Any, y: Any) -> Any:
    return jnp.stack([x, y]) if eqx.is_array(x) else x


@law(_TRACED)
def scan(trial: Trial) -> None:
    """Steps in a `lax.scan` give the same as one after the other."""
    grads = [grads_of(trial.model, i) for i in range(2)]
    arrays, others = eqx.partition((trial.model, trial.state), eqx.is_array)

    def body(carry, grads):
        params, state = eqx.combine(carry, others)
        return eqx.filter(trial.step(grads, state, params), eqx.is_array), None

    run = _trial.compiler(lambda carry, grads: jax.lax.scan(body, carry, grads)[0])
    found = run(arrays, jax.tree.map(_stacked, *grads))
    expected = eqx.filter(trial.trail[2][:2], eqx.is_array)
    model = eqx.filter(trial.model, eqx.is_array)
    expect_same("in a `lax.scan`, the", found, expected, model, "as without it")


@law("copy what the state keeps of the parameters with `jnp.copy` in `init`")
def donation(trial: Trial) -> None:
    """The model and the state can be donated from the first step on: no two of their
    arrays share a buffer."""
    params = copied(trial.model)
    state = trial.opt.init(params)
    seen = {}
    for path, x in jtu.tree_leaves_with_path((params, state)):
        if not isinstance(x, jax.Array) or jnp.issubdtype(x.dtype, jax.dtypes.extended):
            continue
        root = ("the model", "the state")[path[0].idx]
        where = f"{root} at `{jtu.keystr(path[1:]) or '(the root)'}`"
        other = seen.setdefault(_buffer(x), where)
        found = f"after `init`, {where} shares its buffer with {other}"
        expect_that(other == where, f"{found}, expected a buffer for each array")
    stepped = lambda grads, params, state: trial.step(grads, state, params)
    step = _trial.donating(stepped)
    for i, now in enumerate(trial.trail[1:3]):
        params, state = step(grads_of(trial.model, i), params, state)
        when, found = "with all buffers donated, the", (params, state)
        expect_same(when, found, now[:2], trial.model, "as without donation")


def _buffer(x: jax.Array) -> Any:
    """What two arrays have in common that share memory."""
    is_whole = x.is_fully_addressable and len(x.sharding.device_set) == 1
    return x.unsafe_buffer_pointer() if is_whole and x.size else id(x)


@law(
    "keep all that changes from step to step, and all that `init` computes from the "
    "parameters, in arrays of the state"
)
def resume(trial: Trial) -> None:
    """Training continues bit for bit after the model and the state have been saved, and
    loaded into a model and a state with other numbers."""
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, unwrap_random_key_data(trial.trail[2][:2]))
    file.seek(0)
    other = _halved(trial.model)
    like = other, trial.opt.init(other)
    loaded = eqx.tree_deserialise_leaves(file, unwrap_random_key_data(like))
    params, state = jax.tree.map(_like_key, loaded, like)
    for i in range(2, _trial.STEPS):
        _, (params, state) = trial.both(grads_of(trial.model, i), state, params)
        now, after = trial.trail[i + 1], f"after a resumed step {i}, the"
        expect(of_values(params, now.params, exactly=True), f"{after} model")
        expect(of_values(state, now.state, exactly=True), f"{after} state")


def _like_key(x: Any, like: Any) -> Any:
    """`x`, or the key with these bits: Equinox does not save keys."""
    if not is_typed_key(like):
        return x
    return jax.random.wrap_key_data(x, impl=jax.random.key_impl(like))


@law("make `init` work for models of other shapes")
def other_model(trial: Trial) -> None:
    """The state of another model is an error, and not a silent wrong result."""
    for name, other in (
        ("other shapes", jax.tree.map(_reshaped, trial.model)),
        ("one parameter less", _without_last(trial.model)),
    ):
        if not jax.tree.leaves(parameters(other)):
            continue
        state = trial.opt.init(other)
        difference = of_types(state, trial.state)
        if difference is None:
            continue
        for method in (trial.update, trial.step):
            try:
                args = grads_of(trial.model, 0), state, trial.model
                eqx.filter_eval_shape(method, *args)
            except Exception:
                continue
            raise Breach(
                f"`{method.__name__}` accepted the state of a model with {name}, which "
                f"{difference}",
                "map over the trees with an equation (`eqopt.AbstractLeafwise`), which "
                "compares their shapes, and annotate the slots that it only reads: "
                "`Float[Array, '*leaf']`",
            )


def _reshaped(x: Any) -> Any:
    """A slice, because its shape broadcasts to the right one, which hides the mistake."""
    if not eqx.is_inexact_array(x) or x.ndim == 0:
        return x
    return x[:1] if x.shape[0] > 1 else jnp.concatenate([x, x])


def _without_last(model: PyTree) -> PyTree:
    leaves, treedef = jax.tree.flatten(model)
    last = max(i for i, x in enumerate(leaves) if eqx.is_inexact_array(x))
    return treedef.unflatten([*leaves[:last], None, *leaves[last + 1 :]])
