"""Calls of `update` and `step`: what is checked before, and the errors of wrong ones."""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree, TypeCheckError

from .._arguments.extra import check_names
from .._arguments.owners import name_of
from .._trees.leaves import (
    ANOTHER_MODEL,
    briefly,
    flatten_updates,
    is_leaf,
    is_parameter,
    keystr,
    parameters,
)
from .._trees.routes import Report, takes_examples
from .misfits import ONE_MODEL, OtherState, other_shards


# What the outermost call that is running has checked: 1 if its gradients, 2 if also the
# names of its extra arguments. Parts of it are not checked: they get extra arguments that
# others read, and may get no gradients.
_CHECKED: ContextVar[int] = ContextVar("_CHECKED", default=0)

# The updates that the outermost call got, if it is one of `update`. Its result has their
# dtypes, although parts of it may get wider ones.
GIVEN: ContextVar[PyTree] = ContextVar("GIVEN", default=None)


def explained(fn: Callable) -> Callable:
    """`update` or `step` of a class; if shapes do not fit, its error says where.

    It is for errors of JAX from anywhere in `fn`, such as from a product or a branch. The
    state is compared with a new one for the same parameters.
    """

    own = inspect.signature(fn).parameters
    needed = [*own][:3]

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return _call(fn, own, needed, args, kwargs)

    return call


# Not in the wrapper: cloudpickle stores a class of a notebook with the globals that its
# methods use, and cannot store a context variable.
def _call(
    fn: Callable,
    own: Mapping[str, Any],
    needed: list[str],
    args: tuple,
    kwargs: dict[str, Any],
) -> Any:
    """`fn(*args, **kwargs)`, with the checks and errors of `explained`."""
    __tracebackhide__ = True
    tokens, before, now = [], _CHECKED.get(), 2 if kwargs else 1
    if now > before:
        # If the updates or the state are missing, the error is about that.
        if all(name in kwargs for name in needed[len(args) :]):
            extra = {name: x for name, x in kwargs.items() if name not in own}
            check_names(args[0], fn.__name__, extra)
            if not before:
                given = {**dict(zip(own, args, strict=False)), **kwargs}
                _check_gradients(args[0], fn.__name__, needed[1], given)
                if fn.__name__ == "update":
                    tokens.append((GIVEN, GIVEN.set(given[needed[1]])))
        tokens.append((_CHECKED, _CHECKED.set(now)))
    try:
        result = fn(*args, **kwargs)
    except Exception as error:
        of_axes = _is_of_axes(error)
        if not (of_axes or isinstance(error, TypeError | ValueError | IndexError)):
            raise
        # Only our own messages name an argument or a key path in such quotes.
        is_of_types = isinstance(error, TypeCheckError)
        is_ours = "`" in str(error) and not (is_of_types or of_axes)
        is_of_shapes = is_of_types or ANOTHER_MODEL in str(error)
        misuse = _misuse(fn, args, kwargs)
        if misuse is None and (is_of_shapes or not is_ours):
            misuse = _of_examples(fn, args, kwargs, is_of_shapes)
        if misuse is not None:
            raise misuse from None
        message = _where(fn, args, kwargs, error)
        if message is None or (is_ours and not message.endswith(_OF_MANY)):
            raise
        raise ValueError(message) from error
    finally:
        for variable, token in tokens:
            variable.reset(token)
    first = "new parameters" if fn.__name__ == "step" else "updates"
    return pair_of(args[0], fn.__name__, first, result)


def pair_of(transformation: Any, name: str, first: str, result: Any) -> Any:
    """`result` of the method `name`, a pair of `first` and the state."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise TypeError(
        f"{type(transformation).__name__}.{name}: it must return a pair of the {first} "
        f"and the new state, but returned {briefly(result)} of type "
        f"{type(result).__name__}."
    )


def _is_of_axes(error: Exception) -> bool:
    """Whether arrays on explicit axes do not fit; JAX has no public name for it."""
    return type(error).__name__ == "ShardingTypeError"


def _check_gradients(
    transformation: Any, name: str, argument: str, given: Mapping[str, Any]
) -> None:
    """Raises a `ValueError` if there is no gradient, but something to train.

    Gradients may be `None` at each parameter that a part of the transformation freezes.
    """
    if jtu.tree_leaves(given[argument]):
        return
    params = parameters(given.get("params"))
    report = Report(params)
    transformation._route(report, params)
    for i, x in enumerate(report.found):
        if x is not None and not any(part in _FREEZING for _, part in x.parts):
            raise _nothing(
                f"{type(transformation).__name__}.{name}", argument, params, i
            )


_FREEZING = "Freeze", "SetToZero", "frozen"


def check_any(params: PyTree, updates: PyTree) -> None:
    """The check of gradients in `apply_updates`, if no transformation calls it."""
    if not (_CHECKED.get() or jtu.tree_leaves(updates)):
        for i, x in enumerate(jtu.tree_leaves(params, is_leaf=is_leaf)):
            if is_parameter(x):
                raise _nothing("apply_updates", "updates", params, i)


def _nothing(owner: str, argument: str, params: PyTree, i: int) -> Exception:
    return ValueError(
        f"{owner}: `{argument}` has no array, so nothing would be trained, but `params` "
        f"has parameters, such as `{keystr(params, i)}`. Was the loss differentiated "
        "with respect to a part of the model without parameters? Pass the part to be "
        "trained first: `grads = eqx.filter_grad(loss_fn)(model)`. If nothing is to be "
        "trained in this step, do not call it."
    )


def _misuse(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
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
        return TypeError(f"{owner}: {error}. Call {call}, with the whole model.")
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
    return not all(map(is_parameter, jtu.tree_leaves(x)))


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


def _of_examples(
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


def _where(
    fn: Callable, args: tuple, kwargs: dict[str, Any], error: Exception
) -> str | None:
    """The message for the first array of another shape or sharding, or a missing one."""
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
                    f"{_OF_MANY if of_many else ONE_MODEL}"
                )
    # Types of arrays on explicit axes are like `float32[16@x,8]`.
    if _is_of_axes(error) or "@" in str(error):
        return other_shards(name_of(transformation), pairs)
    return None


_OF_MANY = (
    "Is it the state of a population? Then call the optimizer under `eqx.filter_vmap`."
)
