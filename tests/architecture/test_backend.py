"""What must not start JAX: `jax.distributed.initialize` has to come first."""

import subprocess
import sys


PROGRAM = """
import eqopt
import jax
from jax._src import xla_bridge

eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Muon(1e-2))
eqopt.LBFGS()
eqopt.schedules.WarmupCosineDecay(0.0, 1e-3, 10, 100)
assert not xla_bridge.backends_are_initialized()
"""


def test_building_optimizers_starts_nothing():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
