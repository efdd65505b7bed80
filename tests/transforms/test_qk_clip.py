"""QK-Clip, beyond the laws: which rows it scales, and how far."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ..interpreter import interpreted


RATE = 0.1


class Attention(eqx.Module):
    """Four heads of two features. `both` has queries, keys and values in this order."""

    query: eqx.nn.Linear
    key: eqx.nn.Linear
    both: jax.Array

    def __init__(self, key_features, key):
        keys = jr.split(key, 3)
        self.query = eqx.nn.Linear(3, 8, key=keys[0])
        self.key = eqx.nn.Linear(3, key_features, key=keys[1])
        self.both = jr.normal(keys[2], (8 + 2 * key_features, 3))


def layers(key_features=8, is_stacked=False):
    make = lambda key: Attention(key_features, key)
    keys = jr.split(jr.key(0), 2)
    return eqx.filter_vmap(make)(keys) if is_stacked else [make(key) for key in keys]


def queries(model):
    return [x.query for x in model] if isinstance(model, list) else model.query


def keys(model):
    return [x.key for x in model] if isinstance(model, list) else model.key


def both(model):
    return [x.both for x in model] if isinstance(model, list) else model.both


def logits_of(step):
    """For each layer and each head, below and above any threshold here."""
    return 10 * np.random.default_rng(step).uniform(size=(2, 4))


def grads_of(model, step):
    return jax.tree.map(lambda p: jnp.asarray(np.cos(3 * np.asarray(p) + step)), model)


def trained(opt, model, steps, call="step"):
    """Gradient descent, and then `opt`."""
    opt = eqopt.Chain(eqopt.SGD(RATE), opt)
    state = opt.init(model)
    fn = interpreted(lambda *args: getattr(opt, call)(*args[1:], max_logits=args[0]))
    for i in range(steps):
        logits = jnp.asarray(logits_of(i))
        logits = [*logits] if isinstance(model, list) else logits
        result, state = fn(logits, grads_of(model, i), state, model)
        model = result if call == "step" else eqopt.apply_updates(model, result)
    return model


def by_hand(x, steps, powers, threshold, groups=4):
    """A parameter with two layers; `powers` says for each head and feature what to do."""
    for i in range(steps):
        x = x - RATE * np.cos(3 * x + i)
        for layer, of_layer in enumerate(logits_of(i)):
            row = 0
            for head, of_head in powers:
                group = of_layer.reshape(groups, -1)[head]
                gamma = min(1.0, threshold / group.max())
                for power in of_head:
                    x[layer, row] = gamma**power * x[layer, row]
                    row += 1
            assert row == x.shape[1]
    return x


HALF, WHOLE, NOTHING = 0.5, 1.0, 0.0
# Of each head: its group, and the power for each of its features.
FOUR = [(head, (HALF, HALF)) for head in range(4)]
TWO = [(head, (HALF, HALF)) for head in range(2)]
PAIRS = [(head // 2, (HALF, HALF)) for head in range(4)]
VALUES = [(head, (NOTHING, NOTHING)) for head in range(4)]
LATENT = [(head, (HALF, WHOLE)) for head in range(4)]
KEYS_AND_VALUES = [(head, (HALF, NOTHING)) for head in range(4)]
CASES = {
    "heads": ({}, 8, FOUR, FOUR, 4),
    "groups": ({"key_heads": 2}, 4, PAIRS, TWO, 2),
    "latent": ({"unrotated": 1}, 8, LATENT, KEYS_AND_VALUES, 4),
}


def stack(model):
    return jax.tree.map(lambda *x: np.stack(x), *model)


@pytest.mark.parametrize("is_stacked", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.costly
def test_it_follows_its_equations(case, is_stacked, x64):
    options, key_features, of_queries, of_keys, groups = CASES[case]
    with x64():
        model = layers(key_features, is_stacked)
        model = jax.tree.map(lambda x: x.astype(float), model)
        opt = eqopt.QKClip(queries, keys, 3.5, **options)
        new = trained(opt, model, 30)
    old, new = (x if is_stacked else stack(x) for x in (model, new))
    pairs = [
        (of_queries, lambda x: x.query.weight),
        (of_queries, lambda x: x.query.bias),
        (of_keys, lambda x: x.key.weight),
        (of_keys, lambda x: x.key.bias),
    ]
    for powers, part in pairs:
        expected = by_hand(np.array(part(old)), 30, powers, 3.5, groups)
        np.testing.assert_allclose(part(new), expected, 1e-9, 1e-12)


@pytest.mark.parametrize("case", ["heads", "groups"])
@pytest.mark.slow
def test_queries_keys_and_values_in_one(case, x64):
    options, key_features, of_queries, of_keys, groups = CASES[case]
    with x64():
        model = jax.tree.map(lambda x: x.astype(float), layers(key_features, True))
        new = trained(eqopt.QKClip(qkv=both, threshold=3.5, **options), model, 5)
    powers = [*of_queries, *of_keys, *VALUES[:groups]]
    expected = by_hand(np.array(model.both), 5, powers, 3.5, groups)
    np.testing.assert_allclose(new.both, expected, 1e-9)
    np.testing.assert_array_equal(
        new.query.weight, by_hand(np.array(model.query.weight), 5, VALUES, 3.5)
    )


@pytest.mark.slow
def test_heads_below_the_threshold_take_the_step_bit_by_bit():
    model = layers(is_stacked=True)
    plain = eqopt.SGD(RATE)
    grads = grads_of(model, 0)
    expected, _ = plain.step(grads, plain.init(model), model)
    opt = eqopt.Chain(plain, eqopt.QKClip(queries, keys, 5.0))
    ordinary = jnp.array([[1.0, 5.0, 0.0, -3.0], [jnp.nan, jnp.inf, -jnp.inf, 2.0]])
    new, _ = opt.step(grads, opt.init(model), model, max_logits=ordinary)
    assert bool(eqx.tree_equal(new, expected))


def test_features_on_another_axis():
    """Weights with their inputs first: all heads on one axis, or on an axis of heads."""
    rows = jnp.ones((8, 3))
    halved = np.where(np.arange(8) // 2 == 1, 0.5, 1.0)[:, None] * rows
    for x, axis, expected in [
        (rows.T, -1, halved.T),
        (rows.T.reshape(3, 4, 2), 1, halved.T.reshape(3, 4, 2)),
    ]:
        opt = eqopt.QKClip(lambda x: x["q"], lambda x: x["k"], 1.0, axis=axis)
        model = {"q": x, "k": x}
        zeros = jax.tree.map(jnp.zeros_like, model)
        logits = jnp.array([1.0, 4.0, 0.5, 1.0])
        new, _ = opt.step(zeros, opt.init(model), model, max_logits=logits)
        np.testing.assert_allclose(new["q"], expected)
        np.testing.assert_allclose(new["k"], expected)


def test_parameters_that_are_not_trained():
    """In another group of a partition, and without a gradient."""
    model = layers()
    clip, plain = eqopt.QKClip(queries, keys, 1e-6), eqopt.SGD(RATE)
    labels = eqopt.groups.label(
        {"keys": eqopt.groups.where(keys), "rest": eqopt.groups.everything}
    )
    opt = eqopt.Partition({"keys": clip, "rest": plain}, labels)
    grads = eqx.tree_at(lambda x: x[0].key.bias, grads_of(model, 0), None)
    logits = [*jnp.ones((2, 4))]
    new, _ = opt.step(grads, opt.init(model), model, max_logits=logits)
    np.testing.assert_array_equal(new[0].key.bias, model[0].key.bias)
    assert (np.abs(new[0].key.weight) < 0.01).all()
    expected, _ = plain.step(grads, plain.init(model), model)
    np.testing.assert_array_equal(new[0].query.weight, expected[0].query.weight)


HEADS = (
    "`.query.weight`, selected by `query`, is float32[2,8,3], which does not have the "
    "heads of its `max_logits`, of shape "
)
TREE = "`max_logits` must be a tree like the result of `query`, or a prefix of it"


def call(*arguments, logits, is_stacked=True, **options):
    model = layers(is_stacked=is_stacked)
    opt = eqopt.QKClip(*arguments, **options)
    opt.step(grads_of(model, 0), opt.init(model), model, max_logits=logits)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: eqopt.QKClip(queries), "pass both `query` and `key`"),
        (lambda: eqopt.QKClip(key=keys, qkv=both), "pass both `query` and `key`"),
        (lambda: eqopt.QKClip(qkv=both, unrotated=1), "takes no `unrotated`"),
        (
            lambda: eqopt.QKClip(lambda x: None, keys).init(layers()),
            "`query` must return layers or arrays of the model, but selects no",
        ),
        (
            lambda: eqopt.QKClip(lambda model: 1, keys).init(layers()),
            "QKClip: `query` must return parts of the model, such as `lambda m: m.lay",
        ),
        (lambda: call(queries, keys, logits=None), TREE),
        (lambda: call(queries, keys, logits=jnp.ones((3, 4))), f"{HEADS}(3, 4)"),
        (lambda: call(queries, keys, logits=jnp.ones(())), f"{HEADS}()"),
        (lambda: call(queries, keys, logits=jnp.ones((2, 4)), axis=5), HEADS),
        (lambda: call(queries, keys, logits=jnp.ones((2, 4)), key_heads=3), HEADS),
        (lambda: call(queries, keys, logits=jnp.ones((2, 5))), HEADS),
        (lambda: call(queries, keys, logits=jnp.ones((2, 4)), unrotated=3), HEADS),
    ],
)
@pytest.mark.costly
def test_errors(bad, message):
    with pytest.raises((TypeError, ValueError)) as error:
        bad()
    assert str(error.value).startswith("QKClip")
    assert message in str(error.value)
