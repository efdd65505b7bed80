"""A batch that is sharded over 8 devices stays where it is."""

import os
import subprocess
import sys


SCRIPT = """
import equinox as eqx, jax, jax.numpy as jnp, jax.random as jr, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from eqopt.microbatching import (
    AccumulationType, micro_grad, microbatch, reshape_batch_axis
)

model = eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0))
x = np.asarray(jr.normal(jr.key(1), (64, 3)))

def loss(model, x):
    return jnp.mean(jax.vmap(model)(x) ** 2)

MEAN, CONCAT = AccumulationType.MEAN, AccumulationType.CONCAT
subjects = [
    microbatch(eqx.filter_value_and_grad(loss), 1, 16, MEAN),
    microbatch(lambda model, x: jax.vmap(model)(x), 1, 16, CONCAT),
    micro_grad(loss, microbatch_size=16),
    lambda model, x: reshape_batch_axis(x, 16),
]

ragged = microbatch(eqx.filter_value_and_grad(loss), 1, 24, MEAN)
results = [eqx.filter_jit(fun)(model, jnp.asarray(x)) for fun in (*subjects, ragged)]

# Before `jax.set_mesh`, an unsharded model could not meet an explicitly sharded batch.
explicit = hasattr(jax, "set_mesh")
set_mesh = jax.set_mesh if explicit else jax.sharding.use_mesh

def check(fun, expected, mesh, spec, moves):
    sharding = NamedSharding(mesh, spec)
    expected = eqx.filter(expected, eqx.is_array)
    with set_mesh(mesh):
        compiled = eqx.filter_jit(fun).lower(model, jax.device_put(x, sharding))
        compiled = compiled.compile()
        actual = compiled(model, jax.device_put(x, sharding))
    actual = eqx.filter(actual, eqx.is_array)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    text = compiled.compiled.as_text()
    if not moves:
        for op in ("all-gather", "all-to-all", "collective-permute"):
            assert op not in text, (op, text)
    return actual

for axis_type in (AxisType.Auto, AxisType.Explicit)[: 1 + explicit]:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(axis_type,))
    for fun, expected in zip(subjects, results):
        out = check(fun, expected, mesh, P("data"), moves=False)
    assert out.sharding.spec[:2] == (None, "data"), out.sharding
    check(ragged, results[-1], mesh, P(), moves=False)
    if axis_type is AxisType.Auto:
        check(ragged, results[-1], mesh, P("data"), moves=True)
    else:
        try:
            check(ragged, results[-1], mesh, P("data"), moves=True)
        except ValueError as error:
            assert "microbatch_size=24" in str(error) and "8 ways" in str(error), error
        else:
            assert False
"""


def test_eight_devices():
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
