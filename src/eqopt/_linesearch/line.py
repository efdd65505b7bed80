"""The loss along a line: the state of a line search, and its results."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._arguments.extra import check_number, required, required_params
from .._core import add_updates, check_real, equation, inner, leafwise, sum_over_leaves
from .._errors import InputError
from .._trees.control import filter_cond
from .._trees.leaves import align, flatten_updates, keystr, restrict
from .._trees.precision import compute_dtype
from .._trees.stored import load, store_like
from .._types import Leaf, Params, PyTree, Scalar, Updates
from ..second_order._curvature import loss_of_arrays
from ..tree import conj, norm, sub


@equation(elementwise=True)
def move(g, *, step_size):
    # A step of size zero along a direction that is not finite changes nothing, and is
    # not NaN.
    return jnp.where(step_size == 0, 0, step_size * g)


@equation
def directional(g: Leaf, grad: Leaf) -> Scalar:
    # `jax.grad` gives df/dx - i df/dy for a complex parameter x + iy.
    return inner(g, jnp.conj(grad))


class Line(eqx.Module):
    r"""The loss $\varphi(\eta) = f(p + \eta u)$ and its derivatives.

    The search is a constant in derivatives of the step, because its loop has no fixed
    length, so reverse-mode differentiation is not possible. `grad` is as returned by
    `jax.grad`, as in `search`; only gradients passed by users are conjugated.
    """

    loss: Callable[[PyTree], Any]
    params: Params
    direction: Updates
    value: Float[Array, ""]
    slope: Float[Array, ""]
    grad: Updates

    def value_at(self, step_size: Scalar) -> Scalar:
        return self.loss(self.moved(step_size)).astype(self.value.dtype)

    def value_and_grad_at(self, step_size: Scalar) -> tuple[Scalar, Scalar, Updates]:
        """The value, the slope and the gradient."""
        value, grad = jax.value_and_grad(self.loss)(self.moved(step_size))
        slope = slope_along(self.direction, grad)
        dtype = self.value.dtype
        return value.astype(dtype), slope.astype(dtype), grad

    def value_and_pullback_at(self, step_size) -> tuple[Scalar, Callable[[], Updates]]:
        """The value, and a function that returns the gradient."""
        value, pullback = jax.vjp(self.loss, self.moved(step_size))
        one = jnp.ones_like(value)
        return value.astype(self.value.dtype), lambda: pullback(one)[0]

    def constant(self, x: Any) -> Scalar:
        """A number for the search, in the precision of the loss."""
        return lax.stop_gradient(jnp.asarray(x).astype(self.value.dtype))

    @property
    def start(self) -> PyTree:
        return restrict(self.params, self.grad)

    def moved(self, step_size: Scalar) -> PyTree:
        """The parameters there, exactly as `step` computes them."""
        updates = leafwise(move, self.direction, step_size=step_size)
        return restrict(add_updates(self.params, updates), self.grad)


class Trial(NamedTuple):
    """A step size, with the loss and its gradient there.

    `error` says by how much it violates sufficient decrease, 0 if it satisfies it.
    """

    step_size: Float[Array, ""]
    value: Float[Array, ""]
    grad: Updates
    error: Float[Array, ""]
    evaluations: Int[Array, ""]


def make_line(owner, direction, params, extra: Mapping[str, Any], last_value) -> Line:
    """The line from `params` along `direction`, with everything that `extra` provides.

    `last_value`: the loss at the end of the last search; infinite if there was none.

    **Raises:**

    A `ValueError` if an argument is missing, or if trees do not fit; an error at run
    time if gradients of complex parameters are not conjugated.
    """
    value_fn = required(extra, "value_fn")
    value = required(extra, "value")
    check_number("value", value)
    grad = required(extra, "grad")
    params = load(required_params(params))
    check_real(direction, params, "params")
    _check_covers(grad, direction)
    start = restrict(params, grad, like_name="grad")
    dtype = compute_dtype(start)
    arrays, others = eqx.partition(params, eqx.is_array)
    of_arrays = loss_of_arrays("value_fn", value_fn, params, ())
    loss = eqx.filter_closure_convert(of_arrays, start)
    arrays, loss, direction, value, grad = stopped(
        (arrays, loss, direction, jnp.asarray(value), grad)
    )
    # The gradients at other points have the dtypes of the parameters, too.
    grad = jtu.tree_map(lambda g, p: g.astype(p.dtype), conj(grad), start)
    slope = slope_along(direction, grad).astype(dtype)
    value = value.astype(dtype)
    if any(map(jnp.iscomplexobj, jtu.tree_leaves(grad))):
        name = type(owner).__name__
        is_first = jnp.isinf(last_value)
        is_wrong = filter_cond(
            is_first,
            lambda: _is_conjugate(grad, jax.grad(loss)(start)),
            lambda: jnp.asarray(False),
        )
        value = eqx.error_if(value, is_wrong, f"{name}: {_NOT_CONJUGATED}")
        # Within 60 degrees of steepest descent.
        downhill = -0.5 * norm(direction) * norm(grad)
        is_turned = slope_along(conj(direction), grad) < downhill
        is_uphill = is_first & (slope > 0) & is_turned
        value = eqx.error_if(value, is_uphill, f"{name}: {_UPHILL}")
    return Line(loss, eqx.combine(arrays, others), direction, value, slope, grad)


_CONJUGATE = (
    "For complex parameters, conjugate the result of `jax.grad` before you pass it as "
    "`updates` and `grad`: `grads = eqopt.tree.conj(grads)`."
)
_NOT_CONJUGATED = f"`grad` is the conjugate of the gradient. {_CONJUGATE}"
_UPHILL = f"along the updates of the first step, the loss increases. {_CONJUGATE}"


def _is_conjugate(grad: Updates, expected: Updates) -> Bool[Array, ""]:
    distance = lambda other: norm(sub(grad, other), squared=True)
    return distance(conj(expected)) < 1e-4 * distance(expected)


def slope_along(direction: Updates, grad: Updates) -> Scalar:
    return sum_over_leaves(directional, direction, {"grad": grad})[0]


def kept(grad: Updates, old: Updates) -> Updates:
    """A gradient for the state, in the dtypes of the state; `old` if there is none."""
    leaves, treedef = flatten_updates(old)
    pairs = zip(leaves, align(treedef, grad, "grad", old), strict=True)
    new = treedef.unflatten(
        x if x is None or g is None else g.astype(x.dtype) for x, g in pairs
    )
    return store_like(old, load(new))


def _check_covers(grad: Updates, direction: Updates) -> None:
    leaves, treedef = flatten_updates(direction)
    column = align(treedef, grad, "grad", direction)
    for i, (u, g) in enumerate(zip(leaves, column, strict=True)):
        if u is not None and g is None:
            raise InputError(
                f"`grad` has no value at `{keystr(direction, i)}`, but there is an "
                "update. Pass the whole gradient, as from `eqx.filter_grad`."
            )


def stopped(tree: PyTree) -> PyTree:
    stop = lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x
    return jtu.tree_map(stop, tree)


def choose(pred: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(pred, x, y), new, old)


def violation(error: Scalar) -> Scalar:
    """By how much a condition is violated, infinite if the loss is not a number."""
    return jnp.where(jnp.isnan(error), jnp.inf, jnp.maximum(error, 0))


def report(has_failed: Bool[Array, ""], name: str, line: Line, **numbers: Any) -> None:
    """Prints numbers of a search that has failed."""
    numbers = {"loss": line.value, "slope_along_the_updates": line.slope, **numbers}
    shown = ", ".join(f"{x.replace('_', ' ')} {{{x}}}" for x in numbers)
    message = f"{name}: no step size satisfies the conditions: {shown}."
    show = lambda: jax.debug.print(message, **numbers)
    filter_cond(has_failed, show, lambda: None)
