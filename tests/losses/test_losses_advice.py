"""The code in a message about shapes works for the shapes in the message."""

import inspect
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt import losses
from eqopt.losses._advice import advice


SHAPES = [
    *((), (1,), (4,), (4, 1), (1, 4), (4, 3), (3, 4), (3,), (2, 3), (0,), (0, 3)),
    *((4, 1, 1, 1), (1, 4, 1), (4, 3, 1), (4, 1, 3), (2, 4, 3), (2, 4), (4, 3, 2)),
]
PAIRS = [
    *(((4, 1, 1, 1), (4,)), ((4, 3), (4, 1)), ((4, 1), (4,)), ((4,), (4, 1))),
    *(((4, 3), (3, 4)), ((4, 3), (4,)), ((4, 3), (2, 3)), ((2, 4, 3), (4, 3))),
]
NOTHING_FITS = "Adding, dropping or repeating axes does not make it fit"


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("name", ["labels", "targets"])
def test_the_code_gives_the_shape(name, dtype):
    for own, shape in itertools.product(SHAPES, repeat=2):
        if own == shape:
            continue
        array, logits = np.zeros(own, dtype), np.zeros(shape)
        said = advice(name, array, "logits.shape", shape)
        if said.startswith(NOTHING_FITS):
            assert array.size != logits.size or array.size == 0 or own[-1] != shape[-1]
            continue
        (code,) = re.findall("`(.*)`", said)
        names = {"jnp": np, "jax": jax, name: array, "logits": logits}
        assert eval(code, names).shape == shape, code


def arrays(name):
    """The arguments that are arrays, and the dtype of each."""
    needed = [
        p.name
        for p in inspect.signature(getattr(losses, name)).parameters.values()
        if p.default is p.empty
    ]
    takes_ids = name.startswith("multiclass_") and "dice" not in name
    takes_ids |= "integer" in name
    return {x: np.int32 if x == "labels" and takes_ids else np.float32 for x in needed}


LOSSES = [
    name
    for name in dir(losses)
    if name not in ("ntxent", "make_fenchel_young_loss", "smooth_labels")
    and not name.startswith("ctc")
]


def error_of(name, values):
    try:
        jax.eval_shape(lambda **given: getattr(losses, name)(**given), **values)
    except ValueError as error:
        return str(error)
    return None


def advised(message, values):
    """The arguments as the message says; `None` if nothing makes them fit."""
    if NOTHING_FITS in message:
        return None
    *_, code = re.findall("`([^`]*)`", message)
    (name,) = (x for x in re.findall(r"(?:^|\()(\w+)(?=[\[,)])", code) if x in values)
    found = eval(code, {"jnp": jnp, "jax": jax, **values})
    return {**values, name: np.asarray(found)}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.costly
def test_who_follows_the_advice_arrives(name):
    dtypes = arrays(name)
    for shapes in PAIRS:
        shapes = (*shapes, shapes[0])[: len(dtypes)]
        pairs = zip(dtypes.items(), shapes, strict=True)
        values = {x: np.zeros(shape, dtype) for (x, dtype), shape in pairs}
        message = error_of(name, values)
        for _ in range(3):  # one argument after the other
            values = advised(message, values) if message and values else None
            message = error_of(name, values) if values else None
        assert message is None, shapes


MASKED = [
    name
    for name in LOSSES
    if "where" in inspect.signature(getattr(losses, name)).parameters
]


@pytest.mark.parametrize("name", MASKED)
def test_who_follows_the_advice_for_masks_arrives(name):
    for shape, where in ([(4, 3), (3,)], [(2, 4, 3), (4, 3)], [(4, 3), (4, 3, 1)]):
        dtypes = arrays(name)
        values = {
            x: np.zeros(shape[:-1] if dtype is np.int32 else shape, dtype)
            for x, dtype in dtypes.items()
        }
        values["where"] = np.zeros(where, bool)
        message = error_of(name, values)
        assert message is None or error_of(name, advised(message, values)) is None


def test_binary_labels_of_one_axis():
    logits, labels = jnp.zeros((8, 1, 1, 1)), jnp.zeros(8)
    with pytest.raises(ValueError, match=r"`labels\[:, None, None, None\]`"):
        losses.sigmoid_binary_cross_entropy(logits, labels)


def test_words_for_what_does_not_fit():
    with pytest.raises(ValueError, match="from the same batch"):
        losses.l2_loss(jnp.zeros((4, 3)), jnp.zeros((5, 3)))
    with pytest.raises(ValueError, match=r"`jax.nn.one_hot\(labels, 3\)`"):
        losses.softmax_cross_entropy(jnp.zeros((4, 3)), jnp.zeros(4, jnp.int32))
    with pytest.raises(ValueError, match=r"`jnp.argmax\(labels, 1\)`"):
        losses.softmax_cross_entropy_with_integer_labels(
            jnp.zeros((4, 3)), jnp.zeros((4, 3), jnp.int32)
        )
