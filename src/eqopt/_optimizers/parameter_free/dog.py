"""Distance over gradients: step sizes from the distance that parameters have moved."""

from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._arguments.checks import check_fields, check_interval
from ..._arguments.extra import required_params
from ..._arguments.fields import static_choice
from ..._combinators.chain import Chain
from ..._core import (
    AbstractOptimizer,
    AbstractTransformation,
    equation,
    leafwise,
    sum_over_leaves,
)
from ..._transforms.normalize import ratio
from ..._transforms.scale import ScaleByLearningRate, scale
from ..._trees.states import check_state
from ..._types import (
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    Positive,
    RealScalarLike,
    Scalar,
    ScalarOrSchedule,
    State,
    Updates,
    ZeroOrMore,
)
from ...numerics._numerics import abs_sq, safe_sqrt
from ...tree import norm
from ...tree._like import copy, scalar
from ..recipe import AbstractRecipe, AddDecayedWeights


Kind: TypeAlias = Literal["heuristic", "distance", "learning_rate"]


@equation
def squares(g: Leaf, init_params: Leaf, p: Leaf) -> tuple[Scalar, Scalar]:
    return abs_sq(p - init_params).sum(), abs_sq(g).sum()


class DoGState(eqx.Module):
    """The distance that the parameters have moved, and sums of gradient norms.

    **Attributes:**

    - `is_init_step`: whether no step has been taken yet, a 0-d bool array.
    - `init_params`: the parameters passed to `init`.
    - `max_dist`: the largest distance from them so far, a 0-d array.
    - `sum_sq_norm_grads`: the sum of the squared norms of all gradients, a 0-d array.
    """

    is_init_step: Bool[Array, ""]
    init_params: Params
    max_dist: Float[Array, ""]
    sum_sq_norm_grads: Float[Array, ""]


class ScaleByDoG(AbstractTransformation):
    """[`eqopt.DoG`][] without the learning rate and the decay."""

    _loads = "nothing"

    kind: Kind = eqx.field(static=True)
    init_step: Positive
    eps: ZeroOrMore

    def init(self, params: Params) -> DoGState:
        return DoGState(
            is_init_step=jnp.ones((), bool),
            init_params=copy(params),
            max_dist=scalar(_INIT_DIST[self.kind](self.init_step, params), params),
            sum_sq_norm_grads=scalar(0, params),
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        params = required_params(params)
        now = lambda value: jnp.asarray(value, state.max_dist.dtype)
        sq_dist, sq_norm = map(now, _squares(updates, state.init_params, params))
        max_dist = jnp.maximum(state.max_dist, safe_sqrt(sq_dist))
        total = state.sum_sq_norm_grads + sq_norm
        step_size = ratio(max_dist, safe_sqrt(total + now(self.eps)))
        if self.kind == "learning_rate":
            # Also later if nothing has moved, as a distance of 0 stays 0.
            is_first = state.is_init_step | (max_dist == 0)
            step_size = jnp.where(is_first, now(self.init_step), step_size)
        step_size = jnp.where(jnp.isinf(total), 0, step_size)
        # No sum of squares is negative. A constant would be copied: see `recorded`.
        is_init_step = state.is_init_step & (total < 0)
        updates = leafwise(scale, updates, step_size=step_size)
        return updates, DoGState(is_init_step, state.init_params, max_dist, total)


def _relative(alpha: Hyperparameter, params: Params) -> Scalar:
    size = 1 + norm(params)
    return jnp.asarray(alpha, size.dtype) * size


_INIT_DIST = {
    "heuristic": _relative,
    "distance": lambda distance, params: distance,
    "learning_rate": lambda learning_rate, params: 0,
}


class DoG(AbstractOptimizer):
    r"""Distance over gradients: SGD that finds its learning rate by itself.

    !!! abstract "One step"

        $$\begin{aligned}
          \bar r_t &= \max\big(\bar r_{t-1},\, \|p_{t-1} - p_0\|_2\big) &
          G_t &= G_{t-1} + \|g_t\|_2^2 &
          p_t &= p_{t-1} - \eta_t\, \frac{\bar r_t}{\sqrt{G_t + \varepsilon}}\, g_t
        \end{aligned}$$

        with norms over all leaves, $\bar r_0$ from `init_step`, and
        $g_t + \lambda p_{t-1}$ instead of $g_t$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $G_0 = 0$. $\eta$ is `learning_rate` (1.0), $\varepsilon$ is `eps` (1e-8),
        $\lambda$ is `weight_decay` (0.0).

    The authors evaluate with an average of the parameters. In float32, the square of a
    gradient norm above 1.8e19 overflows: this step and all later ones are zero.

    !!! example

        ```python
        opt = eqopt.DoG()
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Leave it at 1.
        Defaults to 1.0.
    - `init_step`: the first step, as a pair of a name and a positive number.
        `("heuristic", α)` means $\bar r_0 = \alpha\, (1 + \|p_0\|_2)$: the authors use
        $10^{-6}$, or $10^{-4}$ for models with batch normalization. `("distance", r)`
        means $\bar r_0 = r$. `("learning_rate", s)` means $\bar r_0 = 0$, with $s$
        instead of the fraction until parameters have moved. Defaults to
        `("heuristic", 1e-6)`.
    - `eps`: $\varepsilon \ge 0$. Defaults to 1e-8.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. As in the authors'
        code, it is an $L^2$ penalty: $g_t$ includes $\lambda p_{t-1}$. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, if `init_step` has another
    name, and in `update` if `params` is `None`.

    **When to use it:** instead of SGD. The steps do not shrink by themselves, so
    evaluate with an average of the parameters.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{ivgi2023dog,
            author = {Ivgi, Maor and Hinder, Oliver and Carmon, Yair},
            title = {{DoG} is {SGD}'s Best Friend: A Parameter-Free Dynamic Step Size
                     Schedule},
            booktitle = {International Conference on Machine Learning},
            year = {2023},
        }
        ```
    """

    learning_rate: ScalarOrSchedule = 1.0
    init_step: tuple[Kind, RealScalarLike] = ("heuristic", 1e-6)
    eps: ZeroOrMore = 1e-8
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)

    @property
    def chain(self) -> Chain:
        return Chain(
            self.part(AddDecayedWeights),
            ScaleByDoG(*self.init_step, self.eps),
            self.part(ScaleByLearningRate),
        )


