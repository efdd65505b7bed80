"""Looks for the best learning rate of narrow and wide models, in ten minutes or more.

A language model of bytes (the text is the reference of the Python language, which comes
with Python for its `help`) is trained at several widths, with many learning rates and
seeds at once. Once, `eqopt.groups.mup` makes the learning rates of its matrices smaller
as it gets wider, and once it does not. In the root of the repository, install what this
file needs and run it:

    pip install ".[examples]"
    python docs/examples/draw_width_transfer.py

It prints the best learning rate of each width, and saves a picture. See all options with
`--help`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple


try:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jaxtyping import Array, Float, Int
    from matplotlib.figure import Figure
    from tqdm import tqdm

    import eqopt
except ImportError as error:
    sys.exit(f'{error}: run `pip install ".[examples]"` in the root of the repository')


BASE, HEADS, LAYERS, LENGTH, BATCH = 16, 4, 2, 32, 8
SIZE = LENGTH + 1


class Block(eqx.Module):
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    scale: float = eqx.field(static=True)

    def __init__(self, width: int, key: Array):
        key1, key2 = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)]
        self.attention = eqx.nn.MultiheadAttention(HEADS, width, key=key1)
        self.mlp = eqx.nn.MLP(
            width, width, 4 * width, depth=1, activation=jax.nn.gelu, key=key2
        )
        self.scale = (BASE / width) ** 0.5

    def __call__(self, x: Float[Array, "length width"]) -> Float[Array, "length width"]:
        y = jax.vmap(self.norms[0])(x)
        past = jnp.tril(jnp.ones((len(x), len(x)), bool))
        # Equinox divides by the root of the size of a head. This makes it the size.
        heads = lambda query, key, value: (self.scale * query, key, value)
        x = x + self.attention(y, y, y, past, process_heads=heads)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    positions: Float[Array, "length width"]
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear
    multiplier: float = eqx.field(static=True)

    def __init__(self, width: int, key: Array):
        key1, key2, *keys = jax.random.split(key, 2 + LAYERS)
        self.embedding = eqx.nn.Embedding(128, width, key=key1)
        self.positions = jax.random.normal(key2, (LENGTH, width))
        # Layers of Equinox begin with values of the size of 1 / sqrt(fan-in).
        self.blocks = [Block(width, key) for key in keys]
        self.norm = eqx.nn.LayerNorm(width)
        # The head begins with zeros: all bytes are equally likely, at all widths.
        self.head = jax.tree.map(jnp.zeros_like, eqx.nn.Linear(width, 128, key=key1))
        self.multiplier = BASE / width

    def __call__(self, codes: Int[Array, " length"]) -> Float[Array, "length 128"]:
        x = jax.vmap(self.embedding)(codes) + self.positions
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(self.multiplier * jax.vmap(self.norm)(x))


def loss_fn(model: Transformer, codes: Int[Array, "batch 33"]) -> Float[Array, ""]:
    """In bits per byte."""
    log_p = jax.nn.log_softmax(jax.vmap(model)(codes[:, :-1]))
    of_next = jnp.take_along_axis(log_p, codes[:, 1:, None], axis=-1)
    return -jnp.mean(of_next) / jnp.log(2.0)


def draw_batches(steps: int, seed: int) -> np.ndarray:
    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    rng = np.random.default_rng(seed)
    starts = rng.integers(len(codes) - SIZE, size=(steps, BATCH, 1))
    return codes[starts + np.arange(SIZE)]


def losses_at(rates: np.ndarray, width: int, steps: int, seeds: int) -> np.ndarray:
    """The mean loss over the last fifth of a run, for each learning rate and seed.

    In the first row with the factors, in the second one without. A seed determines the
    initial model and the batches.
    """
    base, shapes = (
        eqx.filter_eval_shape(Transformer, w, jax.random.key(0)) for w in (BASE, width)
    )
    factors = eqopt.groups.mup(base, shapes).learning_rate
    both = jax.tree.map(lambda factor: jnp.array([factor, 1.0]), factors)

    def train(rate, factors, seed, batches):
        schedule = eqopt.schedules.WarmupCosineDecay(
            init_value=0.0, peak_value=rate, warmup_steps=steps // 10, decay_steps=steps
        )
        opt = eqopt.Chain(
            eqopt.ScaleByAdam(b2=0.99),
            eqopt.ScaleByTree(factors),
            eqopt.ScaleByLearningRate(schedule),
        )
        model = Transformer(width, jax.random.key(seed))
        params, static = eqx.partition(model, eqx.is_inexact_array)

        def train_step(carry, batch):
            params, state = carry
            loss_of = lambda params: loss_fn(eqx.combine(params, static), batch)
            loss, grads = jax.value_and_grad(loss_of)(params)
            return opt.step(grads, state, params), loss

        _, losses = jax.lax.scan(train_step, (params, opt.init(params)), batches)
        return jnp.mean(losses[-max(1, steps // 5) :])

    # One program trains them all.
    of_seeds = eqx.filter_vmap(train, in_axes=(None, None, 0, 0))
    in_rates = eqx.filter_vmap(of_seeds, in_axes=(0, None, None, None))
    in_both = eqx.filter_jit(eqx.filter_vmap(in_rates, in_axes=(None, 0, None, None)))
    batches = jnp.stack([draw_batches(steps, seed) for seed in range(seeds)])
    arguments = jnp.asarray(rates, jnp.float32), both, jnp.arange(seeds), batches
    return np.asarray(in_both(*arguments))


class Best(NamedTuple):
    rate: float
    loss: float


def best_of(rates: np.ndarray, losses: np.ndarray) -> Best:
    """The learning rate with the lowest mean loss over the seeds."""
    losses = losses.mean(-1)
    i = np.nanargmin(losses)
    return Best(float(rates[i]), float(losses[i]))


COLOURS = ["#9ecae1", "#4a98c9", "#1f4e9c", "#08204a"]
TITLES = "with eqopt.groups.mup", "without"


def save_picture(runs: dict[int, np.ndarray], rates: np.ndarray, path: Path) -> None:
    """The mean losses, a line for each width, with a dot where it is lowest.

    A band shows the range over the seeds.
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    lowest = min(np.nanmin(losses) for losses in runs.values())
    for panel, axes in enumerate(panels):
        for number, (width, losses) in enumerate(runs.items()):
            colour = COLOURS[number % len(COLOURS)]
            label = f"width {width}" if panel == 0 else None
            low, high = losses[panel].min(-1), losses[panel].max(-1)
            axes.fill_between(rates, low, high, color=colour, alpha=0.2, lw=0)
            axes.plot(rates, losses[panel].mean(-1), color=colour, lw=1.5, label=label)
            axes.plot(*best_of(rates, losses[panel]), "o", color=colour, ms=6)
        axes.set_title(TITLES[panel], fontsize=10, loc="left")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("learning rate", fontsize=9)
        axes.set_ylim(lowest - 0.1, lowest + 1.3)
        axes.grid(color="0.93")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("bits per byte", fontsize=9)
    figure.legend(loc="outside lower center", ncols=len(runs), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=150, metadata=metadata)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Looks for the best learning rate of narrow and wide models.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=400)
    add("--widths", type=int, nargs="+", default=[16, 32, 64, 128])
    add("--seeds", type=int, default=4)
    add("--output", type=Path, default=Path("outputs/width_transfer.png"))
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(argv)
    if not options.steps > 0:
        parser.error("--steps must be positive")
    if not options.seeds > 0:
        parser.error("--seeds must be positive")
    if any(width <= 0 or width % HEADS for width in options.widths):
        parser.error(f"--widths must be multiples of {HEADS}, the number of heads")
    rates = 2.0 ** np.arange(-9, -1)
    runs = {}
    for width in tqdm(options.widths, disable=options.quiet):
        runs[width] = losses_at(rates, width, options.steps, options.seeds)
    for width, losses in runs.items():
        of_both = (
            f"{best.loss:.2f} bits per byte at {best.rate:.4f} {title}"
            for best, title in zip(
                (best_of(rates, row) for row in losses), TITLES, strict=True
            )
        )
        print(f"width {width}: {', '.join(of_both)}")
    save_picture(runs, rates, options.output)
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
