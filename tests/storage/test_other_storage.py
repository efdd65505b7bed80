"""A state belongs to the storage that made it: another one would do nothing."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

import eqopt
from eqopt.storage import (
    AbstractStateStorage,
    AbstractStored,
    BlockwiseQuantized,
    Cast,
    Float8,
    KahanSummation,
    MasterWeights,
    SplitMasterWeights,
    StochasticRounding,
)


ADAMW = eqopt.AdamW(0.1)
STATES = [
    BlockwiseQuantized(),
    BlockwiseQuantized(4),
    BlockwiseQuantized(block_size=64),
    Float8(),
    Float8(64),
    Cast(),
    Cast(jnp.float16),
    StochasticRounding(),
]
PARAMS = [
    MasterWeights(),
    KahanSummation(),
    SplitMasterWeights(),
    SplitMasterWeights(8),
    StochasticRounding(),
]
PAIRS = [
    *((eqopt.StoreState, *pair) for pair in itertools.product(STATES, STATES)),
    *((eqopt.StoreParams, *pair) for pair in itertools.product(PARAMS, PARAMS)),
]


class Halved(AbstractStored):
    half: Array

    @property
    def like(self):
        return self.half

    def load(self):
        return 2 * self.half

    def store(self, new):
        return Halved((new / 2).astype(self.half.dtype))


class Halves(AbstractStateStorage):
    """A storage of a user."""

    def keep(self, x, slot) -> Halved:
        return Halved(x / 2)


def model_for(wrapper, dtype=jnp.float32):
    return {
        "w": jnp.ones(4096, jnp.bfloat16 if wrapper is eqopt.StoreParams else dtype)
    }


def step(wrapper, new, old, **options):
    """One step, traced as by `jit`, with a state that the storage `old` made."""
    model = model_for(wrapper, **options)
    state = eqx.filter_eval_shape(wrapper(ADAMW, old).init, model)
    return jax.eval_shape(wrapper(ADAMW, new).step, model, state, model)


@pytest.mark.parametrize(("wrapper", "new", "old"), PAIRS, ids=str)
@pytest.mark.costly
def test_each_pair(wrapper, new, old):
    if new is old:
        step(wrapper, new, old)
        return
    with pytest.raises(TypeError) as error:
        step(wrapper, new, old)
    message = str(error.value)
    start = f"{wrapper.__name__}: `storage` is {new}, but {type(old).__name__}"
    assert message.startswith(start)
    assert " in the state, which keeps its form. Pass the storage of that" in message


@pytest.mark.parametrize("storage", [Cast(), BlockwiseQuantized(), Halves()], ids=str)
@pytest.mark.slow
def test_what_fits(storage):
    """Complex numbers, storages of users, and a storage within another one."""
    step(eqopt.StoreState, storage, storage, dtype=jnp.complex64)
    model = {"a": jnp.ones(4096), "b": jnp.ones(5000)}
    inner = eqopt.StoreState(ADAMW, storage)
    groups = eqopt.Partition({"a": inner, "b": ADAMW}, {"a": "a", "b": "b"})
    opt = eqopt.StoreState(groups, Float8())
    opt.step(model, opt.init(model), model)


def test_another_storage_of_users():
    with pytest.raises(TypeError, match=r"`storage` is Halves\(\), but Float8 made"):
        step(eqopt.StoreState, Halves(), Float8())
    with pytest.raises(TypeError, match=r"but another one made the Halved at"):
        step(eqopt.StoreState, Float8(), Halves())
