"""A training script as a user writes it. Type checkers read it in their strict modes.

The comments for pyright are about JAX and Equinox.
"""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key

import eqopt


class DampedState(eqx.Module):
    trace: eqopt.Updates


@eqopt.equation(elementwise=True)
def heavy_ball(g: Array, trace: Array, *, decay: Array) -> tuple[Array, Array]:
    trace = decay * trace + g
    return trace, trace


class HeavyBall(eqopt.AbstractLeafwise):
    decay: eqopt.Unit = 0.9

    def init(self, params: eqopt.Params) -> DampedState:
        return DampedState(trace=eqopt.tree.zeros_like(params))

    def leafwise(
        self, state: eqopt.State, params: eqopt.Params | None = None, **extra: Any
    ) -> eqopt.Leafwise:
        return eqopt.Leafwise(heavy_ball, state)


class Damped(eqopt.AbstractTransformation):
    decay: float | Array = 0.9

    def init(self, params: eqopt.Params) -> DampedState:
        return DampedState(trace=eqopt.tree.zeros_like(params))

    def update(
        self,
        updates: eqopt.Updates,
        state: Any,
        params: eqopt.Params | None = None,
        **extra: Any,
    ) -> tuple[eqopt.Updates, Any]:
        def damp(m: Array, g: Array) -> Array:
            return self.decay * m + g

        trace = jax.tree.map(damp, state.trace, updates)
        return trace, DampedState(trace)


class Heavy(eqopt.AbstractOptimizer):
    learning_rate: eqopt.ScalarOrSchedule
    decay: eqopt.Unit = 0.9
    weight_decay: eqopt.ZeroOrMore = 0.0
    mask: eqopt.Mask | None = None

    @property
    def chain(self) -> eqopt.Chain:
        return eqopt.Chain(
            self.part(Damped),
            self.part(HeavyBall),
            eqopt.AddDecayedWeights(self.weight_decay, self.mask),
            eqopt.ScaleByLearningRate(self.learning_rate),
        )


class Model(eqx.Module):
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key: Key[Array, ""]) -> None:
        first, last = jax.random.split(key)
        self.hidden = eqx.nn.Linear(2, 8, key=first)
        self.last = eqx.nn.Linear(8, 1, key=last)

    def __call__(self, x: Array) -> Array:
        return self.last(jax.nn.tanh(self.hidden(x)))


def loss_fn(model: Model, x: Array, y: Array) -> Float[Array, ""]:
    return eqopt.losses.squared_error(jax.vmap(model)(x), y).mean()


def labels(params: Model) -> Any:
    def label(p: Array) -> str:
        return "matrix" if p.ndim > 1 else "other"

    return jax.tree.map(label, params)


schedule = eqopt.schedules.WarmupCosineDecay(0.0, 1e-3, 10, 100)
groups = {"matrix": Heavy(schedule), "other": eqopt.AdamW(schedule, b1=0.8)}
opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Partition(groups, labels))


@eqx.filter_jit(donate="all")
def train_step(
    model: Model, state: eqopt.State, x: Array, y: Array
) -> tuple[Model, eqopt.State, Array]:
    value_and_grad: Any = eqx.filter_value_and_grad  # pyright: ignore
    loss, grads = value_and_grad(loss_fn)(model, x, y)
    model, state = opt.step(grads, state, model)
    return model, state, loss


def main() -> None:
    model = Model(jax.random.key(0))
    state = opt.init(model)
    for i in range(3):
        x, y = jax.random.normal(jax.random.key(i), (2, 4, 2))
        model, state, loss = train_step(model, state, x, y[:, :1])
        print(loss, eqopt.tree.step_count(state))
    averaged = opt.eval_params(state, model)
    print(averaged.last.bias, len(opt), opt[0], opt[1:].transformations)
    print([type(part).__name__ for part in eqopt.tree.set(opt, max_norm=2.0)])
    eqopt.checkpoint.save("run.eqx", (model, state))
    model, state = eqopt.checkpoint.load("run.eqx", (model, state))
    print(model.last.bias)


if __name__ == "__main__":
    main()
