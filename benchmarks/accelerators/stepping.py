"""Compiles one step of an optimizer, and counts or times it."""

import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import SingleDeviceSharding
from jaxtyping import DTypeLike, PyTree

import eqopt
from eqopt._trees.stored import put_back
from eqopt._wrappers.offload import OnHost

from .cost import cost
from .devices import PLATFORMS, device
from .models import params_of


class Step(NamedTuple):
    """A compiled step that donates parameters and state, and the shapes of both."""

    program: Any
    opt: Any
    params: PyTree
    state: PyTree


def compiled(opt: Any, params: PyTree, platform: str | None = None) -> Step:
    """Compiles a step.

    **Arguments:**

    - `opt`: a transformation of eqopt or of Optax.
    - `params`: shapes of parameters.
    - `platform`: a key of `PLATFORMS`. By default, the device of this process.
    """
    here = jax.devices()[0] if platform is None else device(platform)
    lowering = None if platform is None else (PLATFORMS[platform].lowering,)
    value = _placed(jax.ShapeDtypeStruct((), jnp.float32), here)
    params = _placed(params, here)
    state = _placed(jax.eval_shape(opt.init, params), here)
    step = jax.jit(_step_of(opt), donate_argnums=(0, 1))
    traced = step.trace(params, state, params, value)
    return Step(traced.lower(lowering_platforms=lowering).compile(), opt, params, state)


def _placed(shapes: PyTree, device: Any) -> PyTree:
    """Shapes on a device, where `Offload` keeps its arrays in the memory of the host."""

    def place(x: Any) -> Any:
        kind = "pinned_host" if isinstance(x, OnHost) else "device"
        sharding = SingleDeviceSharding(device, memory_kind=kind)
        of = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        return jax.tree.map(of, x)

    return jax.tree.map(place, shapes, is_leaf=lambda x: isinstance(x, OnHost))


def _step_of(opt: Any) -> Any:
    """A step with the loss as an extra argument, which few methods use."""
    if isinstance(opt, eqopt.AbstractTransformation):
        # Shapes do not say in which memory an array is.
        return lambda params, state, grads, value: opt.step(
            grads, put_back(state), params, value=value
        )
    theirs = optax.with_extra_args_support(opt)

    def step(params, state, grads, value):
        updates, state = theirs.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    return step


def counted(step: Step, bandwidth: float) -> dict[str, Any]:
    """The cost of a step. Bytes are multiples of the bytes of the parameters.

    - `state`, `temporary`: the bytes of the state, and the temporary memory.
    - `limit`: what the step moves if it reads each argument once, and writes each result
        once.
    - `least`, `most`, `kernels`, `products`, `copies`, `custom`: see `Cost`.
    - `roofline`: the milliseconds in which memory moves `least`.
    """
    memory, found = step.program.memory_analysis(), cost(step.program.as_text())
    unit = _nbytes(step.params)
    limit = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {
        "state": _nbytes(step.state) / unit,
        "limit": limit / unit,
        "least": found.least / unit,
        "most": found.most / unit,
        "temporary": memory.temp_size_in_bytes / unit,
        "kernels": found.kernels,
        "products": found.products,
        "copies": found.copies,
        "custom": dict(found.custom),
        "unknown_loops": found.unknown_loops,
        "roofline": 1e3 * found.least / bandwidth,
    }


def counts(opt: Any, model: str, dtype: DTypeLike, platform: str) -> dict[str, Any]:
    """What a step costs, compiled for a platform: see `counted`."""
    step = compiled(opt, params_of(model, dtype), platform)
    return counted(step, PLATFORMS[platform].bandwidth)


WARM_UP, STEPS, ROUNDS = 3, 10, 3


def timed(opt: Any, model: str, dtype: DTypeLike, bandwidth: float) -> dict[str, Any]:
    """What a step costs, and its time on this device.

    In addition to `counted`: `ms`, the milliseconds of a step, and `host`, those until
    the call returns. With more `host` than work for the device, the device waits.
    """
    step = compiled(opt, params_of(model, dtype))
    params, grads = _drawn(step.params, 0.02), _drawn(step.params, 1e-3)
    state = jax.tree.map(jnp.asarray, jax.jit(opt.init)(params))
    value = jnp.ones((), jnp.float32)
    total, host = [], []
    for i in range(ROUNDS + 1):
        start = time.perf_counter()
        for _ in range(STEPS if i else WARM_UP):
            params, state = step.program(params, state, grads, value)
        called = time.perf_counter() - start
        jax.block_until_ready((params, state))
        if i:
            host.append(1e3 * called / STEPS)
            total.append(1e3 * (time.perf_counter() - start) / STEPS)
    of_time = {"ms": statistics.median(total), "host": min(host)}
    return of_time | counted(step, bandwidth)


def copy_bandwidth(size: int = 2**28, times: int = 50) -> float:
    """The bytes per second that this device moves when it adds 1 to an array."""
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.ones((size,), jnp.float32)
    for _ in range(WARM_UP):
        x = add(x)
    x.block_until_ready()
    start = time.perf_counter()
    for _ in range(times):
        x = add(x)
    x.block_until_ready()
    return times * 2 * x.nbytes / (time.perf_counter() - start)


def _drawn(shapes: PyTree, scale: float) -> PyTree:
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    drawn = [
        scale * jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return structure.unflatten(drawn)


def _nbytes(tree: PyTree) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
