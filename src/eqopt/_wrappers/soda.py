"""Pulls the parameters towards those at the start, less and less, instead of a decay."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Int

from .._core import (
    AbstractTransformation,
    AbstractWrapper,
    Call,
    as_update,
    equation,
    leafwise,
    result_of,
)
from .._types import Params, State
from ..numerics._numerics import safe_increment
from ..tree._like import wide_copy


class SODAState(eqx.Module):
    """The inner state, and the parameters at the start.

    **Attributes:**

    - `count`: the steps taken so far, a 0-d int32 array.
    - `inner_state`: the inner state.
    - `z`: the parameters given to `init`, a tree like the parameters.
    """

    count: Int[Array, ""]
    inner_state: State
    z: Params


@equation(elementwise=True)
def pull(g, p, z, *, share):
    return g + share * (z - p)


class SODA(AbstractWrapper):
    r"""Pulls the parameters towards the initial ones instead of decaying them.

    $$p_t = \frac{1}{t + 1}\, p_0 + \left(1 - \frac{1}{t + 1}\right) p_{t-1} + u_t$$

    where $u_t$ is the update of the inner optimizer in step $t = 1, 2, …$, and $p_0$ are
    the parameters given to `init`. The pull is not multiplied by the learning rate. It
    replaces weight decay and needs no hyperparameter: `inner` must not have a decay.
    The authors report better results at all sizes of models and lengths of runs that
    they tried.

    !!! example

        ```python
        opt = eqopt.SODA(eqopt.Muon(0.02))
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    The pull does not fall with the learning rate. In the last fifth of a run, it alone
    would move the parameters by a fifth of the way to the start. So do not use it with a
    rate that decays to zero, unless normalization layers make the scale of the weights
    irrelevant. Do not use it if the memory for another copy of the parameters is scarce,
    or to continue a run without its state: then $t$ starts at 1 again, and the first
    steps pull strongly towards the parameters at that time.

    Put wrappers that average the parameters or extrapolate outside:
    `ParamEMA(SODA(Muon(0.02)))`. The updates must be added to the parameters unchanged:
    nothing may follow this in a chain.

    Every call is a step, even if `inner` leaves the parameters unchanged. So put wrappers
    that skip or accumulate outside: `MultiSteps(SODA(Muon(0.02)), 8)`.

    **Arguments:**

    - `inner`: the optimizer, without weight decay.
    - `state_dtype`: the dtype in which $p_0$ is stored. Defaults to the dtype of each
        parameter, at least float32.

    **Raises:**

    A `ValueError` in `update` if `params` is `None`.

    ??? cite "Reference"

        ```bibtex
        @article{pethick2026optimistic,
            author = {Pethick, Thomas and Xie, Wanyun and Machacek, Roman and Cevher,
                      Volkan},
            title = {Optimistic Dual Averaging Unifies Modern Optimizers},
            journal = {arXiv:2605.11172},
            year = {2026},
        }
        ```
    """

    _moves_params = True
    _needs_params = True

    inner: AbstractTransformation
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> SODAState:
        return SODAState(
            count=jnp.zeros((), jnp.int32),
            inner_state=self.inner.init(params),
            z=wide_copy(params, self.state_dtype),
        )

    def handle(self, call: Call, state: SODAState) -> tuple[Any, State]:
        new, inner_state = as_update(call).run(self.inner, state.inner_state)
        count = safe_increment(state.count)
        share = 1 / (count.astype(float) + 1)
        reads = {"p": call.params, "z": state.z}
        new = leafwise(pull, new, reads=reads, share=share)
        return result_of(call, new), SODAState(count, inner_state, state.z)
