"""Trains a small convolutional network to read handwritten digits, in half a minute.

The digits are real scans of 8 x 8 pixels that come with scikit-learn. In the root of
the repository, install what this file needs and run it:

    pip install ".[examples]"
    python docs/examples/train_digits.py

It prints the accuracy on digits that it has never seen, and saves a picture of the
loss, the learning rate and the digits that were hard to read. Try `--optimizer lion`;
stop it half-way and go on with `--resume`; see all options with `--help`.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


try:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jaxtyping import Array, Float, PyTree
    from matplotlib.figure import Figure
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from tqdm import tqdm

    import eqopt
    from eqopt.microbatching import AccumulationType, microbatch
except ImportError as error:
    sys.exit(f'{error}: run `pip install ".[examples]"` in the root of the repository')


# What makes each optimizer, and the peak of the learning rate that suits it.
OPTIMIZERS: dict[str, tuple[Callable[..., eqopt.AbstractTransformation], float]] = {
    "adam": (lambda rate: eqopt.Adam(rate), 3e-3),
    "adamw": (lambda rate: eqopt.AdamW(rate, weight_decay=0.01), 3e-3),
    "lion": (lambda rate: eqopt.Lion(rate, weight_decay=0.1), 5e-4),
    "sgd": (lambda rate: eqopt.SGD(rate, momentum=0.9, nesterov=True), 0.1),
}
VALIDATE_EVERY = 50  # steps
CHECKPOINT = "checkpoint.eqx"


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.learning_rate is None:
        options.learning_rate = OPTIMIZERS[options.optimizer][1]
    try:
        run(options)
    except (OptionError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        parser.exit(130, "\ninterrupted: --resume goes on from the last checkpoint\n")


def run(options: argparse.Namespace) -> None:
    train, validation, test = load_splits(options.seed)
    check_sizes(options, len(train.labels))

    opt = make_optimizer(options)
    model = CNN(jax.random.key(options.seed))
    progress = Progress(model, opt.init(model), [], [], [])
    if options.resume:
        progress = load_checkpoint(progress, options)
    options.output.mkdir(parents=True, exist_ok=True)
    progress = fit(progress, opt, train, validation, options)

    step, loss = min(progress.validation, key=lambda step_and_loss: step_and_loss[1])
    print(f"best validation loss: {loss:.4f} after {step} steps")
    log_p = np.asarray(eqx.filter_jit(log_probabilities)(progress.model, test.images))
    print(f"picture: {save_picture(progress, test, log_p, options)}")
    print(f"test accuracy: {100 * np.mean(log_p.argmax(1) == test.labels):.2f} %")


class Digits(NamedTuple):
    images: np.ndarray
    labels: np.ndarray


def load_splits(seed: int) -> list[Digits]:
    """70 % of the digits to train with, 15 % to validate and 15 % to test."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).reshape(-1, 8, 8), np.asarray(y)

    def split(rows, share):
        return train_test_split(
            rows, test_size=share, stratify=y[rows], random_state=seed
        )

    train, rest = split(np.arange(len(y)), 0.3)
    validation, test = split(rest, 0.5)
    return [Digits(x[rows], y[rows]) for rows in (train, validation, test)]


def draw_batch(digits: Digits, size: int, seed: int, step: int) -> Digits:
    """Random digits, each moved by up to a pixel, which halves the errors in the end.

    It depends on nothing but seed and step, so a checkpoint needs no generator.
    """
    rng = np.random.default_rng((seed, step))
    rows = rng.choice(len(digits.labels), size, replace=False)
    padded = np.pad(digits.images[rows], ((0, 0), (1, 1), (1, 1)))
    i, j = rng.integers(3, size=(2, size, 1)) + np.arange(8)
    images = padded[np.arange(size)[:, None, None], i[:, :, None], j[:, None, :]]
    return Digits(images, digits.labels[rows])


