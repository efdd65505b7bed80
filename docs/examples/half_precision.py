"""Trains a language model of bytes in half the memory, in about a minute.

The text is the reference of the Python language, which comes with Python for its `help`,
so nothing is downloaded. In the root of the repository, install what this file needs and
run it:

    pip install ".[examples]"
    python docs/examples/half_precision.py

It trains the same transformer three times: in float32; in bfloat16 with split master
weights and AdamW's moments in 8 bits; and in bfloat16 alone, moments included. It
prints the bytes per parameter and the loss on text that was not seen, and saves a
picture. See all options with `--help`.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple


try:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jaxtyping import Array, Float, Int
    from matplotlib.figure import Figure
    from tqdm import tqdm

    import eqopt
    from eqopt import storage
except ImportError as error:
    sys.exit(f'{error}: run `pip install ".[examples]"` in the root of the repository')


WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 64
BATCH = 16


class Block(eqx.Module):
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key: Array):
        key1, key2 = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)]
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=key1)
        self.mlp = eqx.nn.MLP(
            WIDTH, WIDTH, 4 * WIDTH, depth=1, activation=jax.nn.gelu, key=key2
        )

    def __call__(self, x: Float[Array, "length width"]) -> Float[Array, "length width"]:
        y = jax.vmap(self.norms[0])(x)
        past = jnp.tril(jnp.ones((len(x), len(x)), bool))
        x = x + self.attention(y, y, y, past)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    positions: Float[Array, "length width"]
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key: Array):
        key1, key2, key3, *keys = jax.random.split(key, 3 + LAYERS)
        self.embedding = eqx.nn.Embedding(128, WIDTH, key=key1)
        self.positions = 0.02 * jax.random.normal(key2, (LENGTH, WIDTH))
        self.blocks = [Block(key) for key in keys]
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.head = eqx.nn.Linear(WIDTH, 128, key=key3)

    def __call__(self, codes: Int[Array, " length"]) -> Float[Array, "length 128"]:
        x = jax.vmap(self.embedding)(codes) + self.positions
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def loss_fn(model: Transformer, codes: Int[Array, "batch 65"]) -> Float[Array, ""]:
    """In bits per byte. The forward pass has the dtype of the model, the loss has not."""
    logits = jax.vmap(model)(codes[:, :-1]).astype(jnp.float32)
    log_p = jax.nn.log_softmax(logits)
    of_next = jnp.take_along_axis(log_p, codes[:, 1:, None], axis=-1)
    return -jnp.mean(of_next) / jnp.log(2.0)


class Text(NamedTuple):
    seen: np.ndarray  # (bytes,)
    held_out: np.ndarray  # (pieces, LENGTH + 1)


def load_text() -> Text:
    """One piece in ten is held out."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    size = LENGTH + 1
    pieces = codes[: len(codes) // size * size].reshape(-1, size)
    return Text(np.delete(pieces, np.s_[::10], axis=0).ravel(), pieces[::10])


def draw_batch(text: Text, seed: int, step: int) -> np.ndarray:
    size = LENGTH + 1
    rng = np.random.default_rng((seed, step))
    starts = rng.integers(len(text.seen) - size, size=(BATCH, 1))
    return text.seen[starts + np.arange(size)]


def in_float32(opt: eqopt.AbstractTransformation) -> eqopt.AbstractTransformation:
    return opt


def in_fewer_bytes(opt: eqopt.AbstractTransformation) -> eqopt.AbstractTransformation:
    opt = eqopt.StoreState(opt, storage.BlockwiseQuantized())
    return eqopt.StoreParams(opt, storage.SplitMasterWeights())


def in_bfloat16(opt: eqopt.AdamW) -> eqopt.AbstractTransformation:
    """By default, the moments of a bfloat16 model are in float32."""
    return dataclasses.replace(opt, mu_dtype=jnp.bfloat16, nu_dtype=jnp.bfloat16)


# By name: the dtype of the model, and what is made of the optimizer.
WAYS: dict[str, tuple[Any, Any]] = {
    "float32": (jnp.float32, in_float32),
    "bfloat16, split master weights, 8-bit state": (jnp.bfloat16, in_fewer_bytes),
    "bfloat16 alone": (jnp.bfloat16, in_bfloat16),
}


class Run(NamedTuple):
    bytes: dict[str, float]  # per parameter
    losses: list[float]
    held_out: float


def train_model(name: str, text: Text, options: argparse.Namespace) -> Run:
    dtype, wrap = WAYS[name]
    schedule = eqopt.schedules.WarmupCosineDecay(
        init_value=0.0,
        peak_value=options.learning_rate,
        warmup_steps=options.steps // 10,
        decay_steps=options.steps,
    )
    opt = wrap(eqopt.AdamW(schedule, weight_decay=0.01))
    model = eqopt.tree.cast(Transformer(jax.random.key(options.seed)), dtype)
    state = opt.init(model)

    @eqx.filter_jit(donate="all-except-first")
    def train_step(batch, model, state):
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model, batch)
        model, state = opt.step(grads, state, model)
        return model, state, loss

    weights = per_parameter(model, model)
    sizes = {"weights": weights, "gradients": weights}
    sizes["state"] = per_parameter(state, model)
    losses = []
    for step in tqdm(range(options.steps), disable=options.quiet, desc=name):
        batch = draw_batch(text, options.seed, step)
        model, state, loss = train_step(batch, model, state)
        losses.append(loss)
    full = eqopt.tree.cast(opt.full_params(state, model), jnp.float32)
    held_out = float(eqx.filter_jit(loss_fn)(full, jnp.asarray(text.held_out)))
    return Run(sizes, [float(loss) for loss in losses], held_out)