class DoWGState(eqx.Module):
    """The distance that the parameters have moved, and sums of gradient norms.

    **Attributes:**

    - `init_params`: the parameters passed to `init`.
    - `weighted_sq_norm_grads`: the weighted sum of the squared norms of all gradients, a
        0-d array.
    - `estim_sq_dist`: the largest squared distance from `init_params` so far, a 0-d
        array.
    """

    init_params: Params
    weighted_sq_norm_grads: Float[Array, ""]
    estim_sq_dist: Float[Array, ""]


class ScaleByDoWG(AbstractTransformation):
    """[`eqopt.DoWG`][] without the learning rate and the decay."""

    _loads = "nothing"

    init_estim_sq_dist: Positive | None
    eps: ZeroOrMore

    def __check_init__(self) -> None:
        if self.init_estim_sq_dist is None:
            check_fields(self)
            check_interval("eps", self.eps, 0, includes_low=False)

    def init(self, params: Params) -> DoWGState:
        first = self.init_estim_sq_dist
        return DoWGState(
            init_params=copy(params),
            weighted_sq_norm_grads=scalar(0, params),
            estim_sq_dist=scalar(self.eps if first is None else first, params),
        )

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        params = required_params(params)
        now = lambda value: jnp.asarray(value, state.estim_sq_dist.dtype)
        sq_dist, sq_norm = map(now, _squares(updates, state.init_params, params))
        sq_dist = jnp.maximum(state.estim_sq_dist, sq_dist)
        total = state.weighted_sq_norm_grads + sq_dist * sq_norm
        step_size = ratio(sq_dist, safe_sqrt(total) + now(self.eps))
        updates = leafwise(scale, updates, step_size=step_size)
        return updates, DoWGState(state.init_params, total, sq_dist)


class DoWG(AbstractRecipe):
    r"""Distance over weighted gradients: DoG with more weight on later gradients.

    !!! abstract "One step"

        $$\begin{aligned}
          \bar r_t^2 &= \max\big(\bar r_{t-1}^2,\, \|p_{t-1} - p_0\|_2^2\big) &
          v_t &= v_{t-1} + \bar r_t^2\, \|g_t\|_2^2 &
          p_t &= p_{t-1} - \eta_t\, \frac{\bar r_t^2}{\sqrt{v_t} + \varepsilon}\, g_t
        \end{aligned}$$

        with norms over all leaves, and $g_t + \lambda p_{t-1}$ instead of $g_t$.

        $g_t$ is the gradient, $p_t$ the parameter after step $t$. At the start,
        $v_0 = 0$. $\eta$ is `learning_rate` (1.0), $\bar r_0^2$ is
        `init_estim_sq_dist`, $\varepsilon$ is `eps` (0.0001), $\lambda$ is
        `weight_decay` (0.0).

    !!! example

        ```python
        opt = eqopt.DoWG()
        state = opt.init(model)
        model, state = opt.step(grads, state, model)
        ```

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule. Leave it at 1.
        Defaults to 1.0.
    - `init_estim_sq_dist`: $\bar r_0^2 > 0$. Defaults to `None`, which means
        $\varepsilon$.
    - `eps`: $\varepsilon \ge 0$. It must be positive if it is also $\bar r_0^2$.
        Defaults to 0.0001.
    - `weight_decay`: $\lambda$, a number, a 0-d array or a schedule. It is an $L^2$
        penalty: $g_t$ includes $\lambda p_{t-1}$. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that returns one. Defaults to
        `None`, which means all parameters.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `params`
    is `None`.

    **When to use it:** if DoG is too slow: old gradients count for less, and the steps
    grow faster.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{khaled2023dowg,
            author = {Khaled, Ahmed and Mishchenko, Konstantin and Jin, Chi},
            title = {{DoWG} Unleashed: An Efficient Universal Parameter-Free Gradient
                     Descent Method},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2023},
        }
        ```
    """

    learning_rate: ScalarOrSchedule = 1.0
    init_estim_sq_dist: Positive | None = None
    eps: ZeroOrMore = 1e-4
    weight_decay: ScalarOrSchedule = 0.0
    mask: Mask | None = static_choice(default=None)

    _parts = AddDecayedWeights, ScaleByDoWG, ScaleByLearningRate


def _squares(updates, init_params, params) -> tuple[Scalar, ...]:
    """The squared distance from the first parameters, and the squared gradient norm."""
    return sum_over_leaves(squares, updates, {"init_params": init_params, "p": params})
