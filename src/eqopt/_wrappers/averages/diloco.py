"""Workers that train apart, and are moved together by an outer optimizer."""

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ..._arguments.checks import check_fields
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import AbstractTransformation, AbstractWrapper, Call, equation, leafwise
from ..._errors import InputError, naming_recipe
from ..._jax_internals import is_traced
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trace import Trace
from ..._trees.control import filter_cond
from ..._trees.leaves import flatten_updates, is_leaf, restrict, select
from ..._trees.states import check_size, check_state
from ..._trees.stored import load, store_like
from ..._types import (
    AtLeast,
    Count,
    Model,
    Params,
    State,
    StaticInteger,
    StaticSize,
    Unit,
)
from ...compression._compressors import (
    AbstractCompressor,
    Workers,
    compressed,
    memory_like,
)
from ...tree._like import copy, wide_copy, wide_zeros_like
from .copies import check_kept, take_slow_params


class DiLoCoState(eqx.Module):
    r"""The state of one worker: what it has for itself, and what all workers share.

    **Attributes:**

    - `inner_state`: the inner state, which differs between workers.
    - `phase`: the number of inner steps; from $2H$, it goes back to $H$. A 0-d int32
        array.
    - `slow`: the parameters after the last outer step, a tree like the parameters, in
        at least float32.
    - `outer_state`: the state of the outer optimizer for each fragment, a tuple.
    - `error`: what this worker has not sent yet, a tree like the parameters, in at least
        float32; `None` without a compressor.
    - `memory`: what the compressor remembers about each parameter, or `None`.
    """

    inner_state: State
    phase: Int[Array, ""]
    slow: Params
    outer_state: State
    error: Params | None
    memory: Params | None

    @classmethod
    def prefix(cls, own: Any, shared: Any) -> "DiLoCoState":
        """A prefix of the state, for the arguments of `jax.shard_map` and `jax.vmap`.

        **Arguments:**

        - `own`: the value for everything that differs between workers, such as
            `P("workers")` for `in_specs`, or 0 for `in_axes`.
        - `shared`: the value for everything that all workers share: `P()` or `None`.
        """
        return cls(own, shared, shared, shared, own, shared)


class Outer(eqx.Module):
    """What the state of a worker has for the outer steps of one fragment."""

    slow: Params
    state: State
    error: Params | None
    memory: Params | None


def split_state(state: DiLoCoState, count: int) -> list[Outer]:
    """The parts of a state for each of the fragments."""

    def of(name, part):
        tree = getattr(state, name)
        if tree is None:
            return None
        return restrict(tree, part, f"state.{name}", "state.slow")

    slow = divide_into_fragments(state.slow, count)
    parts = zip(slow, state.outer_state, strict=True)
    return [Outer(x, own, of("error", x), of("memory", x)) for x, own in parts]


def join(inner_state: State, phase: Array, parts: Sequence[Outer]) -> DiLoCoState:
    """The state with these parts."""
    whole = lambda name: eqx.combine(
        *(getattr(x, name) for x in parts), is_leaf=is_leaf
    )
    return DiLoCoState(
        inner_state=inner_state,
        phase=phase,
        slow=whole("slow"),
        outer_state=tuple(x.state for x in parts),
        error=whole("error"),
        memory=whole("memory"),
    )


def divide_into_fragments(params: Params, count: int) -> list[Params]:
    """Trees like `params`, with `None` at the arrays that other fragments have.

    Fragments without arrays are last.
    """
    if count == 1:
        return [params]
    leaves, _ = flatten_updates(params)
    sizes = {i: math.prod(x.shape) for i, x in enumerate(leaves) if x is not None}
    totals, owners = [0] * count, {}
    for i in sorted(sizes, key=lambda i: -sizes[i]):  # stable
        owners[i] = smallest = totals.index(min(totals))
        totals[smallest] += sizes[i]
    flags = lambda number: [owners.get(i) == number for i in range(len(leaves))]
    return [select(params, flags(number)) for number in range(count)]


_NESTEROV = Chain(Trace(0.9, nesterov=True), ScaleByLearningRate(0.7))


