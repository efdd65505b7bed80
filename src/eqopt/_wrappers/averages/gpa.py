"""Generalized primal averaging: gradients between the iterate and its average."""

import dataclasses
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import equinox as eqx
from jaxtyping import Array, DTypeLike, Float, Inexact

from ..._checks import check_choice, check_range, check_state, required_params
from ..._equations import equation
from ..._pipeline import Leafwise, Pipeline
from ..._transformation import AbstractFused, AbstractTransformation
from ..._types import Hyperparameter, Params, State
from ...tree._like import copy
from .beside import put_beside
from .schedule_free import average


Place: TypeAlias = Literal["z", "y"]


class GPAState(eqx.Module):
    """Where the inner optimizer is.

    **Attributes:**

    - `inner_state`: the inner state.
    - `z`: where it is, a tree like the parameters.
    """

    inner_state: State
    z: Params


@equation
def gpa(
    g: Inexact[Array, "*leaf"],
    z: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    *,
    mu_x: Float[Array, ""],
    mu_y: Float[Array, ""],
) -> tuple[Inexact[Array, "*leaf"], Inexact[Array, "*leaf"]]:
    # Solved for the parameters, so that the average is not stored.
    return (1 - mu_x) * (z - p) + (1 - mu_x * mu_y) * g, z + g


class GPA(AbstractFused):
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
    - `mu_x`: $\mu_x \in [0, 1)$, the decay of the average. With 0 there is only `inner`.
    - `mu_y`: $\mu_y \in (0, 1]$, the part of the average in the parameters.
    - `sees`: which parameters `inner` is shown, for weight decay above all: `"z"`, as the
        authors do, or `"y"`. If it looks at them, `"z"` costs a copy of the updates while
        it steps.
    - `state_dtype`: the dtype in which $z$ is stored. Defaults to the dtype of each
        parameter.

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

    inner: AbstractTransformation
    mu_x: Hyperparameter = 0.9967
    mu_y: Hyperparameter = 0.7
    sees: Place = eqx.field(static=True, default="z")
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_range(self, "mu_x", 0, 1)
        # Without a part of x in y there would be no x to evaluate with.
        check_range(self, "mu_y", 0, 1, includes_low=False, includes_high=True)
        check_choice(self, "sees", get_args(Place))

    def init(self, params: Params) -> GPAState:
        return GPAState(self.inner.init(params), copy(params, self.state_dtype))

    def eval_params(self, state: State, params: Params) -> Params:
        """The model with the average, $x$.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. What `inner` has to evaluate
            with is not taken: the outermost average counts.
        """
        check_state(self, state)
        reads, shared = {"z": state.z}, {"b1": self.mu_y}
        return put_beside(state, params, Leafwise(average, shared=shared, reads=reads))

    def _feed(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        check_state(self, state)
        params = required_params("GPA", pipeline.params)
        if self.sees == "z":
            if pipeline.reads_params:
                pipeline.flush()
            pipeline.params = state.z
        inner = self.inner._feed(pipeline, state.inner_state)
        if self.sees == "z":
            if pipeline.reads_params:
                pipeline.flush()
            pipeline.params = params
        shared = {"mu_x": self.mu_x, "mu_y": self.mu_y}
        new = GPAState(inner_state=None, z=state.z)
        outer = pipeline.push("GPA", Leafwise(gpa, new, shared, last=("z",)))
        return lambda: dataclasses.replace(outer(), inner_state=inner())
