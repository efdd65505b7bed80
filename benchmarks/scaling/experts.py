"""What experts on several devices exchange: each device has some of them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array, Float

from .collectives import Collective, collectives
from .layouts import AXIS, mesh_of
from .program import placed


def layer(params: dict[str, Array], x: Float[Array, "groups tokens width"]) -> Array:
    """Each token goes to the expert with the largest score, if it has room for it.

    All experts have room for as many tokens as there are, and no more.
    """
    experts, tokens = params["up"].shape[0], x.shape[1]
    split = lambda x: jax.lax.with_sharding_constraint(x, P(AXIS))
    scores = jax.nn.softmax(x @ params["router"])
    chosen = jax.nn.one_hot(jnp.argmax(scores, -1), experts)
    place = jnp.cumsum(chosen, axis=1) * chosen - 1
    # (groups, tokens, experts, room): where each token goes.
    sent = jax.nn.one_hot(place.astype(int), tokens // experts)
    own = split(jnp.einsum("gter,gtd->egrd", sent, x))
    hidden = jax.nn.silu(jnp.einsum("egrd,edh->egrh", own, params["up"]))
    own = split(jnp.einsum("egrh,ehd->egrd", hidden, params["down"]))
    weights = sent * jnp.max(scores, -1)[..., None, None]
    return split(jnp.einsum("gter,egrd->gtd", weights, own))


def gradients(
    devices: list[Any], tokens: int, width: int = 256, hidden: int = 512
) -> list[Collective]:
    """The collectives of a pass forward and back, with as many tokens on each device."""
    n, mesh = len(devices), mesh_of(len(devices), devices=devices)
    split, whole = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P())
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    arrays = {"up": array(n, width, hidden), "down": array(n, hidden, width)}
    params = placed(arrays, split) | placed({"router": array(width, n)}, whole)
    x = placed(array(n, tokens, width), split)
    places = jax.tree.map(lambda x: x.sharding, (params, x))

    @functools.partial(jax.jit, out_shardings=places)
    def step(params, x):
        return jax.grad(lambda *both: jnp.sum(layer(*both) ** 2), (0, 1))(params, x)

    with jax.set_mesh(mesh):
        program: Any = step.lower(params, x).compile()
    return collectives(program.as_text())


def exchanged(devices: list[Any], tokens: int) -> tuple[float, int]:
    """The bytes that a device sends, and the bytes of its own tokens."""
    width = 256
    sent = sum(one.sent for one in gradients(devices, tokens, width))
    return sent, 4 * tokens * width
