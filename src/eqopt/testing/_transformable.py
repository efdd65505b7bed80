"""Laws about JAX's transformations, buffers and files."""

import io
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._trees.leaves import parameters
from .._types import PyTree
from ..tree._like import is_typed_key, unwrap_random_key_data
from . import _trial
from ._law import Breach, expect, expect_same, law, of_types, of_values
from ._trial import Trial, copied, grads_of, member


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
        if other != where:
            found = f"after `init`, {where} shares its buffer with {other}"
            raise Breach(f"{found}, expected a buffer for each array")
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
