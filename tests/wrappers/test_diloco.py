"""DiLoCo: one worker, several workers, and what they send."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.scaling.collectives import collectives
from jax.sharding import AxisType, PartitionSpec as P

import eqopt

from ..interpreter import interpreted


WORKERS, STEPS = 4, 9
CURVATURE = np.array([[1.0, 0.5], [0.1, 2.0]])
START = np.array([[1.0, -2.0], [0.5, 3.0]])
CENTERS = np.random.default_rng(0).normal(size=(WORKERS, 2, 2))
RATE, MOMENTUM = 0.2, 0.6


def gradient(p, center):
    return CURVATURE * (p - center)


def inner():
    return eqopt.SGD(RATE, MOMENTUM)


def waves(i, like):
    """Gradients that differ between workers."""
    wave = lambda x: jnp.sin(i + jnp.arange(x.size, dtype=x.dtype))
    return jax.tree.map(lambda x: wave(x).reshape(x.shape), like)


def for_each(tree):
    """The values of each worker, all equal at first."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (WORKERS, *x.shape)), tree)


def on_own(fn, state):
    """`state`, with `fn` applied to what differs between workers."""
    own = {name: fn(getattr(state, name)) for name in ("inner_state", "error")}
    return dataclasses.replace(state, **own)


def start(opt, params):
    """Parameters and state of all workers."""
    state = opt.init(params)
    return for_each(params), on_own(for_each, state)


def mapped(opt):
    """A step of all workers, with `jax.vmap`."""
    axes = eqopt.DiLoCoState.prefix(0, None)
    return jax.vmap(opt.step, (0, axes, 0), (0, axes), axis_name="workers")


def trained(opt, x64, steps=STEPS):
    """After each step, the parameters of all workers and the outer ones."""
    with x64():
        params, state = start(opt, jnp.asarray(START))
        step = interpreted(mapped(opt))
        for _ in range(steps):
            grads = gradient(np.asarray(params), CENTERS)
            params, state = step(jnp.asarray(grads), state, params)
            yield np.asarray(params), np.asarray(state.slow)


def by_hand(period, outer_step, steps=STEPS):
    each, traces, slow = np.stack([START] * WORKERS), 0, START
    for t in range(1, steps + 1):
        traces = MOMENTUM * traces + gradient(each, CENTERS)
        each = each - RATE * traces
        if t % period == 0:
            slow = outer_step(slow, np.mean(slow - each, axis=0))
            each = np.stack([slow] * WORKERS)
        yield each, slow


def nesterov(rate, momentum):
    trace = 0

    def step(p, delta):
        nonlocal trace
        trace = momentum * trace + delta
        return p - rate * (delta + momentum * trace)

    return step


def signs(rate):
    return lambda p, delta: p - rate * np.sign(delta)


@pytest.mark.parametrize(
    ("period", "options", "outer_step"),
    [
        (3, {}, lambda: nesterov(0.7, 0.9)),
        (1, {"outer": eqopt.SGD(0.5, 0.3, nesterov=True)}, lambda: nesterov(0.5, 0.3)),
        (3, {"outer": eqopt.SignSGD(0.1)}, lambda: signs(0.1)),
    ],
    ids=["default", "each step", "signs"],
)
def test_by_hand(period, options, outer_step, x64):
    opt = eqopt.DiLoCo(inner(), "workers", period, **options)
    expected = by_hand(period, outer_step())
    for found, (each, slow) in zip(trained(opt, x64), expected, strict=True):
        np.testing.assert_allclose(found[0], each, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found[1], slow, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("delay", "share"), [(0, 0.0), (1, 0.25)])
def test_streaming(delay, share, x64):
    """Two fragments, by hand: the large array is the first one."""
    period, names = 4, ("large", "small")
    params = {"small": START[0], "large": START}
    centers = {"small": CENTERS[:, 0], "large": CENTERS}
    curvature = {"small": CURVATURE[0], "large": CURVATURE}
    slope = lambda p: {k: curvature[k] * (p[k] - centers[k]) for k in p}
    opt = eqopt.DiLoCo(
        eqopt.SGD(RATE),
        "workers",
        period,
        eqopt.SGD(0.5, 0.3, nesterov=True),
        fragments=2,
        delay=delay,
        local_share=share,
    )
    each = {k: np.stack([x] * WORKERS) for k, x in params.items()}
    slow, steps = dict(params), {k: nesterov(0.5, 0.3) for k in names}
    with x64():
        now, state = start(opt, jax.tree.map(jnp.asarray, params))
        step = interpreted(mapped(opt))
        for t in range(1, 3 * period):
            grads = jax.tree.map(jnp.asarray, slope(jax.tree.map(np.asarray, now)))
            now, state = step(grads, state, now)
            moves = slope(each)
            for i, k in enumerate(names):
                each[k] = each[k] - RATE * moves[k]
                at = t - (i + 1) * period // 2
                if at >= 0 and at % period == 0:
                    slow[k] = steps[k](slow[k], np.mean(slow[k] - each[k], axis=0))
                if at >= delay and (at - delay) % period == 0:
                    each[k] = share * each[k] + (1 - share) * slow[k]
            for k in names:
                np.testing.assert_allclose(now[k], each[k], rtol=1e-9)
                np.testing.assert_allclose(state.slow[k], slow[k], rtol=1e-9)


