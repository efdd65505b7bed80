"""Plans a run eight times as long and wide from small sweeps, in six minutes or more.

A language model of bytes (the text is the reference of the Python language, which comes
with Python for its `help`) predicts each byte from the eight before. Sweeps with narrow
models find the best learning rate for several numbers of tokens and two batches, and
`eqopt.transfer.fit` finds a power law. Then a wide model is trained longer, and with
larger batches: with the hyperparameters of the small run, and with what each rule of
`eqopt.transfer` makes of them. A sweep of the wide model shows what would have been best.
In the root of the repository, install what this file needs and run it:

    pip install ".[examples]"
    python docs/examples/draw_transfer.py

It prints the losses on text that was not seen, and saves a picture. See all options with
`--help`.
"""

import argparse
import dataclasses
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
    from eqopt.transfer import Fit, Plan, Settings
except ImportError as error:
    sys.exit(f'{error}: run `pip install ".[examples]"` in the root of the repository')


BASE, CONTEXT = 16, 8
# The largest small run, and the one to plan. A token is a byte.
SMALL = Plan(tokens=2**17, batch_tokens=128, width=BASE)
LARGE = Plan(tokens=2**20, batch_tokens=512, width=8 * BASE)
START = Settings(2.0**-5, b1=0.9, b2=0.99, eps=1e-8)


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width: int, key: Array):
        key1, key2 = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(width)
        # Layers of Equinox begin with values of the size of 1 / sqrt(fan-in).
        self.up = eqx.nn.Linear(width, width, key=key1)
        self.down = eqx.nn.Linear(width, width, key=key2)

    def __call__(self, x: Float[Array, " width"]) -> Float[Array, " width"]:
        return x + self.down(jax.nn.gelu(self.up(self.norm(x))))


class Model(eqx.Module):
    embeddings: Float[Array, "context 128 width"]
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear
    multiplier: float = eqx.field(static=True)

    def __init__(self, width: int, key: Array):
        key1, key2, *keys = jax.random.split(key, 4)
        shape = CONTEXT, 128, width
        self.embeddings = jax.random.normal(key1, shape) / CONTEXT**0.5
        self.blocks = [Block(width, key) for key in keys]
        self.norm = eqx.nn.LayerNorm(width)
        # The head begins with zeros: all bytes are equally likely, at all widths.
        self.head = jax.tree.map(jnp.zeros_like, eqx.nn.Linear(width, 128, key=key2))
        self.multiplier = BASE / width

    def __call__(self, codes: Int[Array, " context"]) -> Float[Array, " 128"]:
        x = jnp.sum(self.embeddings[jnp.arange(CONTEXT), codes], 0)
        for block in self.blocks:
            x = block(x)
        return self.head(self.multiplier * self.norm(x))


def loss_fn(model: Model, codes: Int[Array, "tokens 9"]) -> Float[Array, ""]:
    """In bits per byte."""
    log_p = jax.nn.log_softmax(jax.vmap(model)(codes[:, :-1]))
    of_next = jnp.take_along_axis(log_p, codes[:, -1:], axis=-1)
    return -jnp.mean(of_next) / jnp.log(2.0)


