"""Draws the groups of a model's parameters: one bar for each array, coloured by group.

python docs/examples/draw_groups.py groups.svg
"""

import sys

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from eqopt import groups


class Classifier(eqx.Module):
    embedding: eqx.nn.Embedding
    layers: list[eqx.nn.MLP]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 6)
        self.embedding = eqx.nn.Embedding(100, 16, key=keys[0])
        self.layers = [eqx.nn.MLP(16, 16, 32, 1, key=k) for k in keys[1:5]]
        self.norm = eqx.nn.LayerNorm(16)
        self.head = eqx.nn.Linear(16, 10, key=keys[5])


def draw(axes, title, of_groups, model, names=None):
    """One bar for each parameter, as long as the logarithm of its size.

    **Arguments:**

    - `of_groups`: a function of the parameters: a mask, labels, or factors.
    - `names`: what to call the groups.
    """
    params = eqx.filter(model, eqx.is_inexact_array)
    is_none = lambda x: x is None  # what is no parameter
    places = jtu.tree_leaves_with_path(params, is_leaf=is_none)
    found = jtu.tree_leaves(of_groups(params), is_leaf=is_none)
    rows = [
        (jtu.keystr(path), leaf.size, group)
        for (path, leaf), group in zip(places, found, strict=True)
        if leaf is not None
    ]
    kinds = sorted({group for _, _, group in rows}, reverse=True)
    if len(kinds) == 2:
        colours = ["#1f4e9c", "#d95f02"]
    else:
        colours = colormaps["Blues"](np.linspace(1, 0.25, len(kinds)))
    for i, (_, size, group) in enumerate(rows):
        axes.barh(i, np.log10(size), color=colours[kinds.index(group)], height=0.8)
    for group, colour in zip(kinds, colours, strict=True):
        label = group if names is None else names[group]
        axes.barh(0, 0, color=colour, label=str(label))
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_yticks(range(len(rows)), [path for path, _, _ in rows])
    axes.tick_params(labelsize=7)
    axes.set_xlim(0, 4.4)
    axes.set_xticks([1, 2, 3], ["10", "100", "1000"])
    axes.set_xlabel("elements", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, loc="lower right", framealpha=1)


def main(output: str) -> None:
    model = Classifier(jax.random.key(0))
    figure = Figure(figsize=(9.2, 5.4), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    panels[0].invert_yaxis()

    no_decay = groups.path(r"\.bias$") | groups.module(eqx.nn.LayerNorm)
    names = {True: "decays", False: "does not decay"}
    draw(panels[0], "no decay for\nbiases and norms", ~no_decay, model, names)

    hidden = groups.where(lambda m: m.layers) & groups.leaf(lambda x: x.ndim == 2)
    labels = groups.label({"Muon": hidden, "AdamW": groups.everything})
    draw(panels[1], "Muon for the\nhidden matrices", labels, model)

    factors = groups.layerwise_decay(
        0.8, lambda m: m.embedding, lambda m: m.layers, lambda m: (m.norm, m.head)
    )
    rounded = lambda m: jax.tree.map(lambda x: round(float(x), 2), factors(m))
    draw(panels[2], "learning rate\ntimes 0.8 per layer", rounded, model)

    encoder = groups.where(lambda m: (m.embedding, m.layers))
    names = {True: "frozen", False: "trained"}
    draw(panels[3], "a frozen\nencoder", encoder, model, names)
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
