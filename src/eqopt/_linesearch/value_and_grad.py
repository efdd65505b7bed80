"""The loss and its gradient, taken from the state of a line search."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from .._errors import InputError, naming
from .._jax_internals import is_traced
from .._trees.control import filter_cond
from .._trees.leaves import parameters, restrict
from .._trees.stored import load
from .._types import Params, Scalar, State, Updates
from ..tree import get_all_with_path


def value_and_grad_from_state(
    value_fn: Callable[..., Any],
) -> Callable[..., tuple[Float[Array, ""], Updates]]:
    """Like `eqx.filter_value_and_grad`, but reuses the results of a line search.

    A line search ends with the loss and its gradient at the new parameters, where the
    next step starts. For a loss that is the same in each step, reusing them saves one
    evaluation per step.

    !!! example

        ```python
        opt = eqopt.LBFGS()
        value_and_grad = eqopt.value_and_grad_from_state(loss_fn)
        value, grads = value_and_grad(model, state=state)
        ```

    It returns the same gradients as `jax.grad`. For complex parameters, conjugate them
    before you pass them on, like the gradients from `eqx.filter_value_and_grad`:
    `grads = eqopt.tree.conj(grads)`.

    It cannot detect whether parameters or batch have changed since. If they have, use
    `eqx.filter_value_and_grad`.

    **Arguments:**

    - `value_fn`: a function that takes the model as its first argument and returns a
        real number.

    **Returns:**

    A function of the arguments of `value_fn` and of `state=`, the optimizer's state. It
    returns the value and the gradient with respect to the inexact arrays of the model.
    They are computed only if the state has none yet (or a value that is not finite), or
    if it only has the gradient of one group of an [`eqopt.Partition`][]: other groups
    have moved since.

    **Raises:**

    A `ValueError` if there is no line search in `state`, or more than one, or if it
    does not keep the gradient.
    """

    @naming("eqopt.value_and_grad_from_state")
    def value_and_grad(params, *args, state, **kwargs) -> tuple[Scalar, Updates]:
        value, grad = _stored(state)

        is_of_a_group = _is_of_a_group(grad, state, params)

        def computed() -> tuple[Scalar, Updates]:
            new_value, new = eqx.filter_value_and_grad(value_fn)(
                params, *args, **kwargs
            )
            if is_of_a_group:
                new = parameters(new)
            else:
                new = restrict(new, grad, like_name="state.grad")
            return new_value.astype(value.dtype), new

        if is_of_a_group:
            return computed()
        result = filter_cond(~jnp.isfinite(value), computed, lambda: (value, grad))
        # Outside `jit`, a step that donates both the state and these needs two buffers.
        return jtu.tree_map(lambda x: x if is_traced(x) else jnp.copy(x), result)

    return value_and_grad


_NAMES = "ScaleByZoomLinesearchState", "ScaleByBacktrackingLinesearchState"


def searches_in(state: State) -> list[Any]:
    """The states of all line searches in an optimizer's state."""
    return [x for name in _NAMES for _, x in get_all_with_path(state, name)]


def _is_of_a_group(grad: Updates, state: State, params: Params) -> bool:
    count = lambda tree: len(jtu.tree_leaves(tree))
    is_partial = count(grad) < count(parameters(params))
    return is_partial and bool(get_all_with_path(state, "PartitionState"))


def _stored(state: State) -> tuple[Scalar, Updates]:
    found = searches_in(state)
    if len(found) != 1 or found[0].grad is None:
        number = sum(x.grad is not None for x in found)
        raise InputError(
            "`state` must have one line search, and it must store the gradient, like "
            "`eqopt.ScaleByBacktrackingLinesearch(..., store_grad=True)`, but there are "
            f"{len(found)}, and {number} store it."
        )
    return found[0].value, load(found[0].grad)
