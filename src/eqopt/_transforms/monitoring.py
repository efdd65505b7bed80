"""Measures updates without changing them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike

from .._arguments.construction import Module
from .._core import AbstractTransformation
from .._errors import InputError, naming_recipe
from .._trees.leaves import parameters, type_name
from .._trees.states import check_keys, check_state
from .._types import Params, PyTree, State, Unit, Updates
from ..numerics._numerics import at_least_float32
from .trace import EMA, EMAState


class SnapshotState(eqx.Module):
    """`measurement`: the measurements of the last step, a dictionary by name."""

    measurement: dict[str, PyTree]


class Snapshot(AbstractTransformation):
    """Measures the updates, and leaves them unchanged.

    !!! example

        ```python
        opt = eqopt.Chain(
            eqopt.Snapshot("norm_before_clip", eqopt.tree.norm),
            eqopt.ClipByGlobalNorm(1.0),
            eqopt.Adam(1e-3),
        )
        model, state = opt.step(grads, opt.init(model), model)
        eqopt.tree.get(state, "norm_before_clip")
        ```

    **Arguments:**

    - `measure_name`: the name of the measurement: `eqopt.tree.get(state, measure_name)`
        returns it. Before the first step, it is zero.
    - `measure`: a function of the updates at this position in the chain that returns an
        array or a tree of arrays. `init` calls it with abstract arrays of the shapes of
        the parameters, to get the shapes and dtypes of its result.

    **Raises:**

    In `update`, a `ValueError` if `measure` returns arrays of other shapes than in
    `init`, or complex numbers instead of real numbers.
    """

    measure_name: str = eqx.field(static=True)
    measure: Callable[[Updates], PyTree]

    def init(self, params: Params) -> SnapshotState:
        return SnapshotState({self.measure_name: _blank(self.measure, params)})

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        check_keys(state.measurement, [self.measure_name], ".measurement")
        new, name = self.measure(updates), self.measure_name
        old = state.measurement[name]
        return updates, SnapshotState({name: _recorded(name, new, old)})


class MeasureWithEMA(Module):
    r"""The exponential moving average of a measurement, for [`eqopt.Monitor`][].

    !!! example

        ```python
        is_clipped = lambda updates: eqopt.tree.norm(updates) > 1.0
        monitor = eqopt.Monitor({"clipped": eqopt.MeasureWithEMA(is_clipped, 0.9)})
        ```

    **Arguments:**

    - `measure`: a function of the updates at this position in the chain that returns an
        array or a tree of arrays. `init` calls it with abstract arrays of the shapes of
        the parameters, to get the shapes and dtypes of its result. Bools and integers
        are averaged as numbers.
    - `decay`: $\beta \in [0, 1)$.
    - `debias`: whether to correct for the start of the average at zero. Defaults to
        `True`.
    - `accumulator_dtype`: the dtype in which the average is stored. Defaults to the
        dtype of the measurement, at least float32.

    **Raises:**

    A `ValueError` if `decay` is out of its range.
    """

    measure: Callable[[Updates], PyTree]
    decay: Unit
    debias: bool = True
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    @property
    def _ema(self) -> EMA:
        return EMA(self.decay, self.debias, self.accumulator_dtype)

    def init(self, params: Params) -> EMAState:
        """The state before the first step.

        **Arguments:**

        - `params`: the parameters.
        """
        with naming_recipe(self):
            return self._ema.init(_blank(self._measured, params))

    def update(
        self,
        updates: Updates,
        state: EMAState,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[PyTree, EMAState]:
        """The average that includes this measurement, and the new state.

        **Arguments:**

        - `updates`, `state`, `params`, `extra`: as in a transformation.
        """
        with naming_recipe(self):
            return self._ema.update(self._measured(updates), state)

    def _measured(self, updates: Updates) -> PyTree:
        measured = jax.tree.map(jnp.asarray, self.measure(updates))
        return jax.tree.map(at_least_float32, measured)


class MonitorState(eqx.Module):
    """The measurements of the last step.

    **Attributes:**

    - `measurements`: a dictionary from the names of the measures to their results.
        Before the first step, all results are zero.
    - `measure_states`: the states of the measures, in the alphabetical order of their
        names; `None` for functions.
    """

    measurements: dict[str, PyTree]
    measure_states: tuple[State, ...]


class Monitor(AbstractTransformation):
    """Measures the updates in several ways, and leaves them unchanged.

    !!! example

        ```python
        is_clipped = lambda updates: eqopt.tree.norm(updates) > 1.0
        monitor = eqopt.Monitor(
            {
                "norm_before_clip": eqopt.tree.norm,
                "part_of_steps_clipped": eqopt.MeasureWithEMA(is_clipped, 0.99),
            }
        )
        opt = eqopt.Chain(monitor, eqopt.ClipByGlobalNorm(1.0), eqopt.Adam(1e-3))
        model, state = opt.step(grads, opt.init(model), model)
        eqopt.tree.get(state, "norm_before_clip")
        ```

    **Arguments:**

    - `measures`: measures by name. A measure is a function of the updates, as in
        [`eqopt.Snapshot`][]. If it needs a state, the parameters or extra arguments, it
        is an `eqx.Module` with the methods of a transformation: `init(params)` returns
        its state, and `update(updates, state, params, **extra)` returns the measurement
        and the new state. `init` of the monitor also calls this `update`, with abstract
        arrays of the shapes of the parameters and without extra arguments.

    **Raises:**

    In `update`, a `ValueError` if a measurement has other shapes than in `init`.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    measures: tuple[Any, ...]

    def __init__(self, measures: dict[str, Any]):
        # Not kept as a dictionary, which has no hash. Sorted, because `jit` also
        # returns the dictionaries of the state sorted.
        self.names = tuple(sorted(measures))
        self.measures = tuple(measures[name] for name in self.names)

    def init(self, params: Params) -> MonitorState:
        measurements, states = {}, []
        for name, measure in zip(self.names, self.measures, strict=True):
            state = measure.init(params) if _has_state(measure) else None
            values = lambda p, m=measure, s=state: _measure(m, p, s, p, {})[0]
            measurements[name] = _blank(values, params)
            states.append(state)
        return MonitorState(measurements, tuple(states))

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        check_keys(state.measurements, self.names, ".measurements")
        measurements, states = {}, []
        rows = zip(self.names, self.measures, state.measure_states, strict=True)
        for name, measure, old in rows:
            value, new = _measure(measure, updates, old, params, extra)
            measurements[name] = _recorded(name, value, state.measurements[name])
            states.append(new)
        return updates, MonitorState(measurements, tuple(states))


