"""The protocol: the base class of gradient transformations, and its three variants."""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

from .._arguments.annotations import kinds
from .._arguments.checks import check_fields, check_no_schedule
from .._arguments.construction import Module
from .._arguments.extra import required_params
from .._errors import naming, naming_recipe
from .._platforms import store_in_turn
from .._trees.leaves import check_parameters
from .._trees.masks import resolve_mask
from .._trees.routes import route
from .._trees.sharding import on_all_devices
from .._trees.states import check_state
from .._trees.stored import check_nothing_hidden, full_params, with_arrays
from .._types import Model, Params, SameState, State, Updates
from ..tree._slots import owners_of
from .calls import check_call
from .leafwise import Leafwise, add_updates, run_leafwise, widened


def _check_init(init: Callable) -> Callable:
    """Makes `init` reject arguments that would fail or do nothing in a step.

    Its result is on all devices of the parameters, also if it is a scalar.
    """

    @functools.wraps(init)
    def checked_init(self: Any, params: Any) -> Any:
        with naming(self):
            check_parameters(params)
            # The schedules of an optimizer belong to its parts, which may evaluate them.
            check_no_schedule(self, not isinstance(self, AbstractOptimizer))
            for name, kind in kinds(type(self)).items():
                if kind == "mask" and getattr(self, name) is not None:
                    resolve_mask(getattr(self, name), params, params)
            state = init(self, params)
            if self._moves_params:
                check_nothing_hidden(self, state)
            return on_all_devices(state, params)

    return checked_init


class AbstractTransformation(Module):
    """A gradient transformation: it turns gradients into updates of the parameters.

    Subclass it and implement `init` and `update`; both accept whole Equinox models. If
    the same equation applies to each leaf separately, subclass
    [`eqopt.AbstractLeafwise`][] instead: it is shorter.
    """

    # Which arguments `update` and `step` read themselves: stored ones are loaded first.
    _loads: ClassVar[Literal["all", "params", "nothing"]] = "all"
    # Whether a TPU stores its new state after the new parameters: see `store_in_turn`.
    _stores_in_turn: ClassVar[bool] = False
    # Whether it changes parameters, or updates, beyond what transformations inside it do.
    _moves_params: ClassVar[bool] = False
    _route = route  # what it does to which parameters, for `eqopt.groups.routes`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        this: Any = cls
        if "init" in vars(cls):
            this.init = _check_init(this.init)
        for name in {"update", "step"} & vars(cls).keys():
            loads = with_arrays if cls._loads == "all" else lambda fn: fn
            setattr(this, name, check_call(loads(getattr(cls, name))))

    @abc.abstractmethod
    def init(self, params: Params) -> State:
        """The state before the first step.

        **Arguments:**

        - `params`: any pytree, such as a model. Its inexact arrays are the parameters;
            other leaves, such as integers and floats of 4 or 8 bits, are ignored.

        **Returns:**

        The state, which shares no buffer with `params`.

        **Raises:**

        A `ValueError` if `params` has leaves, but no parameter, and a `ValueError` or
        `TypeError` if a mask does not fit it. A `TypeError` if a hyperparameter is a
        schedule that is never evaluated.
        """

    @abc.abstractmethod
    def update(
        self,
        updates: Updates,
        state: SameState,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, SameState]:
        """One step: transforms the updates and updates the state.

        **Arguments:**

        - `updates`: the gradients, or the result of another transformation: a tree like
            the parameters, with inexact arrays, and `None` at every leaf that is not
            trained. At these leaves, the parameter and its state stay unchanged.
        - `state`: the result of `init` or of the last `update`.
        - `params`: the parameters, for transformations that use them.
        - `extra`: extra arguments for transformations that use them, such as the loss
            as `value`: see [Extra arguments](base.md#extra-arguments). All
            transformations pass them on.

        **Returns:**

        The new updates, with the structure, shapes and dtypes of `updates`, and the new
        state, with the structure, shapes and dtypes of `state`. Add the updates to the
        parameters with [`eqopt.apply_updates`][].

        **Raises:**

        A `ValueError` or `TypeError` that names the key path if `updates`, `state` and
        `params` do not belong together, or if `updates` has no array, but `params` has
        something to train.
        """

    @check_call
    def step(
        self, grads: Updates, state: SameState, params: Model, **extra: Any
    ) -> tuple[Model, SameState]:
        """`update` and [`eqopt.apply_updates`][] in one call, which saves work.

        The sum is rounded to the parameters' dtype once, and wrappers that skip a step
        move no memory. The arguments are the same as for `update`.

        **Returns:**

        The new parameters, with all other leaves of `params`, and the new state.
        """
        required_params(params)
        # A class that handles trees itself gets its gradients as they are.
        grads = grads if self._loads == "all" else widened(grads)
        updates, state = self.update(grads, state, params, **extra)
        new = add_updates(params, updates)
        return new, self._in_turn(new, state, updates)

    def _in_turn(self, params: Params, state: State, updates: Updates) -> State:
        """`state`, made with these updates, which a TPU may store after `params`."""
        if not self._stores_in_turn:
            return state
        return store_in_turn(params, state, updates, owners_of(updates, state))

    def eval_params(self, state: State, params: Model) -> Model:
        """The parameters to evaluate the model with: `params`, or an average of them.

        A class that holds another transformation calls the method of that
        transformation. Where averages nest, the outermost one counts.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`.
        """
        return params

    def full_params(self, state: State, params: Model) -> Model:
        """The parameters, in float32 if [`eqopt.StoreParams`][] holds a part of them."""
        return full_params(state, params)


