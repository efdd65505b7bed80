"""Laws about structures, dtypes and values, and about what is not trained."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._core import apply_updates
from .._trees.leaves import parameters
from .._types import PyTree
from ._law import (
    Breach,
    expect,
    expect_same,
    first_not_finite,
    law,
    of_types,
    of_values,
)
from ._trial import Trial, both, given, grads_of, traces


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
    if again:
        raise Breach(
            f"the step was traced {again} more times for states of one type, expected "
            "no trace after the first step",
            "use no Python objects that are made in each step, such as functions, in "
            "the state",
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
    if is_plain and not _has_functions(trial.extra):
        trial = Trial(trial.opt, (trial.model, _Other()), trial.extra)
    others = lambda model: eqx.filter(model, eqx.is_inexact_array, inverse=True)
    for i, now in enumerate(trial.trail[1:3]):
        difference = of_values(others(now.params), others(trial.model), exactly=True)
        expect(difference, f"the model after step {i}")
        grads = grads_of(trial.model, i)
        expect(of_types(now.updated[0], grads), f"the update of step {i}")


def _has_functions(extra: Any) -> bool:
    return callable(extra) or any(map(callable, jax.tree.leaves(extra)))


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
    if of_values(frozen(params), frozen(trial.model), exactly=True):
        path = jtu.tree_leaves_with_path(grads)[-1][0]
        raise Breach(
            f"the model has another value at `{jtu.keystr(path)}` after a step whose "
            f"gradient there is `None`, expected the old value",
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
    is_parameter = lambda x: (
        eqx.is_inexact_array(x) and np.issubdtype(x.dtype, np.inexact)
    )
    of_numpy = lambda tree: jax.tree.map(
        lambda x: np.array(x) if is_parameter(x) else x, tree
    )
    grads = grads_of(trial.model, 0)

    def run(grads, params):
        state, extra = trial.opt.init(params), given(trial.extra, params)
        updated = trial.opt.update(grads, state, params, **extra)
        new, new_state = trial.opt.step(grads, state, params, **extra)
        evaluated = trial.opt.eval_params(new_state, new)
        return state, updated, (new, new_state), evaluated

    # As constants: arrays of NumPy that go into a trace are arrays of JAX inside.
    updates, model = of_numpy(grads), of_numpy(trial.model)
    found, expected = (
        eqx.filter_eval_shape(lambda args=args: run(*args))
        for args in ((updates, model), (grads, trial.model))
    )
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
        if isinstance(x, np.ndarray) and is_parameter(x):
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
