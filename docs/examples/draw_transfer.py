"""Plans a run eight times as long and wide from small sweeps, in about ten minutes.

A language model of bytes (the text is the reference of the Python language, which comes
with Python for its `help`) predicts each byte from the eight before. Sweeps with narrow
models find the best learning rate for several numbers of tokens and two batches, and
`eqopt.transfer.fit` finds a power law. Then a wide model is trained longer and with larger
batches: with the hyperparameters of the small run, and with what each rule of
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
    plan: Plan, candidates: Sequence[Settings], seeds: int, with_mup: bool = True
) -> np.ndarray:
    """The loss on unseen text after each run: a row for each of the settings.

    A seed determines the initial model and the batches.
    """
    pieces, unseen = map(jnp.asarray, read_text())
    steps, batch_size = round(plan.steps), round(plan.batch_tokens)
    shapes = [
        eqx.filter_eval_shape(Model, round(width), jax.random.key(0))
        for width in (BASE, plan.width)
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
        model = Model(round(plan.width), jax.random.key(seed))
        params, static = eqx.partition(model, eqx.is_inexact_array)
        loss_at = lambda params, batch: loss_fn(eqx.combine(params, static), batch)

        def train_step(carry, key):
            params, state = carry
            chosen = jax.random.randint(key, batch_size, 0, len(pieces))
            grads = jax.grad(loss_at)(params, pieces[chosen])
            return opt.step(grads, state, params), None

        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), seed), steps)
        (params, _), _ = jax.lax.scan(train_step, (params, opt.init(params)), keys)
        return loss_at(params, unseen)

    of_seeds = jax.jit(jax.vmap(train, (None, 0)))
    rows = ({k: jnp.asarray(v) for k, v in vars(s).items()} for s in candidates)
    return np.stack([np.asarray(of_seeds(row, jnp.arange(seeds))) for row in rows])
