"""Trains a small transformer as large ones are trained, in about a minute.

It reads the reference of the Python language, which comes with Python for its `help`,
byte by byte. Muon trains the hidden matrices and AdamW everything else. In the middle of
the run, it continues from a checkpoint with another optimizer. In the root of the
repository:

    pip install ".[examples]"
    python docs/examples/train_transformer.py
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any


try:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import jax.random as jr
    import numpy as np
    from jaxtyping import Array, Float, Int, PyTree

    import eqopt
    from eqopt import groups
    from eqopt.losses import softmax_cross_entropy_with_integer_labels as cross_entropy
except ImportError as error:
    sys.exit(f'{error}: run `pip install ".[examples]"` in the root of the repository')


VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 128, 64, 4, 3, 64, 16


class Transformer(eqx.Module):
    """All blocks are in one stack: each array in `blocks` has an axis of layers first."""

    embedding: Float[Array, "vocabulary width"]
    positions: Float[Array, "length width"]
    blocks: dict[str, Array]
    gain: Float[Array, " width"]
    head: Float[Array, "width vocabulary"]

    def __init__(self, key: Array):
        keys = iter(jr.split(key, 7))
        draw = lambda *shape, inputs: jr.normal(next(keys), shape) / inputs**0.5
        self.embedding = draw(VOCABULARY, WIDTH, inputs=1)
        self.positions = draw(LENGTH, WIDTH, inputs=1)
        self.blocks = {
            "attention_gain": jnp.ones((LAYERS, WIDTH)),
            "qkv": draw(LAYERS, WIDTH, 3, HEADS, WIDTH // HEADS, inputs=WIDTH),
            "out": draw(LAYERS, HEADS, WIDTH // HEADS, WIDTH, inputs=WIDTH),
            "mlp_gain": jnp.ones((LAYERS, WIDTH)),
            "up": draw(LAYERS, WIDTH, 4 * WIDTH, inputs=WIDTH),
            "down": draw(LAYERS, 4 * WIDTH, WIDTH, inputs=4 * WIDTH),
        }
        self.gain = jnp.ones(WIDTH)
        self.head = draw(WIDTH, VOCABULARY, inputs=WIDTH)

    def __call__(self, tokens: Int[Array, " length"]) -> Float[Array, "length bytes"]:
        x = self.embedding[tokens] + self.positions
        x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, self.blocks)
        return normalized(x) * self.gain @ self.head


def normalized(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def block(x: Array, p: dict[str, Array]) -> Array:
    y = normalized(x) * p["attention_gain"]
    q, k, v = jnp.einsum("td,dchs->cths", y, p["qkv"])
    # With normalized queries and keys, no logit of attention can grow without limit.
    y = jax.nn.dot_product_attention(normalized(q), normalized(k), v, is_causal=True)
    x = x + jnp.einsum("ths,hsd->td", y, p["out"])
    y = normalized(x) * p["mlp_gain"]
    return x + jax.nn.gelu(y @ p["up"]) @ p["down"]


# Muon trains the matrices of the blocks, and AdamW all else: gains, embeddings, the head.
GROUPS = groups.label(
    {
        "rest": groups.path("gain|embedding|positions|head"),
        "matrices": groups.everything,
    }
)
DECAYS = ~groups.path("gain")
# Which axes are the inputs and the outputs of a matrix. All others are stacks.
MATRICES = (
    groups.matrices(groups.path("qkv"), inputs=-4, outputs=(-2, -1))
    | groups.matrices(groups.path("'out'"), inputs=(-3, -2), outputs=-1)
    | groups.stacked(lambda model: model.blocks)
)


def make_optimizer(
    steps: int, matrices: groups.MatrixRules = MATRICES
) -> eqopt.AbstractTransformation:
    """Clipped and skipped steps, with the state of Muon and AdamW in 8 bits."""
    shape = eqopt.schedules.WarmupDecay(
        steps, warmup=0.05, decay=0.3, alpha=0.1, shape="linear"
    )
    by_group = {
        "matrices": eqopt.Muon(
            2e-2 * shape, weight_decay=0.1, weight_dimension_numbers=matrices
        ),
        "rest": eqopt.AdamW(5e-3 * shape, b2=0.95, weight_decay=0.1, mask=DECAYS),
    }
    opt = eqopt.Chain(
        eqopt.ClipByGlobalNorm(1.0),
        eqopt.StoreState(
            eqopt.Partition(by_group, GROUPS), eqopt.storage.BlockwiseQuantized()
        ),
        eqopt.Snapshot("update_norm", eqopt.tree.norm),
    )
    return eqopt.RecordGradNorm(eqopt.SkipStep(opt, eqopt.SigmaRule()))


def mean_loss(model: Transformer, pieces: Int[Array, "n length"]) -> Float[Array, ""]:
    logits = jax.vmap(model)(pieces[:, :-1])
    return jnp.mean(cross_entropy(logits, pieces[:, 1:]))


def train(
    opt: eqopt.AbstractTransformation,
    model: Transformer,
    state: PyTree,
    batches: Iterator[np.ndarray],
    steps: range,
) -> tuple[Transformer, PyTree]:
    @eqx.filter_jit(donate="all-except-first")
    def train_step(batch: Array, model: Transformer, state: PyTree) -> Any:
        loss, grads = eqx.filter_value_and_grad(mean_loss)(model, batch)
        model, state = opt.step(grads, state, model, value=loss)
        return model, state, {"loss": loss, **eqopt.tree.metrics(state)}

    for step in steps:
        model, state, logged = train_step(jnp.asarray(next(batches)), model, state)
        if step % 50 == 0:
            numbers = (f"{name} {float(x):.4g}" for name, x in logged.items())
            print(", ".join(numbers), flush=True)
    return model, state


def batches_of(pieces: np.ndarray) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    while True:
        yield pieces[rng.integers(len(pieces), size=BATCH)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains a small transformer.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--output", type=Path, default=Path("outputs/transformer"))
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)

    text = "\n".join(topics.values()).encode("ascii", "replace")
    size = LENGTH + 1
    pieces = np.frombuffer(text, np.uint8)[: len(text) // size * size].astype(np.int32)
    held_out, pieces = np.split(pieces.reshape(-1, size), [128])
    batches = batches_of(pieces)

    model, opt = Transformer(jr.key(0)), make_optimizer(options.steps)
    print(groups.routes(opt, model))
    half = options.steps // 2
    model, state = train(opt, model, opt.init(model), batches, range(half))
    path = options.output / "half.eqx"
    eqopt.checkpoint.save(path, (model, state))

    # From here on, with an average of the parameters for evaluation.
    new_opt = eqopt.ParamEMA(opt, 0.98)
    model, state = eqopt.checkpoint.load(path, (model, state))
    print(eqopt.tree.migration_plan(new_opt, state, model))
    state = eqopt.tree.migrate(new_opt, state, model)
    model, state = train(new_opt, model, state, batches, range(half, options.steps))
    for name, found in ("last", model), ("mean", new_opt.eval_params(state, model)):
        loss = eqx.filter_jit(mean_loss)(found, jnp.asarray(held_out))
        print(f"{name} parameters: {loss:.3f} nats per byte of text not seen")


if __name__ == "__main__":
    main()
