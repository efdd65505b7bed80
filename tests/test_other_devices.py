"""States and gradients on other devices than the parameters, outside `jit`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt


@pytest.mark.parametrize("make", [eqopt.ScaleByAdam, eqopt.ScaleByLBFGS])
@pytest.mark.costly
def test_a_state_is_moved(make):
    """`tree.migrate` moves a state to the devices of the parameters."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    opt, (device, *_) = make(), jax.devices()
    given = {"w": jnp.arange(8.0)}, {"w": jnp.linspace(1, 2, 8)}
    params, grads = jax.device_put(given, NamedSharding(mesh, P("x")))
    state = jax.device_put(opt.init(given[0]), device)
    with pytest.raises(ValueError):
        opt.step(grads, state, params)
    new, _ = opt.step(grads, eqopt.tree.migrate(opt, state, params), params)
    expected, _ = opt.step(given[1], opt.init(given[0]), given[0])
    np.testing.assert_allclose(new["w"], expected["w"], 1e-6)