def read_text() -> tuple[np.ndarray, np.ndarray]:
    """All pieces of 9 bytes of the text to train on, and of its last twentieth."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    pieces = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)
    end = len(pieces) - len(pieces) // 20
    return pieces[:end], pieces[end + CONTEXT :]


def losses_of(
    plan: Plan,
    candidates: Sequence[Settings],
    seeds: int,
    *,
    with_mup: bool = True,
    quiet: bool = True,
) -> np.ndarray:
    """The loss on unseen text after each run: a row for each of the settings.

    A seed determines the initial model and the batches.
    """
    pieces, unseen = map(jnp.asarray, read_text())
    steps, batch_size = round(plan.steps), round(plan.batch_tokens)
    width = round(plan.width or BASE)
    shapes = [
        eqx.filter_eval_shape(Model, each, jax.random.key(0)) for each in (BASE, width)
    ]
    factors = eqopt.groups.mup(*shapes).learning_rate
    if not with_mup:
        factors = jax.tree.map(lambda factor: 1.0, factors)

    def train(settings, seed):
        rate = eqopt.schedules.WarmupCosineDecay(
            init_value=0.0,
            peak_value=settings["learning_rate"],
            warmup_steps=steps // 10,
            decay_steps=steps,
        )
        opt = eqopt.Chain(
            eqopt.ScaleByAdam(settings["b1"], settings["b2"], settings["eps"]),
            eqopt.ScaleByTree(factors),
            eqopt.AddDecayedWeights(settings["weight_decay"]),
            eqopt.ScaleByLearningRate(rate),
        )
        model = Model(width, jax.random.key(seed))
        params, static = eqx.partition(model, eqx.is_inexact_array)
        loss_at = lambda params, batch: loss_fn(eqx.combine(params, static), batch)

        def train_step(carry, key):
            params, state = carry
            chosen = jax.random.randint(key, (batch_size,), 0, len(pieces))
            grads = jax.grad(loss_at)(params, pieces[chosen])
            return opt.step(grads, state, params), None

        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), seed), steps)
        (params, _), _ = jax.lax.scan(train_step, (params, opt.init(params)), keys)
        return loss_at(params, unseen)

    of_seeds = jax.jit(jax.vmap(train, (None, 0)))
    rows = [{k: jnp.asarray(v) for k, v in vars(s).items()} for s in candidates]
    run = lambda row: np.asarray(of_seeds(row, jnp.arange(seeds)))
    return np.stack([run(row) for row in tqdm(rows, disable=quiet)])


def best_of(rates: np.ndarray, losses: np.ndarray) -> float:
    """The best rate between those of a sweep, or its end if the loss is lowest there."""
    try:
        return eqopt.transfer.find_best(rates, losses)
    except ValueError as error:
        print(error)
        return float(rates[np.nanargmin(losses)])


def with_decay(plan: Plan, rate: float, product: float) -> Settings:
    """Settings in which rate times decay times steps is a given number."""
    weight_decay = product / (rate * plan.steps)
    return dataclasses.replace(START, learning_rate=rate, weight_decay=weight_decay)


class Small(NamedTuple):
    """What the sweeps of small runs found."""

    fit: Fit
    tuned: Settings


def sweep_small(small: Plan, seeds: int, is_quiet: bool) -> Small:
    """The law of the best learning rates of six sweeps, and the best decay of one run."""
    rates = 2.0 ** np.arange(-8, -1)
    plans = [
        dataclasses.replace(small, tokens=small.tokens / share, batch_tokens=batch)
        for batch in (4 * small.batch_tokens, small.batch_tokens)
        for share in (4, 2, 1)
    ]
    best = []
    for plan in tqdm(plans, disable=is_quiet):
        tried = [with_decay(plan, float(rate), 3.0) for rate in rates]
        losses = losses_of(plan, tried, seeds).mean(1)
        best.append(best_of(rates, losses))
        print(f"{plan.tokens:.0f} tokens, {plan.batch_tokens} per batch:")
        print(f"  best {best[-1]:.4f}, losses {losses.round(3)}")
    tried = [with_decay(small, best[-1], x) for x in (0.0, 1.0, 3.0, 10.0)]
    losses = losses_of(small, tried, seeds).mean(1)
    print(f"  decays of {[round(s.weight_decay, 3) for s in tried]}: {losses.round(3)}")
    return Small(eqopt.transfer.fit(plans, best), tried[int(np.argmin(losses))])


def best_if_narrow(large: Plan, seeds: int) -> float:
    """The best rate of a run that is as long as the large one, but narrow."""
    plan = dataclasses.replace(large, width=BASE)
    rates = 2.0 ** np.arange(-7, -2)
    tried = [with_decay(plan, float(rate), 3.0) for rate in rates]
    return best_of(rates, losses_of(plan, tried, seeds).mean(1))


class Large(NamedTuple):
    """Losses of the large run."""

    variants: dict[str, float]
    rates: np.ndarray
    with_mup: np.ndarray
    without: np.ndarray


def run_large(
    small: Plan, large: Plan, found: Small, seeds: int, is_quiet: bool
) -> Large:
    """The losses with what the rules say, one after the other, and of two sweeps."""
    tuned, law = found.tuned, found.fit.law
    rescale = eqopt.transfer.rescale
    by_batch = rescale(tuned, small, large, weight_decay="batch_rule")
    by_law = rescale(tuned, small, large, weight_decay="batch_rule", rate=law)
    planned = rescale(tuned, small, large, rate=law)
    roots = rescale(tuned, small, large, rate=law, batch_rule="square_root")
    factors = np.array([1 / 8, 1 / 4, 1 / 2, 1, 2, 4])
    # The product of rate and decay stays.
    sweep = [
        dataclasses.replace(
            planned,
            learning_rate=float(f * planned.learning_rate),
            weight_decay=float(planned.weight_decay / f),
        )
        for f in factors
    ]
    mup = [tuned, by_batch, by_law, planned, roots, sweep[2], *sweep[4:]]
    losses = np.concatenate(
        [
            losses_of(
                large, [tuned, *sweep[:4]], seeds, with_mup=False, quiet=is_quiet
            ),
            losses_of(large, mup, seeds, quiet=is_quiet),
        ]
    )
    print(f"seeds differ by up to {np.ptp(losses, 1).max():.3f}")
    losses, nan = losses.mean(1).tolist(), float("nan")
    names = (
        "settings of the small run",
        "+ groups.mup",
        "+ batch: half-life, √κ",
        "+ fitted law of the rate",
        "+ timescale of the decay",
        "square root rule instead",
    )
    low, high, highest = losses[-3:]
    return Large(
        dict(zip(names, losses[:1] + losses[5:10], strict=True)),
        factors * planned.learning_rate,
        np.array([nan, nan, low, losses[8], high, highest]),
        np.array([*losses[1:5], nan, nan]),
    )


def save_picture(
    found: Small, large: Plan, narrow: float, losses: Large, path: Path
) -> None:
    """The law with the best rate of the large run, its sweeps, and each rule's loss."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.1))
    law = found.fit.law
    eqopt.plot.power_law(found.fit, over="tokens", until=large, axes=left)
    best = best_of(losses.rates[2:], losses.with_mup[2:])
    # Moved to the batch of the line, as are the points.
    at = dataclasses.replace(law.base, tokens=large.tokens)
    for rate, width, marker in ((narrow, BASE, "s"), (best, large.width, "*")):
        moved = rate * law.ratio(large, at)
        left.plot(large.tokens, moved, marker, color="C3", ms=7, label=f"width {width}")
    left.set_title("best learning rate", fontsize=10, loc="left")
    for loss, label, colour in (
        (losses.with_mup, "with groups.mup", "C0"),
        (losses.without, "without", "C1"),
    ):
        middle.plot(losses.rates, loss, "o-", ms=4, lw=1.4, color=colour, label=label)
    middle.axvline(law(large), color="0.5", lw=1, ls="--", label="planned rate")
    middle.set_xscale("log", base=2)
    middle.set_xlabel("learning rate of the large run")
    middle.set_title("bits per byte, large run", fontsize=10, loc="left")
    names = [*losses.variants]
    values = [losses.variants[name] for name in names]
    right.plot(values, range(len(names)), "o", color="C0", ms=6)
    for row, value in enumerate(values):
        style = {"textcoords": "offset points", "fontsize": 8}
        right.annotate(f"{value:.3f}", (value, row), (6, 4), **style)
    lowest = np.nanmin(losses.with_mup)
    right.axvline(lowest, color="C3", lw=1, ls="--", label="best of the sweep")
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.margins(x=0.2, y=0.1)
    right.set_title("bits per byte, large run", fontsize=10, loc="left")
    for axes in (left, middle, right):
        axes.grid(color="0.93")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(which="both", labelsize=8)
        axes.xaxis.label.set_size(9)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=150, metadata=metadata)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Plans a run eight times as long and wide from small sweeps.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--seeds", type=int, default=4, help="of the small runs, twice the large ones")
    add("--shrink", type=int, default=1, help="divides all tokens, to try it out")
    add("--output", type=Path, default=Path("outputs/transfer.png"))
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(argv)
    if not (options.seeds > 0 and options.shrink > 0):
        parser.error("--seeds and --shrink must be positive")
    small, large = (
        dataclasses.replace(plan, tokens=plan.tokens / options.shrink)
        for plan in (SMALL, LARGE)
    )
    found = sweep_small(small, options.seeds, options.quiet)
    law, errors = found.fit.law, found.fit.errors
    for name, error in errors.items():
        print(f"exponent of {name}: {getattr(law, name):.3f} ± {error:.3f}")
    print(f"R²: {found.fit.r_squared:.3f}")
    print(
        f"planned rate: {law(large):.5f}, times or over {found.fit.spread(large):.2f}"
    )
    seeds = max(1, options.seeds // 2)
    narrow = best_if_narrow(large, seeds)
    print(f"best rate of a narrow run as long: {narrow:.5f}")
    losses = run_large(small, large, found, seeds, options.quiet)
    for name, loss in losses.variants.items():
        print(f"{loss:.3f} bits per byte: {name}")
    best = best_of(losses.rates[2:], losses.with_mup[2:])
    print(f"best rate of the large run: {best:.5f}")
    save_picture(found, large, narrow, losses, options.output)
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
