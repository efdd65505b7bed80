"""Rules over paths, leaves, modules and places, and what is made of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt import groups


class Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    layers: list[eqx.nn.MLP]
    stack: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, depth=3):
        key = jr.key(0)
        self.embedding = eqx.nn.Embedding(5, 2, key=key)
        self.layers = [eqx.nn.MLP(2, 2, 2, 1, key=key) for _ in range(depth)]
        make = eqx.filter_vmap(lambda key: eqx.nn.Linear(2, 2, key=key))
        self.stack = make(jr.split(key, 2))
        self.norm = eqx.nn.LayerNorm(2)
        self.head = eqx.nn.Linear(2, 5, key=key)


MODEL = Transformer()
PARTS = (
    lambda m: m.embedding,
    lambda m: m.layers,
    groups.stacked(lambda m: m.stack),
    lambda m: (m.norm,),
    lambda m: m.head,
)


BIASES_OF_LAST = [f".layers[{i}].layers[1].bias" for i in range(3)]


def chosen(tree):
    """The key paths at which a tree holds `True`."""
    return {jax.tree_util.keystr(p) for p, x in jax.tree.leaves_with_path(tree) if x}


@pytest.mark.parametrize(
    ("selector", "paths"),
    [
        (groups.path(r"^\.head"), {".head.weight", ".head.bias"}),
        (groups.glob("head/*"), {".head.weight", ".head.bias"}),
        (groups.glob("h[ea]?d/w*"), {".head.weight"}),
        (groups.glob("layers/**/1/bias"), {*BIASES_OF_LAST}),
        (groups.glob("**/layers/**/layers/1/bias/**"), {*BIASES_OF_LAST}),
        (groups.glob("**/**/norm/**"), {".norm.weight", ".norm.bias"}),
        (
            groups.module(eqx.nn.LayerNorm, eqx.nn.Embedding),
            {".embedding.weight", ".norm.weight", ".norm.bias"},
        ),
        (
            groups.where(lambda m: (m.norm, m.head.bias)),
            {".norm.weight", ".norm.bias", ".head.bias"},
        ),
        (groups.leaf(lambda x: x.ndim == 3), {".stack.weight"}),
        (groups.path("head") & groups.leaf(lambda x: x.ndim == 2), {".head.weight"}),
        (
            groups.path("embedding") | groups.where(lambda m: m.head.bias),
            {".embedding.weight", ".head.bias"},
        ),
        (~groups.path("layers|stack|norm|head"), {".embedding.weight"}),
        (groups.path("nothing", required=False), set()),
    ],
    ids=lambda x: getattr(x, "description", ""),
)
def test_selectors(selector, paths):
    for tree in (MODEL, eqx.filter(MODEL, eqx.is_inexact_array)):
        mask = selector(tree)
        assert jax.tree.structure(mask) == jax.tree.structure(tree, lambda x: x is None)
        assert chosen(mask) == paths


def test_a_selector_is_a_mask():
    no_decay = groups.path(r"\.bias$") | groups.module(eqx.nn.LayerNorm)
    opt = eqopt.AdamW(0.1, weight_decay=0.5, mask=~no_decay)
    zeros = jax.tree.map(jnp.zeros_like, eqx.filter(MODEL, eqx.is_inexact_array))
    new, _ = eqx.filter_jit(opt.step)(zeros, opt.init(MODEL), MODEL)
    np.testing.assert_array_equal(new.head.bias, MODEL.head.bias)
    np.testing.assert_array_equal(new.norm.weight, MODEL.norm.weight)
    np.testing.assert_allclose(new.head.weight, 0.95 * MODEL.head.weight, rtol=1e-6)


def test_everything_is_frozen():
    """A whole model has leaves that are not parameters."""
    opt = eqopt.SelectiveTransform(eqopt.AdamW(1e-3), freeze_mask=True)
    grads = jax.tree.map(jnp.ones_like, eqx.filter(MODEL, eqx.is_inexact_array))
    new, _ = eqx.filter_jit(opt.step)(grads, opt.init(MODEL), MODEL)
    assert eqx.tree_equal(new, MODEL)


def is_matrix(x):
    return x.ndim >= 2


def head(model):
    return model.head


@pytest.mark.parametrize(
    "make",
    [
        lambda: groups.path(r"\.bias$"),
        lambda: groups.leaf(is_matrix),
        lambda: groups.module(eqx.nn.LayerNorm, eqx.nn.Embedding),
        lambda: groups.where(head),
        lambda: groups.everything,
        lambda: ~groups.path("norm"),
        lambda: groups.path("norm") | groups.leaf(is_matrix),
        lambda: groups.path("norm") & ~groups.module(eqx.nn.LayerNorm),
        lambda: groups.label({"a": groups.path("norm"), "b": groups.everything}),
        lambda: groups.layerwise_decay(0.5, head, groups.stacked(head)),
    ],
)
def test_made_twice_is_equal(make):
    """So two states that hold it in a static field have one structure."""
    assert make() == make()
    assert hash(make()) == hash(make())
    opt = eqopt.Chain(eqopt.ScaleByTree(make()))
    assert opt == eqopt.Chain(eqopt.ScaleByTree(make()))


def test_made_otherwise_is_not_equal():
    decay = jnp.asarray(0.5)
    made = [
        groups.path("norm"),
        groups.path("norm", required=False),
        groups.path("head"),
        ~groups.path("norm"),
        groups.path("norm") | groups.path("head"),
        groups.path("norm") & groups.path("head"),
        groups.module(eqx.nn.LayerNorm),
        groups.leaf(lambda x: x.ndim == 1),
        groups.leaf(lambda x: x.ndim == 2),
        groups.label({"a": groups.path("norm"), "b": groups.everything}),
        groups.label({"a": groups.path("head"), "b": groups.everything}),
        groups.layerwise_decay(0.5, head),
        groups.layerwise_decay(0.25, head),
        groups.layerwise_decay(0.5, head, head),
        groups.layerwise_decay(decay, head),
        groups.layerwise_decay(decay + 0, head),
    ]
    assert len({*made}) == len(made)
    # An array is only equal to itself: its value may be traced.
    assert groups.layerwise_decay(decay, head) == groups.layerwise_decay(decay, head)


def test_layerwise_decay():
    factors = groups.layerwise_decay(0.5, *PARTS)(MODEL)
    # From the top: head, norm, two stacked layers, three in a list, embedding.
    assert factors.head.weight == factors.head.bias == 1
    assert factors.norm.weight == 0.5
    assert factors.stack.bias.tolist() == [[0.125], [0.25]]
    assert factors.stack.weight.shape == (2, 1, 1)
    assert [float(m.layers[0].weight) for m in factors.layers] == [2**-6, 2**-5, 2**-4]
    assert factors.embedding.weight == 2**-7


def test_layers_without_parameters_do_not_count():
    linear, relu = MODEL.head, eqx.nn.Lambda(jax.nn.relu)
    layers = [linear, relu, linear, eqx.nn.Dropout(0.1), jax.nn.relu]
    model = {"none": None, "layers": eqx.nn.Sequential(layers[:-1]), "list": layers}
    factors = groups.layerwise_decay(
        0.5,
        lambda m: m["layers"].layers,
        groups.stacked(lambda m: m["none"]),
        lambda m: m["list"],
    )
    for tree in (model, eqx.filter(model, eqx.is_inexact_array)):
        found = factors(tree)
        weights = [found["layers"][0], found["layers"][2]]
        weights += [found["list"][0], found["list"][2]]
        assert [float(x.weight) for x in weights] == [0.125, 0.25, 0.5, 1]


def test_a_selector_is_a_layer():
    factors = groups.layerwise_decay(0.5, groups.path(r"^\.embedding"), *PARTS[1:])
    assert eqx.tree_equal(factors(MODEL), groups.layerwise_decay(0.5, *PARTS)(MODEL))


def test_scale_by_tree():
    opt = eqopt.Chain(
        eqopt.SGD(1.0), eqopt.ScaleByTree(groups.layerwise_decay(0.5, *PARTS))
    )
    grads = jax.tree.map(jnp.ones_like, eqx.filter(MODEL, eqx.is_inexact_array))
    updates, _ = eqx.filter_jit(opt.update)(grads, opt.init(MODEL), MODEL)
    assert (updates.stack.weight[0] == -0.125).all()
    assert (updates.norm.bias == -0.5).all()
    prefix, _ = eqopt.ScaleByTree({"a": 2.0, "b": None}).update(
        {"a": [jnp.ones(2), None], "b": jnp.ones((), jnp.bfloat16)}, None
    )
    assert prefix["a"][0].tolist() == [2, 2]
    assert prefix["b"] == 1 and prefix["b"].dtype == jnp.bfloat16


@pytest.mark.slow
def test_table():
    matrices = groups.leaf(lambda x: x.ndim >= 2) & ~groups.path(r"stack\.bias")
    labels = groups.label({"matrix": matrices, "other": groups.everything})
    printed = groups.table(labels, MODEL)
    header, body = printed.split("\n\n")
    assert header.splitlines()[0].split() == ["group", "arrays", "parameters"]
    assert ".layers[0-2].layers[0-1].weight  (2, 2)" in body
    assert ".stack.weight                    (2, 2, 2)  float32  matrix" in body
    large = groups.table(groups.everything, Transformer(depth=200))
    assert len(large.splitlines()) < 20


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (
            lambda: groups.path("biass")(MODEL),
            ["`path('biass')` matches no parameter", "`.embedding.weight`", "more"],
        ),
        (
            lambda: eqopt.AdamW(0.1, mask=not groups.everything),
            ["`everything` is neither true nor false", "`&`, `|` and `~`"],
        ),
        (
            lambda: groups.where(lambda m: m.head.in_features)(MODEL),
            [
                "`<lambda>` must return parts of the model",
                "2 of type int",
                "Static fields",
            ],
        ),
        (
            lambda: groups.leaf(lambda x: None)(MODEL),
            ["eqopt.groups: `<lambda>` returned None", "Does it lack a `return`?"],
        ),
        (
            lambda: groups.label({"a": groups.everything, "b": groups.path("head")})(
                MODEL
            ),
            ["label: the rule `b` comes too late"],
        ),
        (
            lambda: groups.layerwise_decay(0.5, *PARTS[1:])(MODEL),
            ["each parameter must belong to exactly one", "`.embedding.weight`"],
        ),
        (
            lambda: eqopt.ScaleByTree(jnp.ones(3)).update({"a": jnp.ones(2)}, None),
            ["`factors`", "shape (2,) at `['a']`", "has shape (3,)"],
        ),
        (
            lambda: eqopt.Partition(
                {"a": eqopt.SGD(0.1)}, {"x": "a", "y": "b", "z": None}
            ).init({"x": jnp.ones(2), "y": jnp.ones(2), "z": jnp.ones(2)}),
            ["labels ['a']", "`['y']` has the label 'b'", "`['z']` has no label"],
        ),
    ],
)
def test_errors(call, parts):
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    for part in parts:
        assert part in str(raised.value)
