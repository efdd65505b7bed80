"""The pipeline: collects equations of leafwise transformations and runs them together.

Equations wait until their values are needed. Then one compiled kernel runs all of them
on each leaf. So neighbours in a chain are fused, and a model with a thousand leaves
needs a thousand calls, not a thousand for each transformation.

These are the terms of the core:

- An *equation* is the mathematics of one leaf.
- A *slot* is a field of the state with a value for each leaf, which the equation reads
  and writes. *Shared* values are the same for all leaves.
- An *operation* is an equation with the static part of its shared values. The
  operations of neighbours form a *kernel*, one compiled function of a leaf.
- A *column* is a tree, aligned with the leaves of the updates.
- A chain *feeds* the pipeline to each of its parts (`_feed`). A part pushes equations
  and returns a *promise*: a function that returns the new state once the kernels have
  run. (Users' states may check or convert their fields, so none has placeholders until
  then.) The last part *finishes* (`_finish`): it also returns the new parameters.
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from jaxtyping import PyTree

from .._arguments.extra import without_norm
from .._arguments.owners import name_of
from .._trees.leaves import briefly, map_parameters, same_leaves, select
from .._trees.masks import mask_out, resolve_mask
from .._types import Mask, Measured, Params, State, Updates
from ..numerics import wide_dtype
from .equation import Equation
from .kernel import Result
from .narrowing import as_given
from .stages import laid_out, walk


class Leafwise(NamedTuple):
    """One step of a leafwise transformation: an equation and its arguments.

    **Attributes:**

    - `equation`: the result of [`eqopt.equation`][] for a function of arrays.
    - `state`: the new state. Fields with the name of an argument of the equation still
        hold their old values. The equation computes the new ones.
    - `shared`: the equation's keyword-only arguments. Missing ones are taken from the
        fields of the transformation with the same names. Numbers and 0-d arrays are
        traced (integers as floats); bools, strings, functions and `None` are static.
    - `reads`: other trees with the structure of the parameters, which the equation only
        reads, by argument name. (The parameters themselves are always available, as
        `p`.) Instead of a tree, you can pass a function, for example to make random
        keys. It gets the tree of updates, with `jax.ShapeDtypeStruct`s for arrays, and
        returns the tree.
    - `mask`: as in [`eqopt.Masked`][]. Leaves that it excludes pass unchanged.
    - `measure`: a function of the whole tree of incoming updates that returns more
        `shared` values, such as a norm over all leaves. If the new state depends on
        them, it returns a pair of these values and the state, which replaces `state`.
        Parts before it are not fused with this one.
    - `first`: fields of the state, shaped like the leaf, that are stored before the
        result is computed. Name a field here if its new value needs the *old*
        parameters, and the result needs only its new value. This saves memory on a CPU,
        and the values do not change.
    - `last`: fields of the state, shaped like the leaf, that are computed and stored
        after the result, one after the other. Name a field here if the result or
        another field needs its *old* value, or shares a quotient or a root with it.
        Otherwise, XLA on a CPU or a TPU would make a temporary array. The values do not
        change.
    - `on_cpu`: a function that is equal to `equation` up to rounding, and that XLA
        compiles to faster code for a CPU.
    - `then`: another equation for the result of this one, such as weight decay with its
        own mask. It has no state. It also gets the `shared` and the measured values of
        this one, which come before fields of the transformation.
    """

    equation: Equation
    state: State = None
    shared: Mapping[str, Any] = {}
    reads: Mapping[str, PyTree | Callable[[Updates], PyTree]] = {}
    mask: Mask | None = None
    measure: Callable[[Updates], Measured] | None = None
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    on_cpu: Callable | None = None
    then: "Leafwise | None" = None


def filled(owner: object, leafwise: Leafwise) -> Leafwise:
    """`leafwise` with missing shared values taken from the fields of `owner`."""
    # Also for `then`: values that are passed or measured here come before fields.
    if not isinstance(leafwise, Leafwise):
        wrong = f"must return an `eqopt.Leafwise`, but returned {briefly(leafwise)}."
        raise TypeError(f"{name_of(owner)}: `leafwise` and `matrixwise` {wrong}")
    if not isinstance(leafwise.equation, Equation):
        raise TypeError(
            f"{name_of(owner)}: the first argument of `Leafwise` must be an "
            f"equation, but is {briefly(leafwise.equation)}. Put `@eqopt.equation` "
            "above the function."
        )
    given, fields = leafwise.shared, vars(owner)
    names, then = [*leafwise.equation.shared], leafwise.then
    while then is not None:
        names += then.equation.shared
        then = then.then
    lacks = {x: fields[x] for x in names if x not in given and x in fields}
    return leafwise._replace(shared={**lacks, **given}) if lacks else leafwise


_NOT_YET = object()


class Pipeline:
    """The updates of one call of `update` or `step`, and the equations still to apply."""

    def __init__(
        self, updates: Updates, params: Params | None, extra: Mapping[str, Any]
    ):
        self.params = params
        # Has `grad_norm` only while the updates are the gradients with this norm.
        self.extra = extra
        self.given = updates
        self._updates = updates
        self._pending: list[tuple[str, Leafwise]] = []
        self._states: list[State] = []  # the new states of all equations that have run
        self._unread: dict[int, str] = {}
        self._moved: dict[int, Callable[[], State]] = {}
        self._last: list[tuple[list, str, Leafwise]] = []
        self._ended: Params | None = None
        self._hidden: list[Params | None] = []  # the parameters while others are shown

    def push(self, owner: str, leafwise: Leafwise) -> Callable[[], State]:
        """Adds an equation and returns the promise of its new state."""
        if leafwise.measure is not None:
            updates = self.flush()
            if leafwise.mask is not None:
                updates = mask_out(updates, leafwise.mask, self.params)
            found, state = _measured(owner, leafwise.measure(updates), leafwise.state)
            shared = {**leafwise.shared, **found}
            leafwise = leafwise._replace(shared=shared, state=state, measure=None)
        if self._hidden and "p" in leafwise.equation.leaves:
            reads = {"p": self.params, **leafwise.reads}
            leafwise = leafwise._replace(reads=reads)
        self._pending.append((name_of(owner), leafwise._replace(then=None)))
        self.extra = without_norm(self.extra)
        index = len(self._states)
        self._states.append(_NOT_YET)
        if leafwise.state is not None:
            self._unread[index] = owner
        if (then := leafwise.then) is not None:
            if then.state is not None:
                raise TypeError(
                    f"{owner}: `then` must have no state, but has one of type "
                    f"{type(then.state).__name__}. Compute all fields of the state "
                    "in the first equation."
                )
            self.push(owner, then._replace(shared={**leafwise.shared, **then.shared}))
        return functools.partial(self._kept, index, owner)

    def _kept(self, index: int, owner: str) -> State:
        if index in self._moved:
            self._states[index] = self._moved[index]()
        if self._states[index] is _NOT_YET:
            raise RuntimeError(
                f"{owner}: its new state was requested before its equation has run. Call "
                "the promise at the end: after `update` or `step` of a part, or after "
                "`flush`, `finish` or `apply` of the pipeline."
            )
        self._unread.pop(index, None)
        return self._states[index]

    def state_of(self, promise: Callable[[], State]) -> State:
        """The promised value; a `RuntimeError` if an earlier promise is missing."""
        state = promise()
        for owner in self._unread.values():
            raise RuntimeError(
                f"{owner}: its new state is lost. Code that feeds a pipeline to a part "
                "must call the promise that the part returns, and return its result."
            )
        return state

    def move(self, to: "Pipeline") -> bool:
        """Moves all equations to the end of another pipeline, if that is possible.

        It must have a tree of updates with the same structure. It is not possible if
        some equations have run, or depend on the shape of the updates or on an order.
        The promises of this pipeline stay valid.
        """
        self._push_the_last()
        pending = [leafwise for _, leafwise in self._pending]
        if self._updates is not self.given or not all(map(_is_movable, pending)):
            return False
        indices = range(len(self._states) - len(pending), len(self._states))
        for i, (owner, leafwise) in zip(indices, self._pending, strict=True):
            self._moved[i] = to.push(owner, laid_out(leafwise, self.given))
        self._pending = []
        return True

    def push_last(self, owner: str, leafwise: Leafwise) -> Callable[[], State | None]:
        """Adds an equation that runs after all others, even after ones pushed later.

        The returned promise returns `None` if the equation did not run, because a
        transformation added its own updates to the parameters, in another pipeline. In
        that case, see `outcome`.
        """
        ran = []
        self._last.append((ran, name_of(owner), leafwise))
        return lambda: ran[0]() if ran else None

    @property
    def outcome(self) -> tuple[Params | None, Updates | None]:
        """At the end: new parameters and `None`, or old parameters and the updates."""
        if self._ended is not None:
            return self._ended, None
        return self.params, self.flush()

    @contextlib.contextmanager
    def showing(self, params: Params) -> Generator[None, None, None]:
        """Equations that are pushed in this context see `params` as the parameters."""
        self._hidden.append(self.params)
        self.params = params
        try:
            yield
        finally:
            self.params = self._hidden.pop()

    @property
    def reads_params(self) -> bool:
        """Whether a pending equation reads the parameters, not others that are shown."""
        reads = lambda x: "p" in x.equation.leaves and "p" not in x.reads
        return any(reads(leafwise) for _, leafwise in self._pending)

    def in_order(self, leafwise: Leafwise, slot: str) -> Leafwise:
        """`leafwise` with an order for a slot that is computed from the updates.

        If the updates depend on the old parameters, the slot is stored before the
        result, otherwise after it.
        """
        if self.reads_params:
            return leafwise._replace(first=(slot,))
        return leafwise._replace(last=(slot,))

    def replace(self, updates: Updates) -> None:
        """Continues with other updates. No equation may be pending."""
        if not same_leaves(self._updates, updates):
            self.extra = without_norm(self.extra)
        self._updates = updates

    def flush(self) -> Updates:
        """Runs the pending equations and returns the updates, not yet rounded."""
        if self._pending:
            self._updates = self._run("updates")
        return self._updates

    def wide(self) -> Updates:
        """The result of `flush` in at least float32, for parts that round themselves."""
        wide = lambda u: u if u.dtype.itemsize >= 4 else u.astype(wide_dtype(u.dtype))
        return map_parameters(wide, self.flush())

    def finish(self) -> Updates:
        """Runs all equations, also from `push_last`, and rounds the updates.

        The updates have the dtypes of the updates at the start of the pipeline.
        """
        self._push_the_last()
        is_as_given = self._updates is self.given
        if self._pending:
            self._updates = self._run("rounded updates")
        if not is_as_given:
            self._updates = as_given(self._updates, self.given)
        return self._updates

    def apply(self) -> Params:
        """Runs all equations, also from `push_last`, and returns the new parameters."""
        self._push_the_last()
        return self.end(self._run("params"))

    def apply_outside(self, mask: Mask) -> tuple[Updates, Params]:
        """Runs the pending equations: updates within the mask, parameters elsewhere."""
        flags = resolve_mask(mask, self._updates, self.params)
        mixed = self._run("params", flags)
        return select(mixed, flags), select(mixed, [not flag for flag in flags])

    def end(self, params: Params) -> Params:
        """Records the new parameters, which end the pipeline."""
        self._ended = params
        return params

    def _push_the_last(self) -> None:
        for ran, owner, leafwise in self._last:
            ran.append(self.push(owner, leafwise))
        self._last = []

    def _run(self, kind: Result, not_applied: list[bool] | None = None) -> PyTree:
        params = self._hidden[0] if self._hidden else self.params
        result, states = walk(self._updates, params, self._pending, kind, not_applied)
        self._states[len(self._states) - len(states) :] = states
        self._pending = []
        return result


def _measured(owner: str, found: Any, state: State) -> tuple[Mapping[str, Any], State]:
    is_pair = isinstance(found, tuple) and len(found) == 2
    pair: Any = found if is_pair else (found, state)
    if not isinstance(pair[0], Mapping):
        raise TypeError(
            f"{owner}: `measure` must return a dict of shared values, or a pair of "
            f"such a dict and the new state, but returned {briefly(found)} of type "
            f"{type(found).__name__}."
        )
    return pair


def _is_movable(leafwise: Leafwise) -> bool:
    # With an order, a CPU evaluates all equations of a kernel again.
    equation, has_order = leafwise.equation, leafwise.first or leafwise.last
    # Of the equations of matrices, only those that change the shape do not depend on it.
    has_shape = equation.is_of_matrices and equation.keeps_shape
    is_bound = has_shape or has_order or "p" in equation.leaves
    return not is_bound and leafwise.on_cpu is None
