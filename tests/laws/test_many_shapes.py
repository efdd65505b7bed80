"""Methods for matrices and layers, on arrays of many shapes.

The other laws train a 3 x 2 matrix, a vector and a scalar. A matrix with equal sides, or
a bias with the shape of a moment, can be mistaken for something else; so can a kernel of
a convolution, an axis of length one, and an array without elements.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import pytest

from eqopt.testing._check import check
from eqopt.testing._trial import Trial

from ..methods import BY_FAMILY
from .registry import PARTS, law
from .subjects import assert_close, grads_of, normal, train


SMALL = {"empty": (0, 4), "one": (1, 1), "row": (1, 4), "scalar": ()}

# Methods that look at shapes.
NAMES = PARTS & {
    row.name
    for family in ("layerwise", "matrix")
    for method in BY_FAMILY[family]
    for row in method.laws
}

# The other laws of `eqopt.testing` take long, or depend less on shapes.
LAWS = "updates", "state", "zero_gradients", "vmap"


def many() -> dict:
    """Layers of Equinox and arrays, each at its own key."""
    key = jr.key(0)
    layer = lambda k: eqx.nn.Linear(4, 4, key=k)
    arrays = normal(0, [*SMALL.values()], len(SMALL) * [jnp.float32])
    return dict(zip(SMALL, arrays, strict=True)) | {
        "conv": eqx.nn.Conv2d(2, 3, 2, key=key),
        "square": layer(key),
        "stack": eqx.filter_vmap(layer)(jr.split(key, 2)),
        "wide": eqx.nn.Linear(6, 2, key=key),
    }


@law(names=NAMES, quick={"ScaleByTrustRatio"})
@pytest.mark.usefixtures("uncompiled")
def test_shipped_laws(row):
    asked = [name for name in LAWS if name not in row.exempt]
    check(Trial(row(), many()), asked)


OTHER = {name: f"{90 - i}" for i, name in enumerate(sorted(many()))}


def moved(tree: dict) -> dict:
    """The same at other keys, in the opposite order."""
    return {OTHER[name]: x for name, x in tree.items()}


@law(names=NAMES, quick={"ScaleByTrustRatio"})
def test_the_order_of_leaves_does_not_matter(row):
    params = many()
    grads = lambda _, i: moved(grads_of(params, i))
    here, _ = train(row(), params, 3)
    there, _ = train(row(), moved(params), 3, grads=grads)
    assert_close({name: there[OTHER[name]] for name in here}, here)
