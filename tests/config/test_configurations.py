"""The configurations on the page, as in other libraries: from YAML to a trained model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqopt
from eqopt import config
from eqopt.schedules import WarmupCosineDecay, WarmupDecay

from ..docs.pages import DOCS, blocks


yaml = pytest.importorskip("yaml")

LEVANTER, NEMO, TORCHTITAN = (
    block.code for block in blocks(DOCS / "api" / "config.md") if block.info == "yaml"
)


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    linear: eqx.nn.Linear


class Model(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jr.split(key, 4)
        self.embedding = eqx.nn.Embedding(8, 4, key=keys[0])
        linears = [eqx.nn.Linear(4, 4, key=key) for key in keys[1:3]]
        self.blocks = [Block(eqx.nn.LayerNorm(4), linear) for linear in linears]
        self.head = eqx.nn.Linear(4, 8, key=keys[3])

    def __call__(self, token):
        x = self.embedding(token)
        for block in self.blocks:
            x = x + jnp.tanh(block.linear(block.norm(x)))
        return self.head(x)


MODEL, TOKENS = Model(jr.key(0)), jnp.arange(8)


def loss_fn(model):
    logits = jax.vmap(model)(TOKENS)
    return eqopt.losses.softmax_cross_entropy_with_integer_labels(logits, TOKENS).mean()


@pytest.mark.parametrize(
    "text", [LEVANTER, NEMO, TORCHTITAN], ids=["Levanter", "NeMo", "torchtitan"]
)
def test_they_train(text):
    opt = config.load(yaml.safe_load(text))
    again = config.load(yaml.safe_load(yaml.safe_dump(config.dump(opt))))
    assert eqx.tree_equal(again, opt, typematch=True) is True

    @eqx.filter_jit
    def train(model, state):
        def body(carry, _):
            model, state = carry
            loss, grads = jax.value_and_grad(of_arrays)(model)
            return opt.step(grads, state, model), loss

        return jax.lax.scan(body, (model, state), length=40)

    arrays, rest = eqx.partition(MODEL, eqx.is_inexact_array)
    of_arrays = lambda arrays: loss_fn(eqx.combine(arrays, rest))
    _, losses = train(arrays, opt.init(arrays))
    assert losses[-1] < losses[0]


def test_they_are_as_written_in_python():
    clip, adamw = config.load(yaml.safe_load(LEVANTER)).transformations
    assert clip == eqopt.ClipByGlobalNorm(1.0)
    rate = WarmupDecay(10_000, 0.01, peak_value=6e-4, alpha=0.1)
    decays = ~(eqopt.groups.glob("**/bias") | eqopt.groups.glob("**/norm/**"))
    assert adamw == eqopt.AdamW(rate, b2=0.95, weight_decay=0.1, mask=decays)
    assert not decays(MODEL).blocks[0].norm.weight and decays(MODEL).head.weight

    rate = WarmupCosineDecay(0.0, 2e-4, 500, 10_000, 2e-5)
    inner = eqopt.AdamW(rate, b2=0.98, weight_decay=0.01, mu_dtype="bfloat16")
    assert config.load(yaml.safe_load(NEMO)) == eqopt.ParamEMA(inner, 0.9999)

    groups = config.load(yaml.safe_load(TORCHTITAN))
    rate = WarmupDecay(10_000, 200, 0.8, shape="linear", peak_value=8e-4)
    assert groups["no_decay"] == eqopt.AdamW(rate, weight_decay=0.0)
    assert groups["embedding"] == eqopt.AdamW(rate, b2=0.95, weight_decay=0.0)
    half = eqopt.AdamW(0.5 * rate, weight_decay=0.1)
    assert eqx.tree_equal(groups["head"], half) is True
    labels = groups.labels(MODEL)
    assert labels.blocks[1].linear.weight == "hidden"
    assert labels.blocks[1].norm.weight == labels.blocks[0].linear.bias == "no_decay"
    assert labels.head.bias == "head" and labels.embedding.weight == "embedding"
