"""Errors of wrong calls of `update` and `step`: what was passed, and what is needed."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._arguments.construction import not_bound
from .._arguments.owners import name_of
from .._trees.leaves import flatten_updates, keystr, parameters
from .._trees.routes import takes_examples
from .misfits import ONE_MODEL, OtherState, other_devices, other_shards


def misuse(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
    """The error for a call that forgets the parameters, or passes the loss."""
    name = fn.__name__
    owner = f"{type(args[0]).__name__}.{name}"
    signature = inspect.signature(fn)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        keywords = [
            f", {x.name}=..."
            for x in signature.parameters.values()
            if x.kind is x.KEYWORD_ONLY and x.default is x.empty
        ]
        call = f"`opt.{name}(grads, state, model{''.join(keywords)})`"
        problem = not_bound(signature, args, kwargs, error)
        return TypeError(f"{owner}: {problem}. Call {call}, with the whole model.")
    params = given.pop("params", None)
    _, (argument, updates), (_, state) = list(given.items())[:3]
    given_model = state if params is None else params
    has_arrays = any(np.ndim(x) for x in jtu.tree_leaves(given_model))
    if _is_number(updates) and has_arrays:
        found = "is one number. Did you pass the loss?"
    elif _is_with_loss(updates) and not _is_with_loss(params):
        found = "is a pair of a number and a tree. Did you pass `(loss, grads)`?"
    elif params is not None and _has_others(updates) and not _has_others(params):
        return TypeError(
            f"{owner}: `{argument}` is a whole model, and `params` has only arrays. Were "
            f"they exchanged? Call `opt.{name}(grads, state, model)`, in this order."
        )
    elif _is_pair(updates) and _fits(args[0], updates[0], state):
        return ValueError(
            f"{owner}: `{argument}` is a pair, of which only the first item fits the "
            f"state. Did you pass `(grads, aux)`? Call `opt.{name}(grads, state, model)`."
        )
    else:
        return None
    if params is None and _fits(args[0], updates, state):
        return None  # the model is one number, or such a pair
    return ValueError(
        f"{owner}: `{argument}` {found} Pass only the gradients: `loss, grads = "
        f"eqx.filter_value_and_grad(loss_fn)(model)`, then `opt.{name}(grads, state, "
        "model)`."
    )


def _is_number(x: Any) -> bool:
    return isinstance(x, float | int) or getattr(x, "shape", None) == ()


def _has_others(x: Any) -> bool:
    return not all(hasattr(leaf, "dtype") for leaf in jtu.tree_leaves(x))


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2


def _is_with_loss(x: Any) -> bool:
    return _is_pair(x) and _is_number(x[0])


def _fits(transformation: Any, updates: PyTree, state: Any) -> bool:
    """Whether `init` makes a state like `state` for parameters like `updates`."""
    try:
        fresh = eqx.filter_eval_shape(transformation.init, updates)
    except Exception:  # the updates are not like any parameters
        return False
    (found, treedef), (like, expected) = map(jtu.tree_flatten, (state, fresh))
    return treedef == expected and [*map(np.shape, found)] == [*map(np.shape, like)]


def of_examples(
    fn: Callable, args: tuple, kwargs: dict[str, Any], is_of_shapes: bool
) -> Exception | None:
    """The error for gradients of single examples, if their axis was the trouble.

    It was if the error is about shapes, or if the gradient of one example is accepted.
    """
    given = inspect.signature(fn).bind(*args, **kwargs).arguments
    (_, name, _, *_), params = given, given.get("params")
    transformation, _, state, *_ = given.values()
    if not _fits(transformation, params, state):
        return None
    try:
        leaves, treedef = flatten_updates(given[name])
        pairs = enumerate(zip(leaves, treedef.flatten_up_to(params), strict=True))
    except (ValueError, TypeError):
        return None
    shapes = {i: (np.shape(g), np.shape(p)) for i, (g, p) in pairs if g is not None}
    is_deeper = [len(g) > 0 and g[0] > 0 and g[1:] == p for g, p in shapes.values()]
    if params is None or not is_deeper or not all(is_deeper):
        return None
    if not is_of_shapes:
        extra = given.pop("extra", {})
        given[name] = jtu.tree_map(lambda g: g[0], given[name])
        try:
            eqx.filter_eval_shape(fn, *given.values(), **extra)
        except Exception:  # something else is wrong
            return None
    i, (g, p) = next(iter(shapes.items()))
    remedy = (
        "Pass their mean, `jax.tree.map(lambda g: g.mean(0), grads)`, or begin with an "
        "aggregator, outside of wrappers that read gradients: "
        "`eqopt.Chain(eqopt.aggregating.AveragePerElementUpdates(), opt)`."
    )
    if part := takes_examples(transformation):
        remedy = (
            f"Only {part} takes them: begin with it, outside of other parts and "
            f"wrappers: `eqopt.Chain({part}(...), others)`."
        )
    return ValueError(
        f"{name_of(transformation)}: `{name}` has one more axis than the parameters in "
        f"each array: {[*g]} for {[*p]} at `{keystr(given[name], i)}`. Are these the "
        f"gradients of single examples? {remedy}"
    )


def where(
    fn: Callable, args: tuple, kwargs: dict[str, Any], error: Exception
) -> str | None:
    """The message for the first array of another shape or place, or a missing one."""
    try:
        given = inspect.signature(fn).bind(*args, **kwargs).arguments
        transformation, updates, state, *_ = given.values()
        params = given.get("params")
        tree = updates if params is None else params
        fresh = eqx.filter_eval_shape(transformation.init, tree)
    except Exception:  # more than a shape is wrong, and the first error is about that
        return None
    pairs = {"updates": (updates, parameters(tree)), "state": (state, fresh)}
    for name, trees in pairs.items():
        found, like = (dict(jtu.tree_leaves_with_path(tree)) for tree in trees)
        is_other = isinstance(error, OtherState) and name == "state"
        if is_other and found.keys() != like.keys():
            path = next(x for x in [*found, *like] if (x in found) != (x in like))
            lacks, has = ("not there", "is") if path in like else ("there", "is not")
            return (
                f"{name_of(transformation)}: `state{jtu.keystr(path)}` is {lacks}, but "
                f"{has} in the state that `init` makes for these parameters. {ONE_MODEL}"
            )
        for path in [*found] if found.keys() == like.keys() else ():
            x, y = found[path], like[path]
            # Gradients of examples may have one more axis.
            may_differ = name == "updates" and np.ndim(x) != np.ndim(y)
            if np.shape(x) != np.shape(y) and not may_differ:
                of_many = np.ndim(x) > 0 and np.shape(x)[1:] == np.shape(y)
                return (
                    f"{name_of(transformation)}: `{name}{jtu.keystr(path)}` has shape "
                    f"{list(np.shape(x))}, but {list(np.shape(y))} for these parameters. "
                    f"{OF_MANY if of_many else ONE_MODEL}"
                )
    # Types of arrays on explicit axes are like `float32[16@x,8]`.
    if is_of_axes(error) or "@" in str(error):
        return other_shards(name_of(transformation), pairs)
    if "incompatible devices" in str(error):
        return other_devices(name_of(transformation), pairs)
    return None


OF_MANY = (
    "Is it the state of a population? Then call the optimizer under `eqx.filter_vmap`."
)


def is_of_axes(error: Exception) -> bool:
    """Whether arrays on explicit axes do not fit; JAX has no public name for it."""
    return type(error).__name__ == "ShardingTypeError"
