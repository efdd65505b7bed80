"""Transformations that break a law each, and the sentences about them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import eqopt


# Each law, what breaks it, and the sentence.
BROKEN: list[tuple[str, eqopt.AbstractTransformation, str]] = []


def breaks(law, sentence):
    def register(cls):
        BROKEN.append((law, cls(), sentence))
        return cls

    return register


def parameters(tree):
    return eqx.filter(tree, eqx.is_inexact_array)


class Stateless(eqopt.AbstractTransformation):
    def init(self, params) -> Any:
        return None

    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(self.of_leaf, updates), None

    def of_leaf(self, g):
        return g


class Counting(eqopt.AbstractTransformation):
    def init(self, params) -> Any:
        return {"count": jnp.zeros((), jnp.int32)}

    def update(self, updates, state, params=None, **extra):
        return updates, {"count": self.after(state["count"])}

    def after(self, count):
        return count + 1


class Momentum(eqopt.AbstractTransformation):
    decay: float | Array = 0.9

    def init(self, params):
        return eqopt.tree.zeros_like(params)

    def update(self, updates, state, params=None, **extra):
        moved = lambda m, g: (self.decay * m + g.astype(m.dtype)).astype(m.dtype)
        state = jax.tree.map(moved, state, updates)
        return eqopt.tree.cast_like(state, updates), state


@breaks("updates", "has float16[3,2] at `.layer.weight`, expected float32[3,2];")
class OtherDtype(Stateless):
    def of_leaf(self, g):
        return g.astype(jnp.float16)


@breaks("updates", "expected no error; make `update` and `step` work with this model")
class OtherStructure(eqopt.AbstractTransformation):
    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        return jax.tree.leaves(updates), state


@breaks("state", "has float32[] at `['count']`, expected int32[] as in the state of")
class FloatCount(Counting):
    def after(self, count):
        return count.astype(jnp.float32) + 1


@breaks("state", "has int32[] with a weak type at `['count']`, expected int32[] as in")
class WeakCount(Counting):
    def after(self, count):
        return jnp.asarray(1)


@breaks("abstract_init", "it raised ConcretizationTypeError (Abstract tracer value")
class ConcreteInit(Counting):
    def init(self, params):
        return {"count": jnp.asarray(int(eqopt.tree.norm(params)))}


@breaks("eval_params", "`eval_params` returned has None at `.function`, expected")
class OnlyArrays(Stateless):
    def eval_params(self, state, params):
        return eqx.filter(params, eqx.is_array)


@breaks("extra_arguments", "got an unexpected keyword argument 'value'")
class NoExtra(eqopt.AbstractTransformation):
    def init(self, params):
        return None

    def update(self, updates, state, params=None):  # pyright: ignore
        return updates, None


@breaks("untrained", "the model after step 0 has 1 at `.steps[0]`, expected 0; make")
class AllArrays(Stateless):
    def step(self, grads, state, params, **extra):
        add = lambda p: p + jnp.ones_like(p) if eqx.is_array(p) else p
        return jax.tree.map(add, params), None


@breaks("partly_trained", "the update has float32[3] at `.layer.bias`, expected None")
class DecaysAll(Stateless):
    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda p: -p / 10, parameters(params)), None


@breaks("partly_trained", "has another value at `.layer.bias` after a step")
class StepDecaysAll(Stateless):
    def step(self, grads, state, params, **extra):
        decayed = jax.tree.map(lambda p: p / 10, parameters(params))
        return eqx.combine(decayed, params), None


@breaks("half_precision", "has bfloat16[3,2] at `.layer.weight`, expected float32")
class DtypeOfGradients(Momentum):
    def update(self, updates, state, params=None, **extra):
        moved = lambda m, g: m.astype(g.dtype) + g
        state = jax.tree.map(moved, state, updates)
        return state, state


@breaks("half_precision", "in float16, the update of step 0 has ")
class Overflows(Stateless):
    def of_leaf(self, g):
        return g * 6e4 * 6e4 / 6e4 / 6e4


@breaks("numpy_arrays", "has nan at `.layer.weight[0][0]`, expected 0.48")
class KeepsNumpy(Momentum):
    def init(self, params):
        keep = lambda p: p if isinstance(p, np.ndarray) else jnp.copy(p)
        return jax.tree.map(keep, parameters(params))


@breaks("step", "after `step` 0, the model has 0.83314")
class OtherStep(Stateless):
    def step(self, grads, state, params, **extra):
        updates = jax.tree.map(lambda g: 1.01 * g, grads)
        return eqopt.apply_updates(params, updates), None


@breaks("zero_gradients", "has nan at `.layer.weight[0][0]`, expected a finite number")
class OwnNorm(Stateless):
    def of_leaf(self, g):
        return g / jnp.sqrt(jnp.sum(g**2))


@breaks("huge_and_tiny_gradients", "has inf at `.layer.weight[0][0]`, expected")
class Squares(Stateless):
    def of_leaf(self, g):
        return g**2 / (jnp.abs(g) + 1e-8)


@breaks("descent", "none of 8 steps lowered a convex quadratic, expected one; return")
class Uphill(Stateless):
    learning_rate: float | Array = 0.1

    def of_leaf(self, g):
        return self.learning_rate * g


@breaks("effects", "another value of the state at `.mu` changed nothing in 8 steps,")
class UnusedMomentum(eqopt.AbstractTransformation):
    def init(self, params):
        return MomentumState(eqopt.tree.zeros_like(params))

    def update(self, updates, state, params=None, **extra):
        return updates, MomentumState(jax.tree.map(jnp.add, state.mu, updates))


class MomentumState(eqx.Module):
    mu: Any


@breaks("effects", "another value of `.decay` changed nothing in 8 steps, expected")
class UnusedDecay(Stateless):
    decay: float | Array = 0.9


CALLS = []


@breaks("jit", "without `eqx.filter_jit`, after step 0, the model has ")
class CountsInPython(Stateless):
    def of_leaf(self, g):
        CALLS.append(g.shape)
        return len(CALLS) * g


@breaks("inputs", "the state that it got has 1 at `['count']`, expected 0; do not")
class WritesIntoState(Counting):
    def update(self, updates, state, params=None, **extra):
        state["count"] = state["count"] + 1
        return updates, state


@breaks("ordinary_fields", "the static field `.decay` is 0.9, expected an ordinary")
class StaticDecay(Stateless):
    decay: float = eqx.field(static=True, default=0.9)


@breaks("hyperparameters", "it raised ConcretizationTypeError (Abstract tracer value")
@breaks("populations", "it raised ConcretizationTypeError (Abstract tracer value")
class ConvertsDecay(Stateless):
    decay: float | Array = 0.9

    def of_leaf(self, g):
        return float(self.decay) * g


@breaks("hyperparameters", "with arrays as hyperparameters, the model has 0.79513")
class DecidesByType(Stateless):
    decay: float | Array = 0.9

    def of_leaf(self, g):
        return g if isinstance(self.decay, float) else self.decay * g


@breaks("derivatives", "with respect to `.decay` is nan, expected a finite number")
class NoSlope(Stateless):
    decay: float | Array = 0.9

    def of_leaf(self, g):
        return g * jnp.sqrt(jnp.sum(g**2) * self.decay)


@breaks("vmap", "it raised NotImplementedError (vmap is only supported for the")
class CallsPython(Stateless):
    def of_leaf(self, g):
        shape = jax.ShapeDtypeStruct(g.shape, g.dtype)
        return jax.pure_callback(lambda g: np.asarray(g), shape, g)


@breaks("scan", "it raised TypeError (scan body function carry input and carry output")
class FloatCountInScan(FloatCount):
    pass


@breaks("donation", "shares its buffer with the model at `.layer.weight`,")
class Aliases(Momentum):
    def init(self, params):
        return parameters(params)


class StaticNorm(eqx.Module):
    norm: float = eqx.field(static=True)


@breaks("resume", "has 0.8895717 at `.layer.weight[0][0]`, expected 0.0155581")
class RemembersInPython(Stateless):
    def init(self, params):
        return StaticNorm(float(eqopt.tree.norm(params)))

    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda g: state.norm * g, updates), state


@breaks("other_model", "has float32[1,2] at `.layer.weight`, expected float32[3,2]")
class Broadcasts(Momentum):
    pass


class Model(eqx.Module):
    """A matrix, a vector, and what is not trained."""

    layer: eqx.nn.Linear
    steps: Array
    function: Any

    def __init__(self):
        self.layer = eqx.nn.Linear(2, 3, key=jax.random.key(0))
        self.steps = jnp.arange(2)
        self.function = jnp.tanh
