"""Steps in torch and in eqopt, with the same gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def gradients(i, shapes):
    rng = np.random.default_rng(100 + i)
    return [rng.standard_normal(shape) for shape in shapes]


def tensors(shapes, seed=0):
    import torch

    rng = np.random.default_rng(seed)
    return [torch.nn.Parameter(torch.tensor(rng.standard_normal(s))) for s in shapes]


def torch_steps(optimizer, parameters, steps):
    import torch

    for i in steps:
        new = gradients(i, [p.shape for p in parameters])
        for p, g in zip(parameters, new, strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()


def eqopt_steps(opt, params, state, steps):
    step = eqx.filter_jit(opt.step)
    leaves, treedef = jax.tree.flatten(params)
    for i in steps:
        new = map(jnp.asarray, gradients(i, [x.shape for x in leaves]))
        params, state = step(treedef.unflatten(new), state, params)
    return params, state


def assert_same(params, parameters):
    pairs = zip(jax.tree.leaves(params), parameters, strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.detach().numpy(), 1e-10, 1e-12)


def equal(array, tensor):
    return np.array_equal(array, tensor.detach().numpy())
