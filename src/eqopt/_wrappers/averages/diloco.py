"""Workers that train apart, and are moved together by an outer optimizer."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from ..._arguments.checks import check_count
from ..._combinators.chain import Chain
from ..._core.equation import equation
from ..._core.pipeline import Leafwise, Pipeline
from ..._core.transformation import AbstractTransformation
from ..._core.wrapper import Call
from ..._transforms.scale import ScaleByLearningRate
from ..._transforms.trace import Trace
from ..._trees.control import filter_cond
from ..._trees.leaves import is_leaf, restrict
from ..._trees.stored import load, store_like
from ..._types import IntegerLike, Leaf, Params, State, Updates
from ...tree._like import copy, wide_copy
from .beside import synced
from .outer import AbstractOuter


class DiLoCoState(eqx.Module):
    """The state of one worker: what it has for itself, and what all workers share.

    **Attributes:**

    - `inner_state`: the inner state, which differs between workers.
    - `steps_since_sync`: the number of inner steps since the last outer step, a 0-d
        int32 array.
    - `slow`: the parameters after the last outer step, a tree like the parameters, in
        at least float32.
    - `outer_state`: the state of the outer optimizer.
    """

    inner_state: State
    steps_since_sync: Int[Array, ""]
    slow: Params
    outer_state: State

    @classmethod
    def prefix(cls, own: Any, shared: Any) -> "DiLoCoState":
        """A prefix of the state, for the arguments of `jax.shard_map` and `jax.vmap`.

        **Arguments:**

        - `own`: the value for everything that differs between workers, such as
            `P("workers")` for `in_specs`, or 0 for `in_axes`.
        - `shared`: the value for everything that all workers share: `P()` or `None`.
        """
        return cls(own, shared, shared, shared)


_NESTEROV = Chain(Trace(0.9, nesterov=True), ScaleByLearningRate(0.7))


class DiLoCo(AbstractOuter):
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

    `opt.eval_params(state, params)` returns the result of the last outer step. Evaluate
    with it. A worker that joins, or comes back, also starts from it: copy `slow`,
    `outer_state` and the count from any other worker.

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
    - `sync_every`: $H \ge 1$, an integer.
    - `outer`: the outer optimizer, any transformation that returns updates to be added.
        It gets $\Delta$ and the outer parameters in at least float32. Defaults to
        SGD with a learning rate of 0.7 and a Nesterov momentum of 0.9. With one worker
        and `eqopt.SGD(1.0)`, `step` gives the result of `inner` to the last bit.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range; in `step` and `update`, if
    `params` is `None`, or if no axis has the name `axis_name`.

    ??? cite "Reference"

        ```bibtex
        @article{douillard2023diloco,
            author = {Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and
                      Chhaparia, Rachita and Donchev, Yani and Kuncoro, Adhiguna and
                      Ranzato, Marc'Aurelio and Szlam, Arthur and Shen, Jiajun},
            title = {{DiLoCo}: Distributed Low-Communication Training of Language Models},
            journal = {arXiv:2311.08105},
            year = {2023},
        }
        ```
    """

    inner: AbstractTransformation
    axis_name: str | tuple[str, ...] | None = eqx.field(static=True)
    sync_every: IntegerLike = 50
    outer: AbstractTransformation = _NESTEROV

    def __check_init__(self):
        check_count(self, "sync_every")

    def init(self, params: Params) -> DiLoCoState:
        slow = wide_copy(params)
        return DiLoCoState(
            inner_state=self.inner.init(params),
            steps_since_sync=jnp.zeros((), jnp.int32),
            slow=slow,
            outer_state=self.outer.init(slow),
        )

    def _after_inner(
        self, call: Call, result: Any, inner_state: State, state: DiLoCoState
    ) -> tuple[Any, DiLoCoState]:
        workers = _count(self.axis_name)
        due, count = synced(state.steps_since_sync, self.sync_every)
        slow, outer_state = state.slow, state.outer_state
        result, slow, outer_state = filter_cond(
            due,
            lambda: self._synced(call, result, slow, outer_state, workers),
            lambda: (result, slow, outer_state),
        )
        return result, DiLoCoState(inner_state, count, slow, outer_state)

    def _synced(
        self, call: Call, result: Any, slow: Params, outer_state: State, workers: int
    ) -> tuple[Any, Params, State]:
        """After an outer step: the result, and the outer parameters and state."""
        start = restrict(load(slow), call.updates, "state.slow")
        if call.is_step:
            params = restrict(load(result), call.updates)
            here = jax.tree.map(_in_dtype_of, start, params)
        else:
            here = _added(call.params, result, start)
        if workers == 1:
            # From the mean instead of `slow`: if the outer step is to keep it, it is kept
            # to the last bit.
            mean = self._mean(here)
            delta = jax.tree.map(jnp.subtract, start, mean)
            updates, outer_state = self.outer.update(delta, outer_state, slow)
            end = jax.tree.map(lambda x, d, u: x + (d + u), mean, delta, updates)
            end = eqx.combine(end, load(slow))
            slow = store_like(slow, end)
        else:
            delta = self._mean(jax.tree.map(jnp.subtract, start, here))
            slow, outer_state = self.outer.step(delta, outer_state, slow)
        end = restrict(load(slow), call.updates, "state.slow")
        return _moved(call, result, end), slow, outer_state

    def _mean(self, tree: Updates) -> Updates:
        return tree if self.axis_name is None else lax.pmean(tree, self.axis_name)


def _count(axis_name: str | tuple[str, ...] | None) -> int:
    """The number of workers along an axis."""
    if axis_name is None:
        return 1
    try:
        return lax.axis_size(axis_name)
    except NameError:
        raise ValueError(
            f"DiLoCo: `axis_name` is {axis_name!r}, but no such axis is mapped here. "
            f"Call `step` inside `jax.shard_map`, over a mesh with this axis, or inside "
            f"`jax.vmap(..., axis_name={axis_name!r})`. For one worker, pass "
            "`axis_name=None`."
        ) from None


class _Slow(eqx.Module):
    slow: Params


@equation
def add(g: Leaf, slow: Leaf, p: Leaf) -> tuple[Leaf, Leaf]:
    return g, p + g


def _added(params: Any, updates: Updates, like: Params) -> Params:
    """The parameters after the updates, in the dtypes of `like`."""
    pipeline = Pipeline(updates, params, {})
    promise = pipeline.push("DiLoCo", Leafwise(add, _Slow(like)))
    pipeline.flush()
    return promise().slow


def _in_dtype_of(x: Array, p: Array) -> Array:
    return p.astype(x.dtype)


def _moved(call: Call, result: Any, end: Params) -> Any:
    """The result that takes the parameters to `end`, where there are updates."""
    if not call.is_step:
        params = restrict(load(call.params), call.updates)
        start = jax.tree.map(_in_dtype_of, end, params)
        return jax.tree.map(lambda x, p, g: (x - p).astype(g.dtype), end, start, result)
    part = restrict(result, call.updates)
    # New buffers, to be donated.
    rounded = copy(jax.tree.map(lambda x, p: x.astype(p.dtype), end, load(part)))
    return eqx.combine(store_like(part, rounded), result, is_leaf=is_leaf)
