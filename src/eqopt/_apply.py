"""Moving parameters: by updates, towards other parameters, or onto them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Int

from ._equations import equation
from ._leaves import parameters
from ._pipeline import Leafwise, Pipeline
from ._types import Params, RealScalarLike, Updates


def apply_updates(params: Params, updates: Updates) -> Params:
    """Adds `updates` to `params`.

    **Arguments:**

    - `params`: any pytree, such as a whole Equinox model.
    - `updates`: a tree like it, with inexact arrays, and `None` at every leaf that stays
        as it is.

    **Returns:**

    `params` with the sums in the dtypes that `params` had.

    **Raises:**

    A `ValueError` that names the key path if the trees or shapes differ.
    """
    return Pipeline(updates, params, {}).apply()


@equation
def interpolate(
    g: Inexact[Array, "*leaf"], p: Inexact[Array, "*leaf"], *, step_size
) -> Inexact[Array, "*leaf"]:
    return step_size * g + (1 - step_size) * p


def incremental_update(
    new_tensors: Params, old_tensors: Params, step_size: RealScalarLike
) -> Params:
    r"""Moves every parameter a part of the way: $s\,\text{new} + (1 - s)\,\text{old}$.

    Called after each step with a small $s$, it keeps an exponential moving average of
    the parameters.

    **Arguments:**

    - `new_tensors`, `old_tensors`: whole models or other pytrees of one structure.
    - `step_size`: $s$, in $[0, 1]$.

    **Returns:**

    A tree like `old_tensors`. All leaves but the inexact arrays are those of
    `old_tensors`.

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
    pipeline = Pipeline(parameters(new_tensors), old_tensors, {})
    shared = {"step_size": step_size}
    pipeline.push("incremental_update", Leafwise(interpolate, shared=shared))
    return eqx.combine(pipeline.flush(), old_tensors)


def periodic_update(
    new_tensors: Params,
    old_tensors: Params,
    steps: int | Int[Array, ""],
    update_period: int | Int[Array, ""],
) -> Params:
    r"""Replaces all parameters in every step that is a multiple of `update_period`.

    **Arguments:**

    - `new_tensors`, `old_tensors`: whole models or other pytrees of one structure.
    - `steps`: the number of steps taken, an integer or a 0-d integer array.
    - `update_period`: likewise, at least 1.

    **Returns:**

    `new_tensors` if `steps` is a multiple of `update_period`, else `old_tensors`.

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
    new, old = parameters(new_tensors), parameters(old_tensors)
    due = jnp.mod(steps, update_period) == 0
    chosen = jax.lax.cond(due, lambda: new, lambda: old)
    return eqx.combine(chosen, old_tensors)
