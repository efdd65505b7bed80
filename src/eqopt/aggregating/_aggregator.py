"""The protocol of aggregators."""

import abc
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._core import AbstractTransformation
from .._trees.leaves import restrict
from .._types import Params, State, Updates
from ..tree import get_all_with_path


class AbstractAggregator(AbstractTransformation):
    """A transformation that combines many updates into one.

    Its input has the gradients of several elements (such as examples) along additional
    axes, or comes from several calls. Its output is like the parameters. Put it first
    in an [`eqopt.Chain`][], or in an [`eqopt.aggregating.Process`][], which also passes
    on the other results of the aggregator.

    Subclass it and implement `init` and `aggregate`; `update` follows.

    An aggregator that needs several calls has a 0-d bool array `ready` in its state,
    which is true if its last output is the result. If it is false, `update` returns
    zeros, and a `Process` does not step.

    !!! example

        ```python
        class Median(eqopt.aggregating.AbstractAggregator):
            def init(self, params):
                return None

            def aggregate(self, updates, state, params=None, **extra):
                medians = jax.tree.map(lambda g: jnp.median(g, axis=0), updates)
                return medians, {}, state


        opt = eqopt.Chain(Median(), eqopt.Adam(1e-3))
        ```
    """

    _takes_examples = True

    @abc.abstractmethod
    def aggregate(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, dict[str, Any], State]:
        """The aggregated updates, further results, and the new state.

        **Arguments:**

        - `updates`: a tree like the parameters, with inexact arrays and `None`; the
            arrays may have additional axes.
        - `state`, `params`, `extra`: as in `update`.

        **Returns:**

        Updates with the structure and shapes of the parameters, also where only earlier
        calls had updates, possibly in a higher precision than `updates`, which are valid
        only if the new state is `ready`; a dictionary of extra arguments for the
        following transformations; and the new state.
        """

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, State]:
        aggregated, _, state = self.aggregate(updates, state, params, **extra)
        ready = is_ready(state)
        if ready is not True:
            # Selected, not multiplied: values that are not ready may be NaN.
            aggregated = jax.tree.map(lambda u: jnp.where(ready, u, 0), aggregated)
        return rounded(restrict(aggregated, updates), updates), state


def is_ready(state: State) -> Bool[Array, ""] | bool:
    """Whether every `ready` in a state is true; `True` if there is none."""
    flags = [flag for _, flag in get_all_with_path(state, "ready", _is_flag)]
    return functools.reduce(jnp.logical_and, flags) if flags else True


def _is_flag(path: tuple, x: Any) -> bool:
    # A parameter may be named `ready`, too, and then so are its averages.
    is_bool_array = eqx.is_array(x) and x.shape == () and x.dtype == jnp.bool_
    return isinstance(x, bool) or is_bool_array


def rounded(aggregated: Updates, updates: Updates) -> Updates:
    """Rounds aggregated updates to the dtypes of the given updates that are there."""
    like = eqx.combine(updates, aggregated)
    return jax.tree.map(lambda u, g: u.astype(g.dtype), aggregated, like)
