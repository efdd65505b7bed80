"""Keeps the state of any transformation in the memory of the host."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array

from .._arguments.fields import static_choice
from .._core import AbstractTransformation, AbstractWrapper, Call
from .._trees.stored import AbstractStored, fetched, is_stored
from .._types import Model, Params, PyTree, Size, State
from ..checkpoint._file import layout


class OffloadState(eqx.Module):
    """The state of [`eqopt.Offload`][].

    **Attributes:**

    - `inner_state`: the inner state, in which large arrays are in the host's memory.
    """

    inner_state: State


class Offload(AbstractWrapper):
    """Keeps the state in the memory of the host instead of the memory of the device.

    In each step, arrays of the state are copied to the device, used, and copied back.
    The result is the same. Use this for a model that does not fit otherwise: the device
    then holds the parameters, the gradients, and the arrays that XLA has fetched. The
    price is the time for both copies, at the bandwidth between host and device. [On
    accelerators](../accelerators.md#state-in-the-memory-of-the-host) has times, and says
    what to do if XLA fetches too much at once. Fewer bits take less time:
    `Offload(StoreState(opt, storage))`. So do fewer steps, with gradients that
    [`eqopt.microbatching.microbatch`][] has accumulated.

    Call `init` under `jit`, so that the state is never whole on the device. It is
    sharded as without this wrapper. On a CPU, the two memories are the same, so it
    works, but saves nothing. A state that is on the device after all, because
    `eqx.filter_shard` or `eqx.tree_deserialise_leaves` put it there, goes back to the
    host in the next step.

    Derivatives with respect to earlier steps are zero, because they do not pass through
    the copies.

    !!! example

        ```python
        opt = eqopt.Offload(eqopt.AdamW(1e-3))
        state = eqx.filter_jit(opt.init)(model)
        ```

    **Arguments:**

    - `inner`: the whole optimizer: put clipping, averages, `SkipStep`, `StoreState` and
        `ZeRO1` inside.
    - `min_size`: arrays with fewer elements stay on the device, at least 1. So do 0-d
        arrays. Defaults to 4096.

    **Raises:**

    A `ValueError` if `min_size` is not a positive integer. In `update`, a `ValueError` if
    it is inside a transformation that skips some of the steps.

    ??? cite "Reference"

        The idea, there with steps on the CPU:

        ```bibtex
        @inproceedings{ren2021zero,
            author = {Ren, Jie and Rajbhandari, Samyam and Aminabadi, Reza Yazdani and
                      Ruwase, Olatunji and Yang, Shuangyan and Zhang, Minjia and
                      Li, Dong and He, Yuxiong},
            title = {{ZeRO-Offload}: Democratizing Billion-Scale Model Training},
            booktitle = {USENIX Annual Technical Conference},
            year = {2021},
        }
        ```
    """

    inner: AbstractTransformation
    min_size: Size = static_choice(static=True, default=4096)

    def init(self, params: Params) -> OffloadState:
        moved = lambda x: OnHost.of(x) if _is_moved(x, self.min_size) else x
        state = self.inner.init(params)
        return OffloadState(jtu.tree_map(moved, state, is_leaf=is_stored))

    def handle(self, call: Call, state: OffloadState) -> tuple[Any, State]:
        old = state.inner_state
        result, new = call.run(self.inner, fetched(old))
        back = lambda x, y: OnHost.of(y) if isinstance(x, OnHost) else y
        return result, OffloadState(jtu.tree_map(back, old, new, is_leaf=is_stored))

    def eval_params(self, state: State, params: Model) -> Model:
        return super().eval_params(fetched(state), params)


# The dtypes of the hidden bits of parameters. Keys and counts have others.
_HIDDEN = (jnp.uint8, jnp.uint16)


def _is_moved(x: Any, min_size: int) -> bool:
    if not (eqx.is_array(x) or is_stored(x)) or x.size < min_size:
        return False
    if x.ndim == 0:  # it would have the shape and dtype of a count
        return False
    return jnp.issubdtype(x.dtype, jnp.inexact) or x.dtype in _HIDDEN


class OnHost(AbstractStored):
    """An array, or an object that stores one, in the memory of the host.

    JAX pairs the donated arguments of a program with its results by shape and dtype
    alone, unless all of them have known shardings. Then it might put parameters in the
    memory of the host, or a moment in the memory of the device. So the bits are kept as
    integers: hardly another donated array has this shape, too.
    """

    _is_elsewhere = True

    parts: tuple[tuple[Array, ...], ...]
    dtypes: tuple[Any, ...] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    @staticmethod
    def of(x: PyTree) -> "OnHost":
        arrays, structure = jtu.tree_flatten(x)
        parts = tuple(map(_sent, arrays))
        return OnHost(parts, tuple(x.dtype for x in arrays), structure)

    @property
    def layout_name(self) -> str:
        """What the bits are the bits of, for checkpoints: integers alone do not say."""
        return f"OnHost of {' '.join(text for _, text in layout(self._like))}"

    def _content(self, of: Any) -> Any:
        return self.structure.unflatten(map(of, self.parts, self.dtypes))

    @property
    def like(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self._like.shape, self._like.dtype)

    @property
    def _like(self) -> Any:
        return self._content(lambda p, dtype: jax.ShapeDtypeStruct(p[0].shape, dtype))

    def fetched(self) -> Any:
        """What `of` got, in the memory of the device."""
        return self._content(_received)

    def put_back(self) -> "OnHost":
        return jtu.tree_map(lambda p: jax.device_put(p, _HOST), self)

    def load(self):
        x = self.fetched()
        return x.load() if is_stored(x) else x

    def store(self, new):
        x = self.fetched()
        return OnHost.of(x.store(new) if is_stored(x) else new.astype(x.dtype))


_DEVICE, _HOST = jax.memory.Space.Device, jax.memory.Space.Host
# Not unsigned: arrays of uint32 are the bits of random keys.
_BITS = {1: jnp.int8, 2: jnp.int16, 4: jnp.int32, 8: jnp.int64}


def _sent(x: Array) -> tuple[Array, ...]:
    parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)
    bits = _BITS[parts[0].dtype.itemsize]
    sent = lambda x: jax.device_put(lax.bitcast_convert_type(x, bits), _HOST)
    return tuple(map(sent, parts))


def _received(parts: tuple[Array, ...], dtype: Any) -> Array:
    real = jnp.finfo(dtype).dtype if jnp.issubdtype(dtype, jnp.inexact) else dtype
    x, *imag = (
        lax.bitcast_convert_type(jax.device_put(p, _DEVICE), real) for p in parts
    )
    return lax.complex(x, *imag) if imag else x
