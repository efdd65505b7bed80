"""Trains a small network that may be killed at any time, and started again.

    python docs/examples/train_through_crashes.py --steps 2000

Stop it, kill it with `kill -9`, or pull the plug; then start it again with the same
options. It goes on from its last checkpoint and ends with the same parameters, to the
bit, as if nothing had happened.

What that takes: everything that changes is in one tree (the model, the state of the
optimizer with its half-gathered gradients, the random key of the dropout, the number of
steps), `eqopt.checkpoint.save` writes all of it or nothing, and the data of a step
depend on the number of the step alone.
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import eqopt


def main() -> None:
    options = parse_options()
    options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    try:
        run(options)
    except (OSError, eqopt.checkpoint.CheckpointError) as error:
        raise SystemExit(f"error: {error}") from error


def run(options: argparse.Namespace) -> None:
    opt = make_optimizer(options.steps)
    if options.checkpoint.exists():
        # What has this structure, without a single array.
        like = eqx.filter_eval_shape(lambda: start(opt))
        now = eqopt.checkpoint.load(options.checkpoint, like)
        print(f"goes on after {now.step} steps", flush=True)
    else:
        now = start(opt)
        print("starts", flush=True)

    while now.step < options.steps:
        now = train_step(opt, make_batch(int(now.step)), now)
        if now.step % options.every == 0 or now.step == options.steps:
            eqopt.checkpoint.save(options.checkpoint, now)
    x, y = make_batch(options.steps)
    model = eqx.nn.inference_mode(now.model)
    error = np.abs(np.asarray(jax.vmap(model)(x)) - y).mean()
    print(f"done after {now.step} steps: off by {error:.3f} on new points")


def make_optimizer(steps: int) -> eqopt.AbstractTransformation:
    """Adam on the mean of three gradients, with a schedule for its learning rate."""
    schedule = eqopt.schedules.WarmupCosineDecay(
        0.0, 1e-2, warmup_steps=20, decay_steps=max(21, steps // 3)
    )
    return eqopt.MultiSteps(eqopt.Adam(schedule), every_k_schedule=3)


class Network(eqx.Module):
    """Two layers with dropout between them."""

    first: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    second: eqx.nn.Linear

    def __init__(self, key: PRNGKeyArray):
        key1, key2 = jr.split(key)
        self.first = eqx.nn.Linear(2, 64, key=key1)
        self.dropout = eqx.nn.Dropout(0.1)
        self.second = eqx.nn.Linear(64, 1, key=key2)

    def __call__(
        self, x: Float[Array, " 2"], key: PRNGKeyArray | None = None
    ) -> Float[Array, " 1"]:
        return self.second(self.dropout(jnp.tanh(self.first(x)), key=key))


class Progress(eqx.Module):
    """All that changes while training."""

    step: Array
    key: PRNGKeyArray
    model: Network
    state: PyTree


def start(opt: eqopt.AbstractTransformation) -> Progress:
    key, model_key = jr.split(jr.key(0))
    model = Network(model_key)
    return Progress(jnp.zeros((), jnp.int32), key, model, opt.init(model))


def make_batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a saddle. They depend on the step alone: there is nothing to save."""
    x = np.random.default_rng(step).uniform(-1, 1, (32, 2)).astype(np.float32)
    return x, x[:, :1] * x[:, 1:]


@eqx.filter_jit
def train_step(
    opt: eqopt.AbstractTransformation, batch: tuple, now: Progress
) -> Progress:
    x, y = batch
    key, dropout_key = jr.split(now.key)

    def loss_fn(model):
        keys = jr.split(dropout_key, len(x))
        return jnp.mean((jax.vmap(model)(x, keys) - y) ** 2)

    grads = eqx.filter_grad(loss_fn)(now.model)
    model, state = opt.step(grads, now.state, now.model)
    return Progress(now.step + 1, key, model, state)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains, whatever happens.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    path = Path("outputs/train_through_crashes.eqx")
    parser.add_argument("--checkpoint", type=Path, default=path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
