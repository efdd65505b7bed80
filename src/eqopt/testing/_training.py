"""Laws about training: it goes downhill, and all that is kept or set has an effect."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._trees.leaves import is_leaf, parameters
from .._types import PyTree
from ..tree._slots import slots_of
from . import _trial
from ._difference import of_values
from ._hyperparameters import numbers, owners, with_numbers
from ._law import Breach, law
from ._trial import Trial, compiled, grads_of


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
        d, p, q = (
            np.asarray(x, np.result_type(x.dtype, np.float64)) for x in (d, p, q)
        )
        rise += np.sum(np.real(np.conj(d) * (q - p)) + _CURVATURE / 2 * abs(q - p) ** 2)
    return float(rise)


_LARGE = 1e3


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
            raise Breach(
                f"another value of the state at `{jtu.keystr(path)}` changed nothing in "
                f"{STEPS} steps, expected other parameters"
            )
    for name, value in values.items():
        # A small number, such as `eps`, and a bound that is not reached, need more. (What
        # is traced may be out of its range.)
        others = (0.9 * value, value + 0.5, value + _LARGE, value - _LARGE)
        opts = [with_numbers(opt, {**values, name: x}) for x in others]
        model = trial.model
        if not any(has_effect(x, 0, model, _start(x, model)) for x in opts):
            raise Breach(
                f"another value of `{name}` changed nothing in {STEPS} steps, expected "
                "other parameters"
            )


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