class AbstractLeafwise(AbstractTransformation):
    """A transformation that applies one equation to each leaf separately.

    Subclass it and implement `init` and `leafwise`; `update` and `step` follow. If
    `leafwise` does not pass a keyword-only argument of the equation, the field with the
    same name is used.

    !!! example

        ```python
        class HeavyBallState(eqx.Module):
            trace: PyTree


        @eqopt.equation(elementwise=True)
        def heavy_ball(g, trace, *, decay):
            trace = decay * trace + g
            return trace, trace


        class HeavyBall(eqopt.AbstractLeafwise):
            decay: float = 0.9

            def init(self, params):
                return HeavyBallState(trace=eqopt.tree.zeros_like(params))

            def leafwise(self, state, params, **extra):
                return eqopt.Leafwise(heavy_ball, state)
        ```
    """

    _loads = "nothing"

    @abc.abstractmethod
    def leafwise(
        self, state: State, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        """The equation of this step and its arguments.

        **Arguments:**

        - `state`, `params`, `extra`: as in `update`.
        """

    def update(
        self,
        updates: Updates,
        state: SameState,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, SameState]:
        check_state(self, state)
        step = self.leafwise(state, params, **extra)
        return run_leafwise(self, step, updates, params)


class AbstractStateless(AbstractLeafwise):
    """An [`eqopt.AbstractLeafwise`][] transformation whose state is `None`."""

    def init(self, params: Params) -> None:
        return None


_Part = TypeVar("_Part", bound=AbstractTransformation)


class AbstractOptimizer(AbstractTransformation):
    """A named recipe: hyperparameters as fields, and the chain that they define."""

    _loads = "nothing"

    @property
    @abc.abstractmethod
    def chain(self) -> AbstractTransformation:
        """The transformation that the hyperparameters define."""

    def part(self, cls: type[_Part], **others: Any) -> _Part:
        """A `cls` that takes its hyperparameters from the fields with the same names.

        `others` replace these. Fields that this optimizer does not have, either, keep
        their defaults.

        !!! example

            ```python
            class Heavy(eqopt.AbstractOptimizer):
                learning_rate: float
                decay: float = 0.9

                @property
                def chain(self):
                    parts = eqopt.Trace, eqopt.ScaleByLearningRate
                    return eqopt.Chain(*map(self.part, parts))
            ```
        """
        own, names = ({x.name for x in dataclasses.fields(y)} for y in (self, cls))
        return cls(**{name: getattr(self, name) for name in own & names} | others)

    def __check_init__(self) -> None:
        check_fields(self)  # before the parts, which may have other names for them
        # The parts check their hyperparameters here, not only in `init`.
        with naming_recipe(self):
            self.chain  # noqa: B018

    def init(self, params: Params) -> State:
        with naming_recipe(self):
            return self.chain.init(params)

    def eval_params(self, state: State, params: Model) -> Model:
        with naming_recipe(self):
            return self.chain.eval_params(state, params)

    def update(
        self,
        updates: Updates,
        state: SameState,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, SameState]:
        check_no_schedule(self)
        with naming_recipe(self):
            return self.chain.update(updates, state, params, **extra)

    def step(
        self, grads: Updates, state: SameState, params: Model, **extra: Any
    ) -> tuple[Model, SameState]:
        check_no_schedule(self)
        with naming_recipe(self):
            return self.chain.step(grads, state, params, **extra)
