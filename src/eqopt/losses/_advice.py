"""The code that makes an array fit another."""

from typing import Any

import jax.numpy as jnp


def advice(name: str, array: Any, target: str, shape: tuple[int, ...]) -> str:
    """How to give `array`, called `name` by the user, the shape `target`."""
    own = jnp.shape(array)
    whole = lambda n: ", ".join([":"] * n)
    if own and _without_ones(own) == _without_ones(shape):
        return f"Pass `{name}[{_index(own, shape)}]`."
    if len(own) > 1 and own == shape[::-1]:
        return f"Pass `jnp.transpose({name})`."
    if name == "labels" and own == shape[:-1] and jnp.asarray(array).dtype.kind in "iu":
        return f"Convert integer labels with `jax.nn.one_hot({name}, {shape[-1]})`."
    if own and own == shape[: len(own)]:
        index = ", ".join([whole(len(own))] + ["None"] * (len(shape) - len(own)))
        return _repeat(f"{name}[{index}]", target)
    if _broadcasts(own, shape):
        return _repeat(name, target)
    return (
        "Adding, dropping or repeating axes does not make it fit. Do the two come "
        "from the same batch?"
    )


def _repeat(code: str, target: str) -> str:
    return f"To repeat it, pass `jnp.broadcast_to({code}, {target})`."


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


def _index(own: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """The index in brackets that turns `own` into `shape`, if only ones differ."""
    left, right, index = list(own), list(shape), []
    while left or right:
        if left and right and left[0] == right[0]:
            index.append(":")
            del left[0], right[0]
        elif right and right[0] == 1:
            index.append("None")
            del right[0]
        else:
            index.append("0")
            del left[0]
    return ", ".join(index)


def _broadcasts(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    pairs = zip(own[::-1], shape[::-1], strict=False)
    return len(own) <= len(shape) and all(m in (1, n) for m, n in pairs)