def _has_state(measure: Any) -> bool:
    return hasattr(measure, "init") and hasattr(measure, "update")


def _measure(measure, updates, state, params, extra):
    if _has_state(measure):
        return measure.update(updates, state, params, **extra)
    return measure(updates), None


def _blank(measure: Callable[[Any], PyTree], params: Params) -> PyTree:
    """Zeros with the shapes and dtypes of the results of `measure`."""
    of_params = lambda p: jax.tree.map(jnp.asarray, measure(p))
    shapes = eqx.filter_eval_shape(of_params, parameters(params))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _recorded(name: str, new: PyTree, old: PyTree) -> PyTree:
    """`new` in separate buffers, with the dtypes of `old`."""
    kind = lambda x: (jnp.shape(x), jnp.iscomplexobj(x))
    found, expected = (list(map(kind, jax.tree.leaves(tree))) for tree in (new, old))
    if jax.tree.structure(new) != jax.tree.structure(old) or found != expected:
        shown = lambda x: type_name(jnp.result_type(x), jnp.shape(x))
        raise InputError(
            f"the measure {name!r} returned {jax.tree.map(shown, new)}, but "
            f"{jax.tree.map(shown, old)} in `init`. A state keeps its shapes: reduce the "
            "arrays, for example to their sums."
        )
    return jax.tree.map(lambda x, like: jnp.array(x, like.dtype, copy=True), new, old)
