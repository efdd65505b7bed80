"""Trains a network to read digits, and to tell little about any one of them.

DP-SGD: the gradient of each digit is clipped, and noise is added to their sum. The
privacy budget that this costs, epsilon, comes from the accountant of the library
`dp-accounting`. In the root of the repository, install what this file needs and run it:

    pip install ".[examples,privacy]"
    python docs/examples/train_privately.py

It prints epsilon and the accuracy on digits that it has never seen as training goes on,
and saves a picture of one against the other, with a run without clipping and noise
beside it. See all options with `--help`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


try:
    import dp_accounting
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jaxtyping import Array, Float
    from matplotlib.figure import Figure
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import eqopt
    from eqopt.microbatching import clipped_grad, gradient_paths
except ImportError as error:
    sys.exit(f'{error}: run `pip install ".[examples,privacy]"` in the repository')


DELTA = 1e-4  # less than one over the number of digits


class Digits(NamedTuple):
    images: Any  # (n, 1, 8, 8)
    labels: Any  # (n,)


class CNN(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    linear: eqx.nn.Linear

    def __init__(self, key: Array):
        key1, key2 = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 16, kernel_size=3, padding=1, key=key1)
        # Not batch normalisation: with it, each digit has a say in all others.
        self.norm = eqx.nn.GroupNorm(4, 16)
        self.linear = eqx.nn.Linear(16 * 4 * 4, 10, key=key2)

    def __call__(self, image: Float[Array, "1 8 8"]) -> Float[Array, " 10"]:
        x = jax.nn.relu(self.norm(self.conv(image)))
        return self.linear(jnp.mean(x.reshape(16, 4, 2, 4, 2), axis=(2, 4)).ravel())


def loss_fn(model: CNN, digit: Digits) -> Float[Array, ""]:
    """Of one digit."""
    return -jax.nn.log_softmax(model(digit.images))[digit.labels]


@eqx.filter_jit
def accuracy(model: CNN, digits: Digits) -> Float[Array, ""]:
    guesses = jnp.argmax(jax.vmap(model)(digits.images), axis=1)
    return jnp.mean(guesses == digits.labels, dtype=jnp.float32)


def load_split(seed: int) -> tuple[Digits, Digits]:
    x, y = load_digits(return_X_y=True)
    images = np.reshape(x / 16, (-1, 1, 8, 8)).astype(np.float32)
    labels = y.astype(np.int32)
    rows = train_test_split(np.arange(len(y)), stratify=y, random_state=seed)
    train, test = (Digits(images[i], labels[i]) for i in rows)
    return train, test


def draw_batch(
    train: Digits, probability: float, rng: np.random.Generator
) -> tuple[Digits, Any]:
    """Each digit with the same probability, padded to one size; and which are no padding.

    It is this sampling that the accountant knows of, and no other.
    """
    count = len(train.labels)
    chosen = np.flatnonzero(rng.random(count) < probability)
    mean = count * probability
    size = min(count, int(mean + 8 * np.sqrt(mean)))
    if len(chosen) > size:  # never to be seen; to leave one out would break the promise
        raise RuntimeError(f"a batch of {len(chosen)} digits, more than {size}")
    rows = np.pad(chosen, (0, size - len(chosen)))
    return Digits(train.images[rows], train.labels[rows]), np.arange(size) < len(chosen)


def train_model(
    options: argparse.Namespace, train: Digits, test: Digits, private: bool
) -> list[tuple[int, float, float]]:
    """Steps, epsilon and accuracy, from time to time."""
    clip, noise = (options.clip, options.noise) if private else (1e6, 0.0)
    count = len(train.labels)
    probability = options.batch_size / count
    opt = eqopt.DPSGD(
        options.learning_rate,
        l2_norm_clip=clip,
        noise_multiplier=noise,
        key=options.seed,
        momentum=0.9,
        batch_size=options.batch_size,  # the expected one: the actual size is private
        clipped=True,
    )
    model = CNN(jax.random.key(options.seed))
    state = opt.init(model)
    rng = np.random.default_rng(options.seed)

    @eqx.filter_jit(donate="all-except-first")
    def train_step(batch, model, state):
        digits, is_real = batch
        grad_fn = clipped_grad(loss_fn, clip, keep_batch_dim=False, weights=is_real)
        grads, _ = grad_fn(model, digits)
        return opt.step(grads, state, model)

    if private:
        paths = gradient_paths(loss_fn, keep_batch_dim=False)(model, train)
        print(eqopt.groups.table(paths, model), end="\n\n")
    history = []
    for step in range(1, options.steps + 1):
        batch = draw_batch(train, probability, rng)
        model, state = train_step(batch, model, state)
        if step % options.report_every == 0 or step == options.steps:
            epsilon = spent(noise, probability, step) if private else float("inf")
            history.append((step, epsilon, float(accuracy(model, test))))
            print(f"step {step:4d}  epsilon {epsilon:5.2f}  ", end="")
            print(f"test accuracy {100 * history[-1][2]:5.2f} %", flush=True)
    return history


def spent(noise: float, probability: float, steps: int) -> float:
    """Epsilon after so many steps, for delta of one in ten thousand."""
    step = dp_accounting.PoissonSampledDpEvent(
        probability, dp_accounting.GaussianDpEvent(noise)
    )
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    return accountant.get_epsilon(DELTA)


def save_picture(private: Any, plain: Any, path: Path) -> None:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    _, epsilons, accuracies = np.transpose(private)
    axes.plot(epsilons, 100 * accuracies, "o-", label="DP-SGD")
    axes.axhline(
        100 * plain[-1][2], color="0.6", ls="--", label="no clipping, no noise"
    )
    axes.set_xlabel(rf"$\varepsilon$ at $\delta = {DELTA:g}$: less is more private")
    axes.set_ylabel("test accuracy / %")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train with differential privacy.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--report-every", type=int, default=40, help="steps")
    parser.add_argument("--batch-size", type=int, default=256, help="expected")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm")
    parser.add_argument("--noise", type=float, default=3.0, help="in units of the clip")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("privacy.png"))
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(argv)
    train, test = load_split(options.seed)
    positive = ("steps", "report_every", "batch_size", "learning_rate", "clip", "noise")
    for name in positive:
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    if options.batch_size > len(train.labels):
        parser.error(f"--batch-size: there are {len(train.labels)} training digits")
    private = train_model(options, train, test, private=True)
    print("\nwithout clipping and noise:")
    plain = train_model(options, train, test, private=False)
    save_picture(private, plain, options.output)
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