class DiLoCo(AbstractWrapper):
    r"""Lets workers train apart, and every $H$ steps moves them together.

    All $K$ workers start from the same parameters $\theta$, and each one takes $H$ steps
    with its own data and its own state of `inner`, to $\theta_k$. Then, `outer` takes a
    step from $\theta$ with the mean of the differences as the gradient:

    $$\Delta = \frac1K \sum_k (\theta - \theta_k), \qquad
      \theta \leftarrow \operatorname{outer}(\theta, \Delta)$$

    and all workers continue from there, with the states of `inner` unchanged. Workers
    communicate in one of $H$ steps only: $1/H$ of the bytes of data parallelism, in
    which each step sums the gradients. (With $H = 1$ and SGD with learning rates
    $\eta$ and 1, it is data parallelism with SGD.)

    Call `step` for each worker inside `jax.shard_map` or `jax.vmap` over an axis with
    this name, with the gradients of this worker. The count, the outer parameters and
    `outer_state` are equal for all workers; [`eqopt.DiLoCoState.prefix`][] tells JAX so.
    All workers take the outer step together, in a branch of the same compiled program.

    In *streaming* DiLoCo, the arrays of the parameters are divided into $F$ fragments of
    similar size, and every $H/F$ steps another fragment takes its outer step: the same
    bytes in total, in messages that are $F$ times smaller. With a `delay` of $\tau$ and a
    share $\alpha$, workers continue for $\tau$ steps before they take the result over,
    as $\theta_k \leftarrow \alpha\,\theta_k + (1 - \alpha)\,\theta$. In one program
    per step, the sum ends with the step that starts it: the delay gives the result that
    training has if a sum takes $\tau$ steps, but does not hide it.

    `opt.eval_params(state, params)` returns the result of the last outer step. Evaluate
    with it. Pass the parameters of one worker: outside `jax.vmap`,
    `jax.tree.map(lambda x: x[0], params)`. A worker that joins, or comes back, also
    starts from this result: copy `slow`, `outer_state` and the count from any other
    worker.

    The updates must be added to the parameters unchanged: nothing may follow this in a
    chain. Prefer `step` to `update`, with which workers differ by rounding.

    !!! example

        ```python
        opt = eqopt.DiLoCo(eqopt.AdamW(1e-3), "workers", sync_every=50)
        shared = eqopt.DiLoCoState.prefix(0, None)
        step = jax.vmap(opt.step, (0, shared, 0), (0, shared), axis_name="workers")
        ```

    **Arguments:**

    - `inner`: the optimizer of each worker. Its schedules continue over outer steps.
    - `axis_name`: the name of the axis over which the workers are mapped, or several
        names. `None` means one worker, without communication.
    - `sync_every`: $H \ge 1$, an integer. Defaults to 50.
    - `outer`: the outer optimizer, any transformation that returns updates to be added.
        It gets $\Delta$ and the outer parameters in at least float32. Defaults to
        SGD with a learning rate of 0.7 and a Nesterov momentum of 0.9. With one worker
        and `eqopt.SGD(1.0)`, `step` gives the result of `inner` to the last bit.
    - `fragments`: $F \ge 1$, a divisor of $H$. Arrays are not divided: the largest first,
        each goes to the fragment that is the smallest so far. `outer` sees one fragment
        at a time, so its norms are norms of a fragment. Defaults to 1.
    - `delay`: $\tau \in [0, H/F)$, an integer. Defaults to 0.
    - `local_share`: $\alpha \in [0, 1)$. Defaults to 0.0.
    - `compressor`: one of [`eqopt.compression`][], for the differences, with feedback of
        the errors as in [`eqopt.CompressedMean`][]. Defaults to `None`: differences are
        sent in at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range; in `step` and `update`, if
    `params` is `None`, or if no axis has the name `axis_name`.

    ??? cite "References"

        ```bibtex
        @article{douillard2023diloco,
            author = {Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and
                      Chhaparia, Rachita and Donchev, Yani and Kuncoro, Adhiguna and
                      Ranzato, Marc'Aurelio and Szlam, Arthur and Shen, Jiajun},
            title = {{DiLoCo}: Distributed Low-Communication Training of Language Models},
            journal = {arXiv:2311.08105},
            year = {2023},
        }

        @article{douillard2025streaming,
            author = {Douillard, Arthur and Donchev, Yanislav and Rush, Keith and Kale,
                      Satyen and Charles, Zachary and others},
            title = {Streaming {DiLoCo} with Overlapping Communication},
            journal = {arXiv:2501.18512},
            year = {2025},
        }
        ```
    """

    _moves_params = True
    _needs_params = True

    inner: AbstractTransformation
    axis_name: str | tuple[str, ...] | None = eqx.field(static=True)
    sync_every: Count = 50
    outer: AbstractTransformation = _NESTEROV
    fragments: StaticSize = static_choice(static=True, default=1)
    delay: Annotated[StaticInteger, AtLeast(0)] = static_choice(static=True, default=0)
    local_share: Unit = 0.0
    compressor: AbstractCompressor | None = None

    def __check_init__(self) -> None:
        check_fields(self)
        if is_traced(self.sync_every):
            return
        between, rest = divmod(int(self.sync_every), self.fragments)
        if rest or self.delay >= between:
            raise InputError(
                f"`sync_every`, {self.sync_every}, must be divisible by `fragments`, "
                f"{self.fragments}, with a quotient larger than `delay`, {self.delay}."
            )

    def init(self, params: Params) -> DiLoCoState:
        slow, compressor = wide_copy(params), self.compressor
        parts = divide_into_fragments(slow, int(self.fragments))
        return DiLoCoState(
            inner_state=self.inner.init(params),
            phase=jnp.zeros((), jnp.int32),
            slow=slow,
            outer_state=tuple(map(self.outer.init, parts)),
            error=None if compressor is None else wide_zeros_like(params),
            memory=None if compressor is None else memory_like(compressor, params),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the parameters after the last outer step.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            of `inner` are ignored: the outermost average counts.
        """
        check_state(self, state)
        return take_slow_params(state, params)

    def handle(self, call: Call, state: DiLoCoState) -> tuple[Any, State]:
        check_kept("slow", state.slow, call.updates)
        result, inner_state = call.run(self.inner, state.inner_state)
        check_size(self, "fragments", len(state.outer_state))
        with naming_recipe(self):
            workers = Workers(self.axis_name)
        count, period = state.phase + 1, jnp.asarray(self.sync_every, jnp.int32)
        # Not modulo H at first, because a delayed value does not exist yet.
        phase = jnp.where(count >= 2 * period, count - period, count)
        outers = []
        for i, outer in enumerate(split_state(state, int(self.fragments))):
            sent = (i + 1) * (period // self.fragments)
            due = lambda at: (count >= at) & ((count - at) % period == 0)
            updates = restrict(call.updates, outer.slow, "updates", "state.slow")
            piece, outer = self._fragment(
                call._replace(updates=updates),
                restrict(result, updates),
                outer,
                workers,
                sends=due(sent),
                receives=due(sent + self.delay),
            )
            result = eqx.combine(piece, result, is_leaf=is_leaf)
            outers.append(outer)
        return result, join(inner_state, phase, outers)

    def _fragment(self, call, result, outer: Outer, workers: Workers, sends, receives):
        """The result and the outer part of the state of one fragment."""
        send = lambda: self._sent(call, result, outer, workers)
        receive = lambda new: self._received(call, result, new)
        if self.delay == 0:

            def send_and_receive():
                new = send()
                return receive(new), new

            return filter_cond(sends, send_and_receive, lambda: (result, outer))
        new = filter_cond(sends, send, lambda: outer)
        return filter_cond(receives, lambda: receive(new), lambda: result), new

    def _sent(self, call: Call, result: Any, outer: Outer, workers: Workers) -> Outer:
        """The outer part after an outer step."""
        slow, error, memory = outer.slow, outer.error, outer.memory
        start = restrict(load(slow), call.updates, "state.slow")
        here = _parameters_now(call, result, start)
        if self.compressor is None and workers.count == 1:
            # From the mean instead of `slow`: if the outer step is to keep it, it is
            # kept to the last bit.
            mean = jax.tree.map(workers.mean, here)
            delta = jax.tree.map(jnp.subtract, start, mean)
            update = Call(delta, slow, {}, is_step=False)
            updates, state = update.run(self.outer, outer.state)
            end = jax.tree.map(lambda x, d, u: x + (d + u), mean, delta, updates)
            slow = store_like(slow, eqx.combine(end, load(slow)))
            return Outer(slow, state, error, memory)
        delta = jax.tree.map(jnp.subtract, start, here)
        if self.compressor is None:
            delta = jax.tree.map(workers.mean, delta)
        else:
            delta, error, memory = compressed(
                self.compressor, delta, error, memory, workers
            )
        step = Call(delta, slow, {}, is_step=True)
        slow, state = step.run(self.outer, outer.state)
        return Outer(slow, state, error, memory)

    def _received(self, call: Call, result: Any, outer: Outer) -> Any:
        """The result of taking over the outer parameters, where there are updates."""
        end = restrict(load(outer.slow), call.updates, "state.slow")
        if not _is_zero(share := self.local_share):
            here = _parameters_now(call, result, end)
            end = jax.tree.map(functools.partial(_mixed, share), end, here)
        if not call.is_step:
            params = restrict(load(call.params), call.updates)
            move = lambda x, p, g: (x - p.astype(x.dtype)).astype(g.dtype)
            return jax.tree.map(move, end, params, result)
        # New buffers, to be donated.
        rounded = lambda x, p: x.astype(p.dtype)
        return store_like(result, copy(jax.tree.map(rounded, end, load(result))))


@equation(elementwise=True)
def add_slow(g, slow, p):
    return g, p + g


def _parameters_now(call: Call, result: Any, like: Params) -> Params:
    """The parameters after the inner step, in the dtypes of `like`."""
    if call.is_step:
        params = restrict(load(result), call.updates)
        return jax.tree.map(lambda x, p: p.astype(x.dtype), like, params)
    _, params = leafwise(add_slow, result, like, reads={"p": call.params})
    return params


def _is_zero(x: Any) -> bool:
    return isinstance(x, float | int | np.number) and x == 0


def _mixed(share: Any, x: Array, p: Array) -> Array:
    share = jnp.asarray(share, jnp.finfo(x.dtype).dtype)
    return jnp.where(share == 0, x, x + share * (p - x))
