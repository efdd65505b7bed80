"""Updates on their way through leafwise transformations.

Equations accumulate until their values are needed. Then, leaf by leaf, one compiled
kernel runs all of them. So neighbours in a chain are fused, and a model with a thousand
leaves costs a thousand calls, not a thousand for each transformation.

The terms of the core: an *equation* is the maths of one leaf. A *slot* is a field of
the state with a value for each leaf, which the equation reads and writes; *shared*
values are the same for all leaves. An *operation* is an equation with the static part
of its shared values; the operations of neighbours form a *kernel*, one compiled
function of a leaf. A *column* is a tree, aligned with the leaves of the updates. A
chain *feeds* the pipeline to each of its parts (`_feed`), which push equations and
return a *promise*: a function that returns the new state once the kernels have run. The
last part *finishes* (`_finish`): it also returns the new parameters.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.tree_util as jtu
from jaxtyping import PyTree

from ._equations import Equation, Result
from ._leaves import (
    is_leaf,
    map_parameters,
    mask_out,
)
from ._owners import name_of
from ._stages import walk
from ._typecheck import no_type_check
from ._types import Mask, Params, State, Updates
from .numerics import wide_dtype


class Leafwise(NamedTuple):
    """One step of a leafwise transformation: an equation and its arguments.

    **Attributes:**

    - `equation`: the result of [`eqopt.equation`][] for a function of arrays.
    - `state`: the new state. The fields that the equation computes still hold their old
        values; the names of the equation's arguments select them.
    - `shared`: the equation's keyword-only arguments. Missing ones are taken from the
        fields of the transformation with the same names. Numbers and 0-d arrays are
        traced (integers as floats); bools, strings, functions and `None` are static.
    - `reads`: further trees like the parameters that the equation only reads, by the
        names of its arguments. (The parameters themselves are always available, as
        `p`.) Instead of a tree, pass a function that makes it from a tree like the
        updates, with `jax.ShapeDtypeStruct`s for arrays: for random keys, for example.
    - `mask`: as in [`eqopt.Masked`][]. Leaves that it excludes pass unchanged.
    - `measure`: a function of the whole incoming updates that returns further `shared`
        values, such as a norm over all leaves. It ends the fusion with the parts before
        it.
    - `last`: fields of the state, shaped like the leaf, that are computed and stored
        after the result, one after the other. Name a field here if the result or
        another field needs its *old* value, or shares a quotient or a root with it:
        otherwise, XLA on a CPU would make a temporary array. The values do not change.
    - `on_cpu`: a function equal to `equation`, except for rounding, that XLA on a CPU
        compiles to faster code.
    """

    equation: Equation
    state: State = None
    shared: Mapping[str, Any] = {}
    reads: Mapping[str, PyTree | Callable[[Updates], PyTree]] = {}
    mask: Mask | None = None
    measure: Callable[[Updates], Mapping[str, Any]] | None = None
    last: tuple[str, ...] = ()
    on_cpu: Callable | None = None


@no_type_check  # called in each step of each part
def filled(owner: object, leafwise: Leafwise) -> Leafwise:
    """`leafwise` with missing shared values taken from the fields of `owner`."""
    given, fields = leafwise.shared, vars(owner)
    lacks = [x for x in leafwise.equation.shared if x not in given and x in fields]
    if not lacks:
        return leafwise
    return leafwise._replace(shared={**{x: fields[x] for x in lacks}, **given})


_NOT_YET = object()


class Pipeline:
    """The updates of one call of `update` or `step`, and the equations still to apply."""

    def __init__(
        self, updates: Updates, params: Params | None, extra: Mapping[str, Any]
    ):
        self.params = params
        self.extra = extra
        self.given = updates
        self._updates = updates
        self._pending: list[tuple[str, Leafwise]] = []
        self._states: list[State] = []  # of all that was pushed, once it has run
        self._unread: dict[int, str] = {}
        self._last: list[tuple[list, str, Leafwise]] = []
        self._ended: Params | None = None

    @no_type_check
    def push(self, owner: str, leafwise: Leafwise) -> Callable[[], State]:
        """Adds an equation and returns the promise of its new state."""
        if leafwise.measure is not None:
            updates = self.flush()
            if leafwise.mask is not None:
                updates = mask_out(updates, leafwise.mask, self.params)
            shared = {**leafwise.shared, **leafwise.measure(updates)}
            leafwise = leafwise._replace(shared=shared)
        self._pending.append((name_of(owner), leafwise))
        index = len(self._states)
        self._states.append(_NOT_YET)
        if leafwise.state is not None:
            self._unread[index] = owner
        return functools.partial(self._kept, index, owner)

    @no_type_check
    def _kept(self, index: int, owner: str) -> State:
        if self._states[index] is _NOT_YET:
            raise RuntimeError(
                f"{owner}: its new state was asked for before its equation has run. Call "
                "the promise at the end: after `update` or `step` of a part, or after "
                "`flush`, `finish` or `apply` of the pipeline."
            )
        self._unread.pop(index, None)
        return self._states[index]

    @no_type_check
    def state_of(self, promise: Callable[[], State]) -> State:
        """The promised value; a `RuntimeError` if an earlier promise is missing."""
        state = promise()
        for owner in self._unread.values():
            raise RuntimeError(
                f"{owner}: its new state is lost. Whoever feeds a pipeline to a part "
                "calls the promise that the part gives, and returns what comes out."
            )
        return state

    def push_last(self, owner: str, leafwise: Leafwise) -> Callable[[], State | None]:
        """Adds an equation to run after all others, in whatever order they are pushed.

        The returned function returns `None` if the equation did not run: a
        transformation then added its own updates to the parameters, in another
        pipeline. In that case, see `outcome`.
        """
        ran = []
        self._last.append((ran, name_of(owner), leafwise))
        return lambda: ran[0]() if ran else None

    @property
    def outcome(self) -> tuple[Params | None, Updates | None]:
        """At the end: the new parameters and `None`, or the old ones and the updates."""
        if self._ended is not None:
            return self._ended, None
        return self.params, self.flush()

    @property
    def reads_params(self) -> bool:
        """Whether the updates to come depend on the parameters."""
        return any("p" in x.equation.leaves for _, x in self._pending)

    def replace(self, updates: Updates) -> None:
        """Continues with other updates, once nothing is pending."""
        self._updates = updates

    @no_type_check
    def flush(self) -> Updates:
        """Runs the pending equations and returns the updates, not yet rounded."""
        if self._pending:
            self._updates = self._run("updates")
        return self._updates

    def wide(self) -> Updates:
        """`flush`, in at least float32: for a part that rounds its own results."""
        wide = lambda u: u if u.dtype.itemsize >= 4 else u.astype(wide_dtype(u.dtype))
        return map_parameters(wide, self.flush())

    def finish(self) -> Updates:
        """Runs all equations, including the last ones, and returns the rounded updates.

        They have the dtypes of the updates at the beginning of the pipeline.
        """
        self._push_the_last()
        is_as_given = self._updates is self.given
        if self._pending:
            self._updates = self._run("rounded updates")
        if not is_as_given:
            self._updates = _as_given(self._updates, self.given)
        return self._updates

    @no_type_check
    def apply(self) -> Params:
        """Runs the pending equations and gives the updated parameters."""
        self._push_the_last()
        return self.end(self._run("params"))

    @no_type_check
    def end(self, params: Params) -> Params:
        """Records the new parameters, whose computation ended the pipeline."""
        self._ended = params
        return params

    @no_type_check
    def _push_the_last(self) -> None:
        for ran, owner, leafwise in self._last:
            ran.append(self.push(owner, leafwise))
        self._last = []

    @no_type_check
    def _run(self, result_kind: Result) -> PyTree:
        result, states = walk(self._updates, self.params, self._pending, result_kind)
        self._states[len(self._states) - len(states) :] = states
        self._pending = []
        return result


@no_type_check
def _rounded(u, like):
    return u if u is None or u.dtype == like.dtype else u.astype(like.dtype)


def _as_given(updates: Updates, given: Updates) -> Updates:
    """In the dtypes of the given tree, if it has the same form: see `LookaheadParams`."""
    leaves, treedef = jtu.tree_flatten(updates, is_leaf=is_leaf)
    likes, structure = jtu.tree_flatten(given, is_leaf=is_leaf)
    if treedef != structure:
        return updates
    return treedef.unflatten(map(_rounded, leaves, likes))
