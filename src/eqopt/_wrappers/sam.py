"""Gradients at nearby parameters with a larger loss."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from .._arguments.checks import check_needs
from .._arguments.extra import required
from .._combinators.chain import Chain
from .._core import (
    AbstractTransformation,
    AbstractWrapper,
    Call,
    add_updates,
    equation,
    leafwise,
    result_of,
    rounded_like,
    widened,
)
from .._transforms.normalize import Normalize
from .._transforms.scale import Scale, scale
from .._trees.control import filter_cond
from .._trees.leaves import restrict
from .._trees.states import check_state
from .._trees.stored import load
from .._types import Count, Exact, Model, Params, State, Updates
from ..tree._like import copy
from .averages.copies import check_kept, count_step, match_params, restart


class SAMState(eqx.Module):
    """The state of [`eqopt.SAM`][].

    **Attributes:**

    - `steps_since_sync`: the number of adversarial steps since the last step of
        `inner`, a 0-d int32 array. In opaque mode, it stays 0.
    - `opt_state`: the state of `inner`.
    - `adv_state`: the state of `adversary`.
    - `cache`: the original parameters, to restore if `steps_since_sync` is not 0;
        `None` in opaque mode.
    """

    steps_since_sync: Int[Array, ""]
    opt_state: State
    adv_state: State
    cache: Exact | None


@equation(elementwise=True)
def go_back(g, cache, p):
    return (cache - p) + g


class SAM(AbstractWrapper):
    r"""Sharpness-aware minimization: computes the gradient where the loss is larger.

    It minimizes the largest loss in a neighbourhood of the parameters,

    $$\min_w\, \max_{\|\epsilon\|_2 \le \rho} L(w + \epsilon), \qquad
      \hat\epsilon(w) = \rho\, \frac{\nabla L(w)}{\|\nabla L(w)\|_2},$$

    so the inner optimizer gets the gradient at $w + \hat\epsilon(w)$, but moves $w$.
    Each of its steps needs `sync_period` gradients: the adversary climbs with all but
    the last.

    In transparent mode, each gradient needs one call of `step`. The first calls return
    adversarial parameters, at which you compute the next gradient. The last call
    returns the parameters of the inner optimizer. In between,
    [`eqopt.SAM.eval_params`][] returns the original parameters.

    !!! example

        ```python
        opt = eqopt.SAM(eqopt.AdamW(1e-3))
        # Another radius:
        rho = 0.1
        adversary = eqopt.Chain(eqopt.Normalize(), eqopt.Scale(-rho))
        opt = eqopt.SAM(eqopt.AdamW(1e-3), adversary)
        ```

    In opaque mode, one call does everything, and neither its arguments nor its results
    are adversarial parameters. It needs the extra argument `grad_fn`, a function of the
    parameters that returns the gradients. If `grad_fn` requires a second argument, it
    also gets the number of the adversarial step (a Python integer, starting at 0), for
    example to choose a batch. For complex parameters, it must return the conjugates of
    the gradients from `jax.grad`.

    !!! example

        ```python
        opt = eqopt.SAM(eqopt.AdamW(1e-3), opaque_mode=True)
        grad_fn = eqx.filter_grad(lambda model: loss_fn(model, batch))
        model, state = opt.step(grad_fn(model), state, model, grad_fn=grad_fn)
        ```

    The updates must be added to the parameters unchanged: nothing may follow this in a
    chain. In transparent mode, put averages of the parameters inside:
    `SAM(ParamEMA(AdamW(1e-3)))`. Outside, they would average the adversarial parameters
    too.

    A NaN in an adversarial step makes the adversarial parameters and the next gradient
    NaN, but not the original parameters. To skip such a gradient, put this inside
    [`eqopt.ApplyIfFinite`][]. In opaque mode, put `ApplyIfFinite` inside this: then the
    gradients of `grad_fn` are checked too, and the whole step is skipped.

    **Arguments:**

    - `inner`: the optimizer.
    - `adversary`: the optimizer for the adversarial steps. Its updates are applied with
        the opposite sign. Defaults to the adversary of the paper, $\hat\epsilon$ with
        $\rho = 0.05$.
    - `sync_period`: the number of gradients for a step of `inner`, an integer of at
        least 1. The paper uses 2; with 1, there is no adversarial step. Defaults to 2.
    - `reset_state`: whether the state of the adversary, except for its random keys, is
        reset after each step of `inner`, as in [`eqopt.Lookahead`][]. Defaults to
        `True`.
    - `opaque_mode`: whether one call does all adversarial steps. `sync_period` must
        then be a Python integer. Where `updates` has `None`, gradients of `grad_fn` are
        ignored. Defaults to `False`.
    - `batch_axis_name`: in opaque mode, the name of an axis of devices, or of a `vmap`,
        over which the gradients of `grad_fn` are averaged. Defaults to `None`: they are
        not averaged.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, if `batch_axis_name` is given
    in transparent mode, and in `update` if `params` or, in opaque mode, `grad_fn` is
    missing.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{foret2021sharpness,
            author = {Foret, Pierre and Kleiner, Ariel and Mobahi, Hossein and Neyshabur,
                      Behnam},
            title = {Sharpness-Aware Minimization for Efficiently Improving
                     Generalization},
            booktitle = {International Conference on Learning Representations},
            year = {2021},
        }
        ```
    """

    # Differs from Optax in:
    #
    # 1. A step runs only one of the two optimizers. There, each call runs both, and
    #    keeps one result by multiplying with 0 and 1: a NaN of the other one remains.
    # 2. `sync_period=1` is the inner optimizer. There, in transparent mode, it steps from
    #    the parameters before the last step.
    # 3. `adversary` is reset to `init` of the parameters that the inner optimizer stepped
    #    from, in both modes. There, in transparent mode, to `init` of adversarial ones.
    # 4. Extra arguments are passed on.

    _loads = "all"
    _needs_params = True

    inner: AbstractTransformation
    adversary: AbstractTransformation = Chain(Normalize(), Scale(-0.05))
    sync_period: Count = 2
    reset_state: bool = True
    opaque_mode: bool = False
    batch_axis_name: str | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        is_met = self.opaque_mode or self.batch_axis_name is None
        fix = "Without it, average the gradients before `step`."
        check_needs("batch_axis_name", "opaque_mode=True", is_met, fix)

    def init(self, params: Params) -> SAMState:
        return SAMState(
            steps_since_sync=jnp.zeros((), jnp.int32),
            opt_state=self.inner.init(params),
            adv_state=self.adversary.init(params),
            cache=None if self.opaque_mode else copy(params),
        )

    def handle(self, call: Call, state: SAMState) -> tuple[Any, State]:
        return (self._opaquely if self.opaque_mode else self._openly)(call, state)

    def eval_params(self, state: State, params: Model) -> Model:
        """The parameters of the inner optimizer, for evaluation.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`.
        """
        check_state(self, state)
        if state.cache is not None:
            cached = eqx.combine(load(state.cache), params)
            is_own = state.steps_since_sync == 0
            params = filter_cond(is_own, lambda: params, lambda: cached)
        return self.inner.eval_params(state.opt_state, params)

    def _openly(self, call: Call, state: SAMState) -> tuple[Any, SAMState]:
        # Two conditionals in sequence: with `sync_period=1`, both are true.
        here = match_params("cache", state.cache, call.params)
        check_kept("cache", state.cache, call.updates)
        cache = filter_cond(
            state.steps_since_sync == 0, lambda: copy(here), lambda: state.cache
        )
        is_last, count = count_step(state.steps_since_sync, self.sync_period)

        def sync():
            # A copy: outside `jit`, a leaf without an update stays the same array.
            start = eqx.combine(copy(cache), call.params)
            result, opt_state = self._descent(call, start, state.opt_state)
            return result, opt_state, self._restart(state.adv_state, cache)

        def ascend():
            updates, adv_state = self._ascent(call, state.adv_state)
            return result_of(call, updates), state.opt_state, adv_state

        result, opt_state, adv_state = filter_cond(is_last, sync, ascend)
        return result, SAMState(count, opt_state, adv_state, cache)

    def _opaquely(self, call: Call, state: SAMState) -> tuple[Any, SAMState]:
        grad_fn = required(call.extra, "grad_fn")
        climb, adv_state = call, state.adv_state
        for i in range(int(self.sync_period) - 1):
            updates, adv_state = self._ascent(climb, adv_state)
            adversarial = add_updates(climb.params, updates)
            grads = _called(grad_fn, adversarial, i)
            if self.batch_axis_name is not None:
                grads = lax.pmean(grads, self.batch_axis_name)
            grads = restrict(grads, call.updates, "grad_fn(params)")
            grads = rounded_like(grads, call.updates)
            climb = climb._replace(updates=grads, params=adversarial)
        descent = call._replace(updates=climb.updates)
        result, opt_state = self._descent(descent, call.params, state.opt_state)
        adv_state = self._restart(adv_state, call.params)
        return result, SAMState(state.steps_since_sync, opt_state, adv_state, None)

    def _descent(self, call, start, opt_state) -> tuple[Any, State]:
        """The result of `inner` for a call at `start`, for the parameters of the call."""
        result, opt_state = call._replace(params=start).run(self.inner, opt_state)
        if not (call.is_step or start is call.params):
            result = leafwise(go_back, result, reads={"cache": start, "p": call.params})
        return result, opt_state

    def _ascent(self, call: Call, adv_state: State) -> tuple[Updates, State]:
        """The updates of the adversary, which climbs, not yet rounded."""
        climb = call._replace(updates=widened(call.updates), is_step=False)
        updates, adv_state = climb.run(self.adversary, adv_state)
        return leafwise(scale, updates, step_size=-1.0), adv_state

    def _restart(self, adv_state, params):
        if not self.reset_state:
            return adv_state
        return restart(self.adversary, adv_state, params)


def _called(grad_fn: Callable, params: Params, i: int) -> Any:
    """Passes the number of the step only if `grad_fn` requires it."""
    try:
        inspect.signature(grad_fn).bind(params)
    except TypeError:
        return grad_fn(params, i)
    except ValueError:  # it has no signature
        pass
    return grad_fn(params)