class CNN(eqx.Module):
    """Two convolutions and a linear layer. Functions may stand among the layers."""

    layers: list[Callable[..., Array]]

    def __init__(self, key: Array):
        key1, key2, key3 = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(1, 32, kernel_size=3, padding=1, key=key1),
            jax.nn.relu,
            eqx.nn.MaxPool2d(kernel_size=2, stride=2),
            eqx.nn.Conv2d(32, 64, kernel_size=3, padding=1, key=key2),
            jax.nn.relu,
            jnp.ravel,
            eqx.nn.Linear(64 * 4 * 4, 10, key=key3),
        ]

    def __call__(self, image: Float[Array, "8 8"]) -> Float[Array, " 10"]:
        x = image[None]  # one channel
        for layer in self.layers:
            x = layer(x)
        return x


def log_probabilities(model: CNN, images: Any) -> Float[Array, "n 10"]:
    return jax.nn.log_softmax(jax.vmap(model)(images))


def mean_loss(model: CNN, batch: Digits) -> Float[Array, ""]:
    log_p = log_probabilities(model, batch.images)
    return -jnp.mean(jnp.take_along_axis(log_p, batch.labels[:, None], axis=1))


def make_optimizer(options: argparse.Namespace) -> eqopt.AbstractTransformation:
    factory, _ = OPTIMIZERS[options.optimizer]
    schedule = eqopt.schedules.WarmupCosineDecay(
        init_value=0.0,
        peak_value=options.learning_rate,
        warmup_steps=options.steps // 10,
        decay_steps=options.steps,
    )
    return eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), factory(schedule))


def make_train_step(
    opt: eqopt.AbstractTransformation, microbatch_size: int | None
) -> Callable[..., Any]:
    value_and_grad = eqx.filter_value_and_grad(mean_loss)
    if microbatch_size is not None:
        # The same gradient in less memory. On a CPU it takes longer: there XLA runs a
        # convolution some ten times slower once it stands in a loop.
        value_and_grad = microbatch(
            value_and_grad, 1, microbatch_size, AccumulationType.MEAN
        )

    @eqx.filter_jit(donate="all-except-first")  # the batch stays, the rest is reused
    def train_step(batch, model, state):
        loss, grads = value_and_grad(model, batch)
        model, state = opt.step(grads, state, model)
        return model, state, loss

    return train_step


class Progress(NamedTuple):
    """How far training has come: what a checkpoint holds."""

    model: CNN
    state: PyTree
    losses: list[float]
    rates: list[float]
    validation: list[tuple[int, float]]  # number of steps, loss


def fit(
    progress: Progress,
    opt: eqopt.AbstractTransformation,
    train: Digits,
    validation: Digits,
    options: argparse.Namespace,
) -> Progress:
    """Goes on from `progress` up to the last step."""
    model, state, losses, rates, validated = progress
    train_step = make_train_step(opt, options.microbatch_size)
    evaluate = eqx.filter_jit(mean_loss)
    done, total = len(losses), options.steps
    steps = range(done + 1, total + 1)
    bar = tqdm(steps, initial=done, total=total, disable=options.quiet)
    for step in bar:
        batch = draw_batch(train, options.batch_size, options.seed, step)
        model, state, loss = train_step(batch, model, state)
        losses.append(float(loss))
        rates.append(float(eqopt.tree.get(state, "learning_rate")))
        postfix = f"loss {losses[-1]:.4f}, learning rate {rates[-1]:.1e}"
        bar.set_postfix_str(postfix, refresh=False)
        if step == total or step % VALIDATE_EVERY == 0:
            validated.append((step, float(evaluate(model, validation))))
        progress = Progress(model, state, losses, rates, validated)
        if step == total or step % options.checkpoint_every == 0:
            save_checkpoint(progress, options)
    return progress


def save_checkpoint(progress: Progress, options: argparse.Namespace) -> None:
    """Model and state, with options and history: all or nothing, whatever happens."""
    model, state, *history = progress
    metadata = {"options": identity(options), "history": history}
    eqopt.checkpoint.save(options.output / CHECKPOINT, (model, state), metadata)


