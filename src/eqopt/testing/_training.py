"""Laws about training and hyperparameters: all that is kept or set has an effect."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._core import AbstractTransformation
from .._trees.leaves import is_leaf, parameters
from .._types import PyTree
from ..tree._slots import slots_of
from . import _trial
from ._law import Breach, expect, expect_same, law, of_types, of_values
from ._trial import Trial, compiled, given, grads_of, member, traces


STEPS = 8
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
    for _ in range(STEPS):
        moved = jax.tree.map(lambda p, p0: p - p0, parameters(params), start)
        grads = jax.tree.map(lambda d, x: d + _CURVATURE * x, slope, moved)
        params, state = call(trial.opt, trial.extra, grads, state, params)
        if _rise(slope, start, parameters(params)) < 0:
            return
    raise Breach(f"none of {STEPS} steps lowered a convex quadratic, expected one")


def _rise(slope: PyTree, start: PyTree, end: PyTree) -> float:
    """How much larger the quadratic is at `end`, from the distance that was moved."""
    rise = 0.0
    for d, p, q in zip(*map(jax.tree.leaves, (slope, start, end)), strict=True):
        wide = lambda x: np.asarray(x, np.result_type(x.dtype, np.float64))
        d, p, q = wide(d), wide(p), wide(q)
        rise += np.sum(np.real(np.conj(d) * (q - p)) + _CURVATURE / 2 * abs(q - p) ** 2)
    return float(rise)


_LARGE = 1e3
_NOTHING = f"changed nothing in {STEPS} steps, expected other parameters"


@law("remove what no step reads, or skip this law if it has another purpose")
def effects(trial: Trial) -> None:
    """Each slot of the state, a tree like the parameters, and each hyperparameter that is
    a float, changes some later step, or the parameters that `eval_params` returns."""
    values = numbers(trial.opt)
    opt = with_numbers(trial.opt, values)
    moments = [(trial.model, _start(opt, trial.model))]
    for i in range(STEPS):
        moments.append(_step(trial, opt, i, *moments[-1]))
    expected = compiled(_outcome)(opt, *moments[-1])

    def has_effect(opt, i, params, state):
        for j in range(i, STEPS):
            params, state = _step(trial, opt, j, params, state)
        found = compiled(_outcome)(opt, params, state)
        return of_values(found, expected, exactly=True) is not None

    for path in _slots(moments[0][1], trial.model):
        if not any(
            has_effect(opt, i, params, _disturbed(state, path, factor))
            for i, (params, state) in enumerate(moments[1:4], start=1)
            for factor in (_LARGE, None)
        ):
            what = f"another value of the state at `{jtu.keystr(path)}`"
            raise Breach(f"{what} {_NOTHING}")
    for name, value in values.items():
        # A small number, such as `eps`, and a bound that is not reached, need more. (What
        # is traced may be out of its range.)
        others = (0.9 * value, value + 0.5, value + _LARGE, value - _LARGE)
        opts = [with_numbers(opt, {**values, name: x}) for x in others]
        model = trial.model
        if not any(has_effect(x, 0, model, _start(x, model)) for x in opts):
            raise Breach(f"another value of `{name}` {_NOTHING}")


def _start(opt: Any, model: PyTree) -> PyTree:
    return compiled(_init)(opt, model)


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
            if type(value) is float and field.metadata.get("static"):
                raise Breach(
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
    if traces["step"] != counted:
        raise Breach(
            f"new values at `{'`, `'.join(values)}` were traced again, expected no trace"
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


def _has_halves(model: Any) -> bool:
    return any(jnp.finfo(x.dtype).bits < 32 for x in jax.tree.leaves(parameters(model)))


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
        return sum(
            jnp.sum(jnp.abs(x) ** 2).astype(scale.dtype)
            for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        )

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
    if _has_halves(trial.model):
        trial = trial.cast(jnp.float32)  # an ordinary slope overflows in float16
    values = numbers(trial.opt)
    slopes_at = slopes_of(trial)
    for scale in (1.0, 0.0):
        inputs = values, jnp.asarray(scale, jnp.result_type(float))
        slopes = slopes_at(inputs)
        what = "at gradients of zero, " if scale == 0 else ""
        named = {**slopes[0], "the size of the gradients": slopes[1]}
        for name, slope in named.items():
            if not np.isfinite(np.asarray(slope)):
                raise Breach(
                    f"{what}the derivative with respect to `{name}` is {slope}, "
                    "expected a finite number"
                )
        expect(of_types(slopes, inputs), f"{what}the tree of derivatives")
