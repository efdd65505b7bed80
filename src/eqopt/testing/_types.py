"""Laws about structures, shapes and dtypes, and about what is not trained."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._trees.leaves import parameters
from ._difference import first_not_finite, of_types, of_values
from ._law import Breach, expect, law
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
