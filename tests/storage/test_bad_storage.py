"""Bad input: each message names the place, what was found and expected, and the fix."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.storage import (
    BlockwiseQuantized,
    Cast,
    Float8,
    KahanSummation,
    MasterWeights,
    SplitMasterWeights,
)
from eqopt.storage._maps import AbstractMap

from ..laws.rows.behaviour import ALONE


ADAMW, LION = eqopt.AdamW(0.1), eqopt.Lion(0.1)
EVERYTHING = eqopt.groups.everything
FULL = {"a": jnp.ones(300), "b": jnp.ones(3)}
HALF = jax.tree.map(lambda p: p.astype(jnp.bfloat16), FULL)
LARGER = {"a": jnp.ones(400, jnp.bfloat16), "b": HALF["b"]}


def state(storage, inner=ADAMW):
    return eqopt.StoreState(inner, storage, EVERYTHING)


def params(storage, inner=ADAMW):
    return eqopt.StoreParams(inner, storage)


BLOCKS, SPLIT = state(BlockwiseQuantized()), params(SplitMasterWeights())


def init(storage, dtype):
    params(storage).init({"a": jnp.ones(3, dtype), "b": jnp.ones(2, jnp.bfloat16)})


def step(opt, tree, other, like=None):
    """A step of `opt` with a state of `other`."""
    opt.step(tree, other.init(tree if like is None else like), tree)


# What is done, and what the message has to say, in this order.
CASES = {
    "a storage of parameters for a state": (
        lambda: state(KahanSummation()),
        "StoreState: `storage` must be",
        "AbstractStateStorage",
        "KahanSummation",
    ),
    "a storage of states for parameters": (
        lambda: params(BlockwiseQuantized()),
        "StoreParams: `storage` must be",
        "AbstractParamStorage",
        "BlockwiseQuantized",
    ),
    "ZeRO-1 inside": (
        lambda: state(Cast(), eqopt.ZeRO1(ADAMW, mesh=ALONE)).init(FULL),
        "StoreState: `.inner_state[0].mu['a']` in the state of `inner` cannot be stored",
        "because it is inside `ZeRO1`",
        "`eqopt.ZeRO1(eqopt.StoreState(opt, storage), ...)`",
    ),
    **{
        f"{dtype} to split": (
            lambda dtype=dtype: init(SplitMasterWeights(), dtype),
            "SplitMasterWeights",
            f"dtype {dtype}. Cast it with `eqopt.tree.cast(model, jnp.bfloat16)`",
            "or use `eqopt.storage.MasterWeights()`",
        )
        for dtype in ("float16", "complex64")
    },
    "a model in float32": (
        lambda: SPLIT.init(FULL),
        "StoreParams: SplitMasterWeights leaves parameters of dtype float32 unchanged",
        "`eqopt.tree.cast(model, jnp.bfloat16)`",
    ),
    "gradients of half precision": (
        lambda: SPLIT.update(HALF, SPLIT.init(HALF), HALF),
        "StoreParams: the update at `['a']` has dtype bfloat16",
        "Call `step`",
        "`eqopt.tree.cast(grads, jnp.float32)`",
    ),
    "another model": (
        lambda: step(SPLIT, LARGER, SPLIT, HALF),
        "StoreParams: at `['a']`, LowBits(bits=u16[300])",
        "does not belong to bf16[400]",
        "Was the model or the optimizer changed after `init`",
    ),
    "a stored state for a plain optimizer": (
        lambda: step(ADAMW, FULL, BLOCKS),
        "`state` must be a tuple of 3 states",
        "but is a StoreStateState",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.costly
def test_message(case):
    cause, *parts = CASES[case]
    pattern = ".*".join(map(re.escape, parts))
    with pytest.raises((TypeError, ValueError), match=f"(?si).*{pattern}"):
        cause()


RESTORED = {
    "4 bits": (
        BLOCKS,
        state(BlockwiseQuantized(4)),
        "FourthPowerMap.*against DynamicMap",
    ),
    "on the host": (
        eqopt.Offload(BLOCKS, 1),
        eqopt.Offload(state(Float8()), 1),
        "OnHost of Quantized.*FourthPowerMap.*against OnHost.*FloatMap",
    ),
    "hidden bits": (SPLIT, params(SplitMasterWeights(8)), "uint16.*against uint8"),
}


@pytest.mark.parametrize("case", RESTORED)
@pytest.mark.costly
def test_restored_another_way(case, tmp_path):
    saved, like, expected = RESTORED[case]
    model = HALF if isinstance(saved, eqopt.StoreParams) else FULL
    path = tmp_path / "run.eqx"
    eqopt.checkpoint.save(path, saved.init(model))
    message = f"(?s){expected}.*Create `like` with.*with the same storage of state"
    with pytest.raises(eqopt.checkpoint.CheckpointError, match=message):
        eqopt.checkpoint.load(path, like.init(model))
    again = eqopt.checkpoint.load(path, saved.init(model))
    assert jax.tree.structure(again) == jax.tree.structure(saved.init(model))


def test_codes_in_an_older_order(tmp_path, monkeypatch):
    """Until November 2026, codes of 4 bits that shared a byte were no neighbours."""
    opt, path = state(BlockwiseQuantized(4)), tmp_path / "run.eqx"
    with monkeypatch.context() as patch:
        patch.setattr(AbstractMap, "layout_name", property(repr))
        eqopt.checkpoint.save(path, opt.init(FULL))
    expected = "DynamicMap.* against DynamicMap.*, neighbours in a byte"
    with pytest.raises(eqopt.checkpoint.CheckpointError, match=f"(?s){expected}"):
        eqopt.checkpoint.load(path, opt.init(FULL))


def test_small_sizes_and_other_leaves():
    model = {"none": jnp.ones((0, 3)), "one": jnp.ones(1), "n": jnp.arange(3), "f": abs}
    grads = {"none": jnp.ones((0, 3)), "one": jnp.ones(1), "n": None, "f": None}
    opt = state(BlockwiseQuantized(4))
    new, _ = opt.step(grads, opt.init(model), model)
    plain, _ = ADAMW.step(grads, ADAMW.init(model), model)
    assert new["none"].shape == (0, 3) and new["f"] is abs
    np.testing.assert_array_equal(new["n"], model["n"])
    np.testing.assert_allclose(new["one"], plain["one"], 1e-6)


@pytest.mark.slow
def test_complex_state():
    model = {"a": jnp.linspace(1, 2, 300).astype(jnp.complex64) * (1 + 2j)}
    opt, state = BLOCKS, BLOCKS.init(model)
    new, state = opt.step(model, state, model)
    plain, other = ADAMW.step(model, ADAMW.init(model), model)
    np.testing.assert_allclose(new["a"], plain["a"], 1e-6)
    found = eqopt.tree.get(state, "mu")["a"]
    assert found.dtype == jnp.complex64 and found.real.codes.dtype == jnp.uint8
    error = np.abs(found.load() - other[0].mu["a"])
    assert error.max() < 0.03 * np.abs(other[0].mu["a"]).max()


@pytest.mark.parametrize(
    "storage", [KahanSummation(), pytest.param(MasterWeights(), marks=pytest.mark.slow)]
)
def test_complex_parameters(storage):
    """They have full precision, and stay as they are."""
    model = {"a": jnp.ones(3, jnp.complex64) * (1 + 2j), "b": jnp.ones(2, jnp.bfloat16)}
    opt = params(storage)
    state = opt.init(model)
    assert state.hidden["a"] is None and state.hidden["b"] is not None
    new, state = opt.step(model, state, model)
    plain, _ = ADAMW.step(model, ADAMW.init(model), model)
    np.testing.assert_allclose(new["a"], plain["a"], 1e-6)
    assert opt.full_params(state, new)["a"].dtype == jnp.complex64
