"""Adaptive gradients, beyond the laws and the comparison with Optax."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


MATRIX = eqopt.MatrixDimensionNumbers(-1, -2)
KERNEL = eqopt.MatrixDimensionNumbers((-3, -2, -1), -4)


def gradients(shape, steps=5):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(steps)]


def run(opt, grads_in_turn):
    """All updates, and the last state."""
    state, update, seen = opt.init(grads_in_turn[0]), eqx.filter_jit(opt.update), []
    for grads in grads_in_turn:
        updates, state = update(grads, state)
        seen.append(updates)
    return jnp.stack(seen), state


@pytest.mark.parametrize(
    ("opt", "steps"),
    [
        (eqopt.RMSprop(0.05, momentum=0.5), 300),
        (eqopt.Adagrad(1.0), 300),
        (eqopt.Adadelta(eps=1e-3), 600),
        (eqopt.SM3(1.0), 300),
        (eqopt.MADGRAD(0.1), 300),
    ],
    ids=repr,
)
def test_they_descend(opt, steps):
    loss = lambda p: jnp.sum((p - jnp.arange(3.0)) ** 2)

    def body(carry, _):
        params, state = carry
        return opt.step(jax.grad(loss)(params), state, params), None

    start = jnp.full(3, 5.0)
    (params, _), _ = jax.lax.scan(body, (start, opt.init(start)), length=steps)
    assert loss(params) < 0.1 < loss(start)


def test_rms_is_adam_without_a_first_moment():
    grads = gradients((4,))
    rms = eqopt.ScaleByRMS(0.99, eps_in_sqrt=False, bias_correction=True)
    ours, _ = run(rms, grads)
    np.testing.assert_allclose(ours, run(eqopt.ScaleByAdam(0.0, 0.99), grads)[0], 1e-5)


@pytest.mark.parametrize("numbers", [None, lambda params: KERNEL], ids=["axes", "rows"])
def test_sm3_by_hand(numbers):
    """The paper's SM3-II, set by set and element by element."""
    grads = gradients((2, 3, 2, 2))
    indices = [*np.ndindex(grads[0].shape)]
    if numbers is None:
        sets = [(axis, i) for axis in range(4) for i in range(grads[0].shape[axis])]
        contains = lambda r, i: i[r[0]] == r[1]
    else:
        sets = [i[:1] for i in indices] + [i[1:] for i in indices]
        contains = lambda r, i: r in (i[:1], i[1:])
    mu = dict.fromkeys(sets, 0.0)
    expected = []
    for g in np.asarray(grads, np.float64):
        nu = {i: min(mu[r] for r in mu if contains(r, i)) + g[i] ** 2 for i in indices}
        mu = {r: max(nu[i] for i in indices if contains(r, i)) for r in mu}
        expected.append([g[i] / np.sqrt(nu[i]) for i in indices])
    opt = eqopt.ScaleBySM3(None, eps=0.0, weight_dimension_numbers=numbers)
    seen, state = run(opt, grads)
    np.testing.assert_allclose(seen.reshape(len(grads), -1), expected, 1e-5)
    # The minimum over the stored maxima is a bound for the sum of squares.
    bound = functools.reduce(jnp.minimum, state.nu)
    assert (bound >= sum(g**2 for g in grads) * (1 - 1e-6)).all()


@pytest.mark.slow
def test_sm3_of_stacked_layers_is_that_of_each_layer():
    stack = gradients((3, 4, 5))
    opt = eqopt.SM3(0.1, weight_dimension_numbers=MATRIX)
    together, state = run(opt, stack)
    assert [x.shape for x in state[0].nu] == [(3, 1, 5), (3, 4, 1)]
    for layer in range(3):
        alone, _ = run(eqopt.SM3(0.1), [g[layer] for g in stack])
        np.testing.assert_allclose(together[:, layer], alone, 1e-6)
    covering_the_stack, _ = run(eqopt.SM3(0.1), stack)
    assert not np.allclose(together, covering_the_stack, 1e-2)


def test_sm3_of_a_kernel_is_that_of_its_matrix():
    kernels = gradients((4, 2, 3, 3))
    ours, state = run(eqopt.SM3(0.1, weight_dimension_numbers=KERNEL), kernels)
    assert [x.shape for x in state[0].nu] == [(1, 2, 3, 3), (4, 1, 1, 1)]
    matrices, _ = run(eqopt.SM3(0.1), [g.reshape(4, -1) for g in kernels])
    np.testing.assert_allclose(ours.reshape(matrices.shape), matrices, 1e-6)


def test_sm3_takes_little_memory():
    model = eqx.nn.MLP(50, 50, 50, 1, key=jax.random.key(0))
    state = eqopt.SM3(0.1, momentum=None).init(model)
    weights = 2 * (50 + 50) + 2 * 50  # rows, columns and biases
    assert sum(x.size for x in jax.tree.leaves(state)) == weights + 2
    assert state[0].mu is None
    weight = state[0].nu.layers[0].weight
    assert [x.shape for x in weight] == [(50, 1), (1, 50)]


def test_sm3_of_arrays_without_elements_or_axes():
    params = [jnp.zeros((0, 3)), jnp.ones(()), jnp.ones((1, 1))]
    opt = eqopt.SM3(0.1, None)
    updates, state = jax.jit(opt.update)(params, opt.init(params))
    assert [[x.shape for x in nu] for nu in state[0].nu] == [
        [(0, 1), (1, 3)],
        [()],
        [(1, 1), (1, 1)],
    ]
    np.testing.assert_allclose(jnp.stack([u.sum() for u in updates]), [0, -0.1, -0.1])


def test_madgrad_by_hand():
    """The authors' algorithm with an $L^2$ penalty on one of two leaves."""
    lr, beta, decay, eps = lambda k: 0.1 / (1 + k), 0.8, 0.3, 1e-3
    opt = eqopt.MADGRAD(
        lambda k: 0.1 / (1 + k.astype(float)),
        beta,
        decay,
        eps,
        mask=lambda params: [True, False],
    )
    params = [jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])]
    state = opt.init(params)
    assert eqopt.tree.get(state, "learning_rate") == jnp.float32(0.1)
    start = [np.asarray(p, np.float64) for p in params]
    x, s, nu = [*start], [0.0, 0.0], [0.0, 0.0]
    for k, g in enumerate(gradients((2, 2))):
        params, state = opt.step([*g], state, params)
        weight = (lr(k) + eps) * np.sqrt(k + 1)
        for i in range(2):
            grad = np.asarray(g[i], np.float64) + (decay * x[i] if i == 0 else 0)
            nu[i], s[i] = nu[i] + weight * grad**2, s[i] + weight * grad
            z = start[i] - s[i] / (np.cbrt(nu[i]) + eps)
            x[i] = beta * x[i] + (1 - beta) * z
            np.testing.assert_allclose(params[i], x[i], 1e-5)
        np.testing.assert_allclose(eqopt.tree.get(state, "learning_rate"), lr(k), 1e-6)
