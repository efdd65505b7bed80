"""Laws about numbers: two ways to the same step, and gradients of any size."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._core import apply_updates
from .._types import PyTree
from ._difference import first_not_finite, of_values
from ._law import expect, expect_same, law
from ._trial import Trial, grads_of


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
        for what, found, expected in (
            ("gradients", updates, grads),
            ("state", state, trial.state),
            ("model", params, trial.model),
        ):
            difference = of_values(found, expected, exactly=True)
            expect(difference, f"after `{name}`, the {what} that it got")


def _with_own_containers(tree: PyTree) -> PyTree:
    """The same arrays in other dicts and lists."""
    return jax.tree.map(lambda x: x, tree)
