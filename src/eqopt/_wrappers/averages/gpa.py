"""Generalized primal averaging: gradients between the iterate and its average."""

from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from ..._arguments.extra import required_params
from ..._core import AbstractTransformation, equation, leafwise, rounded_like, widened
from ..._transforms.scale import recorded
from ..._trees.leaves import is_leaf, parameters
from ..._trees.precision import compute_dtype
from ..._trees.states import check_state
from ..._types import Model, Params, State, Unit, Updates, UpToOne
from ...tree._like import wide_copy
from .schedule_free import fall_of, with_average


Place: TypeAlias = Literal["z", "y"]


class GPAState(eqx.Module):
    """The state and the iterate of the inner optimizer.

    **Attributes:**

    - `mu_y`: the share of the average in the parameters, a 0-d array.
    - `inner_state`: the inner state.
    - `z`: the iterate of the inner optimizer, a tree like the parameters.
    """

    mu_y: Float[Array, ""]
    inner_state: State
    z: Params


@equation(elementwise=True)
def gpa(g, z, p, *, mu_x, mu_y, fall):
    # Solved for the parameters, so that the average is not stored.
    share = (1 - mu_x) + mu_x * fall
    return share * (z - p) + (1 - mu_x * mu_y) * g, z + g


class GPA(AbstractTransformation):
    r"""Takes the gradients between the parameters and a running average of them.

    $$\begin{aligned}
      z_t &= z_{t-1} + u_t & z_0 &= x_0 = y_0 \\
      x_t &= \mu_x\, x_{t-1} + (1 - \mu_x)\, z_t \\
      y_t &= \mu_y\, x_t + (1 - \mu_y)\, z_t
    \end{aligned}$$

    where $u_t$ is the update of the inner optimizer. The parameters are $y$: compute
    the gradients there. Evaluate with $x$, that is with
    `opt.eval_params(state, params)`. The authors use it to replace DiLoCo with one
    worker: for $H$ inner steps there, use $\mu_x$ = 0.9 for $H$ = 1, 0.974 for 4,
    0.9869 for 8, 0.9934 for 16, 0.9967 for 32, 0.9984 for 64, and 0.9992 for 128.
    Unlike [`eqopt.ScheduleFree`][], it works with a schedule, and with momentum in
    `inner`.

    !!! example

        ```python
        opt = eqopt.GPA(eqopt.AdamW(1e-3, weight_decay=0.1))
        ```

    **Arguments:**

    - `inner`: the optimizer.
    - `mu_x`: $\mu_x \in [0, 1)$, the decay of the average. With 0, the result equals
        `inner`. Defaults to 0.9967.
    - `mu_y`: $\mu_y \in (0, 1]$, the share of the average in the parameters. Defaults
        to 0.7.
    - `sees`: the parameters that `inner` gets, mainly for weight decay: `"z"`, which
        the authors' code decays, too, or `"y"`. Defaults to `"z"`.
    - `state_dtype`: the dtype in which $z$ is stored. Defaults to the dtype of each
        parameter, at least float32.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    ??? cite "Reference"

        ```bibtex
        @article{defazio2025smoothing,
            author = {Defazio, Aaron and Mishchenko, Konstantin and Shi, Hao-Jun Michael
                      and others},
            title = {Smoothing {DiLoCo} with Primal Averaging for Faster Training of
                     {LLM}s},
            journal = {arXiv:2512.17131},
            year = {2025},
        }
        ```
    """

    _loads = "nothing"
    _stores_in_turn = True
    _moves_params = True

    inner: AbstractTransformation
    mu_x: Unit = 0.9967
    # If y did not contain x, x could not be recovered for evaluation.
    mu_y: UpToOne = 0.7
    sees: Place = eqx.field(static=True, default="z")
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> GPAState:
        dtype = jax.dtypes.canonicalize_dtype(compute_dtype(parameters(params)))
        return GPAState(
            mu_y=jnp.array(self.mu_y, dtype),
            inner_state=self.inner.init(params),
            z=wide_copy(params, self.state_dtype),
        )

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the average, $x$.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            of `inner` are ignored: the outermost average counts.
        """
        check_state(self, state)
        return with_average(state, params, state.mu_y)

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, GPAState]:
        check_state(self, state)
        seen = params = required_params("GPA", params)
        if self.sees == "z":
            # A whole model, because `inner` may call the loss.
            seen = eqx.combine(state.z, params, is_leaf=is_leaf)
        new, inner_state = self.inner.update(
            widened(updates), state.inner_state, seen, **extra
        )
        new, z = leafwise(
            gpa,
            new,
            state.z,
            reads={"p": params},
            mu_x=self.mu_x,
            mu_y=self.mu_y,
            fall=fall_of(self.mu_y, state.mu_y),
        )
        mu_y = recorded(self.mu_y, state.mu_y)
        return rounded_like(new, updates), GPAState(mu_y, inner_state, z)
