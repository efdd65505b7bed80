"""Building optimizers must not start JAX: `jax.distributed.initialize` comes first."""

import os
import subprocess
import sys

import pytest


BUILDING = """
import dataclasses
eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Muon(1e-2))
eqopt.LBFGS()
eqopt.schedules.WarmupCosineDecay(0.0, 1e-3, 10, 100)
recipe, made = eqopt.AbstractOptimizer, 0
for cls in [getattr(eqopt, name) for name in eqopt.__all__]:
    if isinstance(cls, type) and issubclass(cls, recipe) and cls is not recipe:
        fields = dataclasses.fields(cls)
        needed = [x.name for x in fields if x.default is x.default_factory]
        if set(needed) <= {"learning_rate"}:
            cls(*[0.1 for _ in needed])
            made += 1
assert made > 60
"""

# JAX accepts this setting only before it starts, and raises an error afterwards.
PROGRAM = """
import eqopt
import jax
import jax.numpy as jnp
{between}
jax.config.update("jax_num_cpu_devices", 2)
assert jax.device_count() == 2
"""


def run(between):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(between=between)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_building_optimizers_starts_nothing():
    finished = run(BUILDING)
    assert finished.returncode == 0, finished.stderr
