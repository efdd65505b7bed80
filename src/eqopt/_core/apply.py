"""Changing parameters: by updates, or towards other parameters."""

import equinox as eqx
import jax.numpy as jnp

from .._arguments.checks import check_interval
from .._errors import InputError
from .._trees.control import filter_cond
from .._trees.leaves import keystr, parameters
from .._types import IntegerLike, Model, Params, RealScalarLike, Updates
from ..tree._arithmetic import together
from ..tree._like import copy
from .calls import check_has_updates
from .equation import equation
from .leafwise import add_updates, leafwise


def apply_updates(params: Model, updates: Updates) -> Model:
    """Adds `updates` to `params`.

    **Arguments:**

    - `params`: any pytree, such as a whole Equinox model.
    - `updates`: a tree like `params`, with inexact arrays, and `None` at every leaf
        that stays unchanged.

    **Returns:**

    `params` with the sums, in the dtypes of `params`.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, or if there
    is an update for an integer array, which is not a parameter, or if `updates` has no
    array and `params` has parameters.
    """
    check_has_updates(params, updates)
    return add_updates(params, updates)


@equation(elementwise=True)
def interpolate(old, p, *, step_size):
    return step_size * p + (1 - step_size) * old


def incremental_update(
    new_tensors: Params, old_tensors: Params, step_size: RealScalarLike
) -> Params:
    r"""Moves every parameter part of the way: $s\,\text{new} + (1 - s)\,\text{old}$.

    Call it after each step with a small $s$ to maintain an exponential moving average
    of the parameters.

    **Arguments:**

    - `new_tensors`, `old_tensors`: whole models or other pytrees with the same structure.
    - `step_size`: $s$, in $[0, 1]$.

    **Returns:**

    `old_tensors` with its arrays moved, in their own dtypes: a float32 average of
    bfloat16 parameters stays float32. Where `new_tensors` has `None`, and in all leaves
    except the inexact arrays, it equals `old_tensors`.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ.

    ??? cite "Reference"

        ```bibtex
        @article{polyak1992acceleration,
            author = {Polyak, Boris T. and Juditsky, Anatoli B.},
            title = {Acceleration of Stochastic Approximation by Averaging},
            journal = {SIAM Journal on Control and Optimization},
            volume = {30},
            number = {4},
            pages = {838--855},
            year = {1992},
        }
        ```
    """
    trees = {"old_tensors": old_tensors, "new_tensors": new_tensors}
    leaves, rows, treedef = together(trees, may_lack=True)
    pairs = zip(leaves, rows, strict=True)
    moved = [x if row and row[0] is not None else None for x, row in pairs]
    # The moved arrays are passed as the updates: the result has their dtype.
    updates, reads = treedef.unflatten(moved), {"p": new_tensors}
    moved = leafwise(interpolate, updates, reads=reads, step_size=step_size)
    return eqx.combine(moved, old_tensors)


def periodic_update(
    new_tensors: Params,
    old_tensors: Params,
    steps: IntegerLike,
    update_period: IntegerLike,
) -> Params:
    r"""Replaces all parameters in every step that is a multiple of `update_period`.

    **Arguments:**

    - `new_tensors`, `old_tensors`: whole models or other pytrees with the same structure.
    - `steps`: the number of steps taken, an integer or a 0-d integer array.
    - `update_period`: an integer or a 0-d integer array, at least 1.

    **Returns:**

    `old_tensors`, with the arrays of `new_tensors` if `steps` is a multiple of
    `update_period`.

    **Raises:**

    A `ValueError` if `update_period` is not positive (traced values are not checked); a
    `ValueError` that names the key path if structures or shapes differ or only one tree
    has an array; a `TypeError` if dtypes differ.

    ??? cite "Reference"

        ```bibtex
        @article{mnih2015human,
            author = {Mnih, Volodymyr and Kavukcuoglu, Koray and Silver, David and
                      others},
            title = {Human-level Control through Deep Reinforcement Learning},
            journal = {Nature},
            volume = {518},
            pages = {529--533},
            year = {2015},
        }
        ```
    """
    check_interval("update_period", update_period, 1)
    trees = {"old_tensors": old_tensors, "new_tensors": new_tensors}
    leaves, rows, _ = together(trees, may_lack=False)
    for i, (x, row) in enumerate(zip(leaves, rows, strict=True)):
        if row and row[0].dtype != x.dtype:
            raise InputError(
                f"dtypes differ at `{keystr(old_tensors, i)}`: "
                f"`old_tensors` has {x.dtype}, `new_tensors` has {row[0].dtype}. Pass "
                "`eqopt.tree.cast_like(new_tensors, old_tensors)`."
            )
    new, old = parameters(new_tensors), parameters(old_tensors)
    due = jnp.mod(steps, update_period) == 0
    # New buffers, so that both `new_tensors` and the result can be donated.
    chosen = filter_cond(due, lambda: copy(new), lambda: old)
    return eqx.combine(chosen, old_tensors)