def per_parameter(tree: Any, model: Transformer) -> float:
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return sum(x.nbytes for x in arrays) / eqopt.tree.size(model)


COLOURS = ["#1f4e9c", "#d95f02", "#555555"]
SHADES = {"weights": 1.0, "gradients": 0.6, "state": 0.3}


def save_picture(runs: dict[str, Run], path: Path) -> None:
    """Losses, how far they are from the first run on the same batches, and bytes."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 3, 2.6))
    first, *_ = runs.values()
    for (name, run), colour in zip(runs.items(), COLOURS, strict=True):
        label = f"{name}: {run.held_out:.3f}"
        if run is first:
            left.plot(*smoothed(run.losses), color=colour, linewidth=1.5)
        apart = np.subtract(run.losses, first.losses)
        middle.plot(*smoothed(apart), color=colour, linewidth=1.5, label=label)
        middle.plot(
            1.03 * len(apart), run.held_out - first.held_out, "o", color=colour, ms=4
        )
    left.set_title("float32: bits per byte", fontsize=10, loc="left")
    middle.set_title("above float32 (dots: on text not seen)", fontsize=10, loc="left")
    for axes in (left, middle):
        axes.set_xlabel("step", fontsize=9)
        axes.grid(color="0.93")
    for place, (run, colour) in enumerate(zip(runs.values(), COLOURS, strict=True)):
        start = 0.0
        for part, shade in SHADES.items():
            size = run.bytes[part]
            right.barh(place, size, left=start, color=colour, alpha=shade, height=0.5)
            ink = {"fontsize": 8, "color": "white" if shade == 1 else "black"}
            middle_of = start + size / 2
            right.text(middle_of, place, f"{size:.1f}", ink, ha="center", va="center")
            if place == 0:
                right.text(middle_of, -0.34, part, fontsize=8, ha="center")
            start += size
        right.text(start + 0.3, place, f"{start:.1f}", va="center", fontsize=9)
    right.set_title("bytes per parameter", fontsize=10, loc="left")
    right.set_xlim(0, 18.5)
    right.set_ylim(2.5, -0.6)
    right.set_yticks([])
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=150, metadata=metadata)


def smoothed(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and means over a twelfth of the run."""
    window = max(1, len(values) // 12)
    means = np.convolve(values, np.ones(window) / window, "valid")
    return window / 2 + np.arange(len(means)), means


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Trains a language model of bytes in half the memory.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=400)
    add("--learning-rate", type=float, default=2e-3, help="peak of the schedule")
    add("--seed", type=int, default=0)
    add("--output", type=Path, default=Path("outputs/half_precision.png"))
    add("--quiet", action="store_true", help="no progress bars")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(argv)
    for name in ("steps", "learning_rate"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    text = load_text()
    runs = {}
    for name in WAYS:
        run = runs[name] = train_model(name, text, options)
        total = sum(run.bytes.values())
        print(
            f"{name}: {total:.1f} bytes per parameter, {run.held_out:.3f} bits per byte"
        )
    save_picture(runs, options.output)
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