@pytest.mark.slow
def test_compressed_differences_are_not_lost():
    """With outer steps that add, all workers together move as far as on their own."""
    compressor = eqopt.compression.Int8Blocks(8)
    opt = eqopt.DiLoCo(
        eqopt.SGD(1.0), "workers", 2, eqopt.SGD(1.0), fragments=2, compressor=compressor
    )
    params = {"small": jnp.zeros(3), "large": jnp.zeros(40)}
    now, state = start(opt, params)
    step, moved = interpreted(mapped(opt)), jax.tree.map(np.zeros_like, now)
    grads = moved
    for i in range(6):
        grads = waves(i, now)
        now, state = step(grads, state, now)
        moved = jax.tree.map(lambda x, g: x - np.asarray(g), moved, grads)
    # The large one was sent last after five steps, and its workers are one step ahead.
    moved["large"] = moved["large"] + np.asarray(grads["large"])
    for k, x in moved.items():
        kept = np.asarray(state.error[k]).mean(axis=0)
        assert np.abs(kept).max() > 0
        np.testing.assert_allclose(state.slow[k] - kept, x.mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("is_step", [True, False])
def test_one_worker_without_momentum_is_the_inner_one(is_step):
    """Bit for bit; with `update`, only the difference to the parameters is rounded."""
    opt = eqopt.DiLoCo(eqopt.Adam(0.1), None, 2, eqopt.SGD(1.0))
    params = {"a": jnp.asarray(START, jnp.float32), "b": jnp.asarray(1e-8)}

    def run(opt):
        now, state = params, opt.init(params)
        step = interpreted(opt.step if is_step else opt.update)
        for i in range(5):
            grads = jax.tree.map(lambda p, i=i: jnp.sin(p + i), now)
            now, state = step(grads, state, now)
            now = now if is_step else eqopt.apply_updates(params, now)
        return now

    same = np.testing.assert_array_equal
    if not is_step:
        same = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6)
    jax.tree.map(same, run(opt), run(eqopt.Adam(0.1)))


def first(tree):
    return jax.tree.map(lambda x: x[0], tree)


def stacked(tree):
    return jax.tree.map(lambda x: x[None], tree)


def in_shards(opt):
    """A step of all workers, with `jax.shard_map`."""
    kind = (AxisType.Auto,)
    mesh = jax.make_mesh(
        (WORKERS,), ("workers",), kind, devices=jax.devices()[:WORKERS]
    )
    specs = eqopt.DiLoCoState.prefix(P("workers"), P())

    def work(grads, state, params):
        params, state = opt.step(first(grads), on_own(first, state), first(params))
        return stacked(params), on_own(stacked, state)

    return jax.shard_map(
        work,
        mesh=mesh,
        in_specs=(P("workers"), specs, P("workers")),
        out_specs=(P("workers"), specs),
    )


@pytest.mark.slow
def test_eight_bits_are_a_quarter():
    """All fragments together send one byte and the scales, in two stages."""
    compressor = eqopt.compression.Int8Blocks(32)
    options = {"fragments": 2, "compressor": compressor}
    opt = eqopt.DiLoCo(eqopt.SGD(0.1), "workers", 4, **options)
    params, state = start(opt, {"a": jnp.zeros((32, 8)), "b": jnp.zeros(256)})
    compiled = jax.jit(in_shards(opt)).lower(params, state, params).compile()
    found = collectives(compiled.as_text())
    assert {one.kind for one in found} == {"all-to-all", "all-gather"}
    size = 2 * 256 * (1 + 4 / 32)
    assert sum(one.sent for one in found) == 2 * size * (WORKERS - 1) / WORKERS


@pytest.mark.slow
def test_devices_send_little():
    """On 4 devices: like `vmap`, with one sum, inside the branch."""
    opt = eqopt.DiLoCo(inner(), "workers", 3)
    size = 64
    p = {"a": jnp.ones((size, 2)), "b": jnp.zeros(3)}
    params, state = start(opt, p)
    grads = lambda i: jax.tree.map(
        lambda x: jnp.sin(i + jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape),
        params,
    )
    args = grads(0), state, params
    devices = jax.jit(in_shards(opt)).lower(*args).compile()
    found = collectives(devices.as_text())
    assert sum(one.size for one in found) == 4 * (2 * size + 3)
    assert {one.kind for one in found} == {"all-reduce"}

    here = there = params, state
    step = jax.jit(mapped(opt))
    for i in range(7):
        here, there = (
            fn(grads(i), state, params)
            for fn, (params, state) in ((step, here), (devices, there))
        )
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, there, here)


def test_errors():
    for options in ({"fragments": 3}, {"fragments": 2, "delay": 25}):
        with pytest.raises(ValueError, match="`sync_every`, 50, must be divis"):
            eqopt.DiLoCo(inner(), "workers", 50, **options)
    opt, p = eqopt.DiLoCo(inner(), "workers"), jnp.ones(2)
    with pytest.raises(ValueError, match="no such axis is mapped here"):
        opt.step(p, opt.init(p), p)
    with pytest.raises(ValueError, match=r"`state.slow` has shape.*of one worker"):
        opt.eval_params(opt.init(p), jnp.stack([p, p]))
