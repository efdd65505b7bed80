"""The shapes of the parameters for which steps are compiled."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike


def _transformer(blocks: int, width: int) -> dict[str, Any]:
    square, wide = (width, width), (4 * width, width)
    block = {
        **dict.fromkeys(("q", "k", "v", "o"), square),
        "up": wide,
        "down": wide[::-1],
        "n1": (width,),
        "n2": (width,),
    }
    parts = {f"b{i}": block for i in range(blocks)}
    return {"emb": (8192, width), "norm": (width,), **parts}


_SHAPES = {
    "wide": _transformer(4, 4096),
    "lm": _transformer(8, 1024),
    "mats": {f"l{i}": (1024, 1024) for i in range(12)},
    "leaves": {f"l{i}": (64, 64) if i % 2 else (64,) for i in range(1000)},
}

MODELS = {
    "wide": "a transformer with 4 blocks of width 4096",
    "lm": "a transformer with 8 blocks of width 1024",
    "mats": "12 matrices of 1024 x 1024",
    "leaves": "500 matrices of 64 x 64 and 500 vectors of 64",
}


def params_of(model: str, dtype: DTypeLike = jnp.float32) -> dict[str, Any]:
    """The parameters of a model, as shapes. `model` is a key of `MODELS`."""
    is_shape = lambda x: isinstance(x, tuple)
    shaped = lambda shape: jax.ShapeDtypeStruct(shape, dtype)
    return jax.tree.map(shaped, _SHAPES[model], is_leaf=is_shape)
