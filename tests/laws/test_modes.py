"""Law 7, for debugging: JAX's modes, and copies of optimizers and states."""

import copy
import gc
import pickle
import zlib

import equinox as eqx
import jax
import numpy as np
import pytest

from .registry import KINDS, REGISTRY, TELLING, law as of_rows
from .subjects import (
    arrays,
    assert_close,
    assert_equal,
    both,
    grads_of,
    params_of,
    trail,
    train,
)
from .test_laws import law


# A sample, because all optimizations take about a second per row.
OPTIMIZED = {row.name for row in REGISTRY if zlib.crc32(row.name.encode()) % 12 == 0}

# What XLA does for users. The other tests turn most of it off.
BY_DEFAULT = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
}


# Outside `jit`, too.
as_users_do = pytest.mark.usefixtures("compiled_outside_jit")


@law
@pytest.mark.costly
def test_without_jit_and_with_debug_nans(row):
    """Single operations give the same, and not even a discarded value is NaN."""
    params = params_of()
    with jax.disable_jit(), jax.debug_nans(True):
        opt = row()
        state = opt.init(params)
        updates = opt.update(grads_of(params, 0), state, params)
        stepped = opt.step(grads_of(params, 0), state, params)
    expected = both(opt, grads_of(params, 0), row().init(params), params)
    assert_close((updates, stepped), expected)


@of_rows(quick=(), names=OPTIMIZED)
@as_users_do
def test_compiled_as_users_do(row):
    """Programs with all optimizations give what the tests' interpreter gives."""
    opt, (first, *later) = row(), trail(row)
    grads = [grads_of(first.params, i) for i in range(len(later))]
    step = jax.jit(lambda grads, state, params: opt.step(grads, state, params))
    lowered = step.lower(grads[0], first.state, first.params)
    compiled = lowered.compile(compiler_options=BY_DEFAULT)
    params, state = first.params, first.state
    for g, moment in zip(grads, later, strict=True):
        params, state = compiled(g, state, params)
        assert_close((params, state), (moment.params, moment.state))


@of_rows(TELLING, KINDS)
@as_users_do
@pytest.mark.costly
def test_eager_steps(row, compilations):
    """Outside `jit`, later steps compile nothing, and no two arrays share a buffer.

    So the results can be donated to the next step.
    """
    opt, params = row(), params_of()
    state = opt.init(params)
    grads = [grads_of(params, i) for i in range(8)]
    for i in range(8):
        compiled = len(compilations)
        params, state = opt.step(grads[i], state, params)
        # By the fourth step each branch has been taken: schedules are periodic.
        assert i < 4 or len(compilations) == compiled
        places = [
            x.unsafe_buffer_pointer()
            for x in arrays((params, state))
            if isinstance(x, jax.Array)
        ]
        assert len(places) == len(set(places))


@of_rows({"ScaleByAdam"}, KINDS)
def test_no_tracer_leaks(row):
    """What is traced leaves no tracer behind, such as in a cache or an attribute."""
    opt, params = row(), params_of()

    def call(grads, params):
        state = opt.init(params)
        args = grads, state, params
        evaluated = opt.eval_params(state, params)
        return opt.update(*args), opt.step(*args), evaluated

    gc.freeze()  # JAX looks for tracers among all objects that are not frozen
    with jax.checking_leaks():
        eqx.filter_eval_shape(call, grads_of(params, 0), params)


@of_rows(TELLING, KINDS)
@pytest.mark.costly
def test_states_of_numpy(row):
    """Outside `jit`, too, they do the same as states of JAX: for example from a file."""
    opt, params = row(), params_of()
    grads, state = grads_of(params, 0), opt.init(params)
    # NumPy's integers have 64 bits by default.
    wide = lambda x: x.astype(np.int64) if x.dtype == np.int32 else x
    host = jax.tree.map(wide, jax.device_get(state))
    for call in (opt.update, opt.step):
        new, host_state = call(grads, host, params)
        assert all(isinstance(x, jax.Array) for x in arrays((new, host_state)))
        assert_equal((new, host_state), call(grads, state, params))
    assert_equal(opt.eval_params(host, params), opt.eval_params(state, params))


@law
@as_users_do
def test_copies(row):
    """Optimizers and states can be pickled, sent to other processes and copied."""
    opt = row()
    _, state = train(opt, params_of(), 1)
    assert copy.deepcopy(opt) == opt
    assert pickle.loads(pickle.dumps(opt)) == opt
    for again in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert_equal(again, state)
        assert jax.tree.structure(again) == jax.tree.structure(state)