def load_checkpoint(like: Progress, options: argparse.Namespace) -> Progress:
    path = options.output / CHECKPOINT
    try:
        metadata = eqopt.checkpoint.read_metadata(path)
        saved = metadata["options"]
        changed = [k for k, v in identity(options).items() if saved[k] != v]
        if not changed:  # else the arrays may have other shapes
            trees = eqopt.checkpoint.load(path, (like.model, like.state))
            return Progress(*trees, *metadata["history"])
    except FileNotFoundError:
        raise OptionError(f"--resume: there is no checkpoint {path}") from None
    except eqopt.checkpoint.CheckpointError as error:
        raise OptionError(f"--resume: {error}") from error
    made_with = ", ".join(f"{name}={saved[name]}" for name in changed)
    raise OptionError(f"--resume: {path} was made with other options: {made_with}")


def identity(options: argparse.Namespace) -> dict[str, Any]:
    """The options that make a run what it is."""
    besides = {"output", "checkpoint_every", "resume", "quiet"}
    return {name: x for name, x in vars(options).items() if name not in besides}


def save_picture(
    progress: Progress, digits: Digits, log_p: np.ndarray, options: argparse.Namespace
) -> Path:
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    above, below = figure.add_gridspec(2, 1, height_ratios=(5, 2))
    left, right = figure.add_subfigure(above).subplots(1, 2)
    steps = 1 + np.arange(len(progress.losses))
    left.plot(steps, progress.losses, color="0.8", label="training batch")
    left.plot(*np.transpose(progress.validation), "o-", ms=3, label="validation")
    left.set(title="loss", xlabel="step", yscale="log")
    left.legend()
    right.plot(steps, progress.rates)
    right.set(title=f"learning rate of {options.optimizer}", xlabel="step")

    strip = figure.add_subfigure(below)
    labels, read = digits.labels, log_p.argmax(1)
    wrong = np.sum(read != labels)
    strip.suptitle(f"{wrong} of {len(labels)} test digits misread; the hardest ones:")
    hardest = np.lexsort((log_p[np.arange(len(labels)), labels], read == labels))
    for axes, k in zip(strip.subplots(1, 8), hardest, strict=False):
        axes.imshow(digits.images[k], cmap="gray_r")
        axes.set(xticks=[], yticks=[])
        color = "C2" if read[k] == labels[k] else "C3"
        axes.set_title(f"{labels[k]} read as {read[k]}", size=9, color=color)
    path = options.output / "train_digits.png"
    figure.savefig(path, dpi=120)
    return path


class OptionError(Exception):
    """Options that do not go with each other, or with what there is."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def make_parser() -> Parser:
    parser = Parser(description="Trains a network to read digits.")
    add, count = parser.add_argument, between(int, 1, 2**31 - 1)
    add("--optimizer", choices=OPTIMIZERS, default="adam")
    add("--learning-rate", type=between(float, 0, 1000), help="peak of the schedule")
    add("--steps", type=count, default=1000)
    add("--batch-size", type=count, default=64)
    add("--microbatch-size", type=count, help="digits whose gradient is taken at once")
    add("--seed", type=between(int, 0, 2**32 - 1), default=0)
    add("--output", type=Path, default=Path("outputs/train_digits"), help="a directory")
    add("--checkpoint-every", type=count, default=100, metavar="STEPS")
    add("--resume", action="store_true", help="go on from the checkpoint in the output")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def between(kind: type, low: float, high: float) -> Callable[[str], Any]:
    """What `argparse` calls a type: a number in a range."""

    def parse(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            expected = f"expected {kind.__name__} from {low} to {high}"
            raise argparse.ArgumentTypeError(f"{expected}, not {text!r}")
        return number

    return parse


def check_sizes(options: argparse.Namespace, available: int) -> None:
    size, microbatch_size = options.batch_size, options.microbatch_size
    if size > available:
        raise OptionError(f"--batch-size {size}: there are {available} training digits")
    if microbatch_size is not None and microbatch_size > size:
        raise OptionError(
            f"--microbatch-size {microbatch_size} is more than --batch-size {size}"
        )


if __name__ == "__main__":
    main()
