"""What the laws and the comparison with Optax do not say of Adan and what came after."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


def trajectory(opt, grads, p, **extra):
    """The parameters after each step."""
    params, seen = jnp.asarray(p, jnp.float32), []
    state = opt.init(params)
    for g in grads:
        params, state = opt.step(jnp.asarray(g, jnp.float32), state, params, **extra)
        seen.append(params)
    return np.stack(seen)


GRADS = np.random.default_rng(0).normal(size=(6, 5))
START = np.linspace(-2, 2, 5)


def reference_adan(grads, p, lr, b1, b2, b3, eps, weight_decay):
    """The algorithm of the authors' code, in float64 and in other variables."""
    m, v, n, last, seen = 0.0, 0.0, 0.0, grads[0], []
    for t, g in enumerate(grads, start=1):
        m = m + (1 - b1) * (g - m)
        v = v + (1 - b2) * ((g - last) - v)
        n = n + (1 - b3) * ((g + b2 * (g - last)) ** 2 - n)
        eta = lr(t - 1) / (np.sqrt(n) / np.sqrt(1 - b3**t) + eps)
        p = p - eta * m / (1 - b1**t) - eta * b2 * v / (1 - b2**t)
        p = p / (1 + lr(t - 1) * weight_decay)
        last = g
        seen.append(p)
    return np.stack(seen)


@pytest.mark.parametrize("betas", [(0.98, 0.92, 0.99), (0.5, 0.1, 0.7)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_adan_is_that_of_its_authors(betas, weight_decay):
    schedule = lambda count: 0.3 / (1 + count)
    opt = eqopt.Adan(
        lambda count: schedule(jnp.asarray(count, jnp.float32)),
        *betas,
        eps=1e-3,
        weight_decay=weight_decay,
    )
    expected = reference_adan(GRADS, START, schedule, *betas, 1e-3, weight_decay)
    np.testing.assert_allclose(trajectory(opt, GRADS, START), expected, 2e-5, 1e-6)


def test_adans_decay_is_proximal_and_masked():
    """However large it is, it does not turn a sign; what is left out does not decay."""
    params = {"in": jnp.ones(2), "out": jnp.ones(2)}
    opt = eqopt.Adan(1.0, weight_decay=9.0, mask={"in": True, "out": False})
    zeros = eqopt.tree.zeros_like(params)
    new, _ = opt.step(zeros, opt.init(params), params)
    np.testing.assert_allclose(new["in"], 0.1, rtol=1e-6)
    np.testing.assert_array_equal(new["out"], 1)


def test_adan_moves_by_the_rate_whatever_the_scale():
    """No `eps_root` by default, which would swallow small gradients."""
    for scale in (1.0, 1e-5):
        moved = trajectory(eqopt.Adan(0.1), [np.full(5, scale)], START)[0] - START
        np.testing.assert_allclose(moved, -0.1, rtol=2e-3)


def test_ademamix_by_hand():
    """With schedules, which are asked for the number of steps before this one."""
    b1, b2, b3, alpha = 0.5, 0.8, lambda t: 0.1 * t, lambda t: 2.0 + t
    m1, m2, nu, p, expected = 0.0, 0.0, 0.0, START, []
    for t, g in enumerate(GRADS):
        m1, m2 = b1 * m1 + (1 - b1) * g, b3(t) * m2 + (1 - b3(t)) * g
        nu = b2 * nu + (1 - b2) * g**2
        hat, root = m1 / (1 - b1 ** (t + 1)), np.sqrt(nu / (1 - b2 ** (t + 1)))
        p = p - 0.1 * ((hat + alpha(t) * m2) / (root + 1e-3) + 0.2 * p)
        expected.append(p)
    as_float = lambda f: lambda count: f(jnp.asarray(count, jnp.float32))
    opt = eqopt.AdEMAMix(
        0.1, b1, b2, as_float(b3), as_float(alpha), 1e-3, weight_decay=0.2
    )
    np.testing.assert_allclose(trajectory(opt, GRADS, START), expected, 2e-5, 1e-6)


def test_simplified_ademamix_without_the_gradient_is_adam():
    """A momentum that is a sum makes the rate `1 / (1 - b1)` times as large."""
    b1 = 0.5
    ours = eqopt.ScaleBySimplifiedAdEMAMix(b1=b1, b2=0.9)
    adam = eqopt.ScaleByAdam(b1=b1, b2=0.9)
    params = jnp.asarray(START, jnp.float32)
    state, adam_state = ours.init(params), adam.init(params)
    for t, g in enumerate(jnp.asarray(GRADS, jnp.float32), start=1):
        u, state = ours.update(g, state)
        v, adam_state = adam.update(g, adam_state)
        np.testing.assert_allclose(u, v * (1 - b1**t) / (1 - b1), rtol=1e-5)


def test_adopt_only_looks_at_first():
    opt = eqopt.ADOPT(0.1, b1=0.0)
    path = trajectory(opt, [np.full(5, 2.0), np.full(5, 8.0), np.full(5, 1.0)], START)
    np.testing.assert_array_equal(path[0], START.astype(np.float32))
    np.testing.assert_allclose(path[1] - path[0], -0.1, rtol=1e-5)  # clipped to 1
    nu = 0.9999 * 4 + 0.0001 * 64
    np.testing.assert_allclose(path[2] - path[1], -0.1 / np.sqrt(nu), rtol=1e-4)


def test_adopt_without_past_is_not_nan():
    """A first gradient that overflows once divided, and an `eps` of zero."""
    opt = eqopt.ScaleByADOPT(eps=0.0, use_clipping=False)
    u, state = opt.update(jnp.array([1e38, 0.0]), opt.init(jnp.ones(2)))
    np.testing.assert_array_equal(u, 0)
    np.testing.assert_array_equal(state.mu, 0)


@pytest.mark.parametrize(
    ("opt", "expected"),
    [
        (eqopt.OptimisticGradientDescent(0.1, 0.5, 3.0), -0.05),
        (eqopt.OptimisticAdam(0.1, 3.0, nesterov=False), -0.1),
    ],
)
def test_the_first_optimistic_step_does_not_jump(opt, expected):
    path = trajectory(opt, np.ones((2, 5)), START)
    np.testing.assert_allclose(path[0] - START, expected, rtol=1e-5)
    # Nor the second one, when nothing changes.
    np.testing.assert_allclose(path[1] - path[0], expected, rtol=1e-3)


def test_optimism_has_a_schedule_of_its_own():
    rate, optimism = lambda t: 0.1 * t, lambda t: 0.2 * t + 0.1
    as_float = lambda f: lambda count: f(jnp.asarray(count, jnp.float32))
    opt = eqopt.OptimisticAdam(as_float(rate), as_float(optimism), b1=0.8, b2=0.9)
    direction = eqopt.ScaleByAdam(b1=0.8, b2=0.9, nesterov=True)
    state, p, last, expected = direction.init(jnp.zeros(5)), START, None, []
    for t, g in enumerate(jnp.asarray(GRADS, jnp.float32)):
        r, state = direction.update(g, state)
        p = p - rate(t) * r - optimism(t) * (r - (r if last is None else last))
        last = r
        expected.append(p)
    np.testing.assert_allclose(trajectory(opt, GRADS, START), expected, 1e-5, 1e-6)
    assert eqopt.tree.get(opt.init(jnp.zeros(5)), "learning_rate") == 0


@pytest.mark.parametrize(
    "opt", [eqopt.OptimisticGradientDescent(0.1), eqopt.OptimisticAdam(0.01, 1.0)]
)
def test_optimists_find_saddle_points(opt):
    """Of the game x y, round which gradient descent spirals outwards."""

    def body(carry, _):
        (x, y), state = carry
        return opt.step((y, -x), state, (x, y)), None

    start = jnp.ones(()), jnp.ones(()) * 2
    ((x, y), _), _ = jax.lax.scan(body, (start, opt.init(start)), length=2000)
    assert jnp.hypot(x, y) < 0.3


def bowl(hessian):
    return lambda p: p @ jnp.asarray(hessian, p.dtype) @ p / 2


def test_hutchinson_is_right_on_average():
    hessian = np.array([[2.0, 1.0, 0.5], [1.0, 3.0, -1.0], [0.5, -1.0, 1.0]])
    opt, params = eqopt.HutchinsonDiagHessian(jr.key(3)), jnp.ones(3)

    def body(state, _):
        estimate, state = opt.update(params, state, params, value_fn=bowl(hessian))
        return state, estimate

    _, estimates = jax.lax.scan(body, opt.init(params), length=4000)
    np.testing.assert_allclose(estimates.mean(0), np.diag(hessian), atol=0.1)
    assert estimates.std(0).min() > 0.5  # they differ from step to step


def test_hutchinson_of_a_complex_parameter_is_the_mean_of_its_parts():
    value_fn = lambda z: jnp.sum(3 * z.real**2 + z.imag**2 / 2)  # 6 and 1
    z = jnp.array([1 + 2j], jnp.complex64)
    opt = eqopt.HutchinsonDiagHessian()
    estimate, _ = opt.update(z, opt.init(z), z, value_fn=value_fn)
    np.testing.assert_allclose(estimate, 3.5, rtol=1e-6)


def test_hutchinson_takes_models_with_frozen_parts():
    """It differentiates where there are gradients; the rest of the model is there."""
    model = eqx.nn.MLP(2, 1, 3, 1, activation=jnp.tanh, key=jr.key(0))
    value_fn = lambda model: jnp.sum(jax.vmap(model)(jnp.ones((4, 2))) ** 2)
    grads = eqx.filter_grad(value_fn)(model)
    frozen = lambda m: [m.layers[0].weight, m.layers[0].bias, m.layers[1].weight]
    grads = eqx.tree_at(frozen, grads, [None] * 3)
    opt = eqopt.HutchinsonDiagHessian()
    estimate, _ = opt.update(grads, opt.init(model), model, value_fn=value_fn)
    assert jax.tree.structure(estimate) == jax.tree.structure(grads)
    np.testing.assert_allclose(estimate.layers[1].bias, 8.0, rtol=1e-5)


class Curvature(eqopt.AbstractTransformation):
    """An estimator of one's own, which says when it is asked."""

    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        jax.debug.callback(extra["tell"])
        return jax.tree.map(jnp.full_like, updates, extra["curvature"]), state


def test_sophia_by_hand():
    """An estimate every third step, used from the next one on, by an own estimator."""
    calls, curvature = [], jnp.array([1.0, 2.0, -1.0, 50.0, 0.1])
    extra = {"curvature": curvature, "tell": lambda: calls.append(1)}
    opt = eqopt.Sophia(
        0.1,
        b1=0.5,
        b2=0.8,
        weight_decay=0.0,
        gamma=2.0,
        update_interval=3,
        hessian_diagonal_fn=Curvature(),
    )
    mu, nu, p, expected = 0.0, np.zeros(5), START, []
    for t, g in enumerate(GRADS):
        mu = 0.5 * mu + 0.5 * g
        u = mu / (1 - 0.5 ** (t + 1)) / np.maximum(2.0 * nu, 1e-8)
        p = p - 0.1 * np.clip(u, -1, 1)
        nu = 0.8 * nu + 0.2 * np.asarray(curvature) if t % 3 == 0 else nu
        expected.append(p)
    path = trajectory(opt, GRADS, START, **extra)
    jax.effects_barrier()
    np.testing.assert_allclose(path, expected, rtol=1e-5, atol=1e-6)
    assert len(calls) == 2


@pytest.mark.slow
def test_sophia_minimizes_whole_models_and_tells_its_win_rate():
    model = eqx.nn.MLP(2, 1, 8, 1, activation=jnp.tanh, key=jr.key(0))
    x = jr.normal(jr.key(1), (32, 2))
    loss = lambda model: jnp.mean((jax.vmap(model)(x)[:, 0] - x[:, 0] * x[:, 1]) ** 2)
    opt = eqopt.Sophia(0.02, gamma=0.5, update_interval=2, track_win_rate=True)

    @eqx.filter_jit
    def train_step(model, state):
        grads = eqx.filter_grad(loss)(model)
        return opt.step(grads, state, model, value_fn=loss)

    before, state = loss(model), opt.init(model)
    for _ in range(100):
        model, state = train_step(model, state)
    assert loss(model) < before / 2
    assert 0 < eqopt.tree.get(state, "win_rate") < 1
    assert eqopt.tree.get(eqopt.Sophia(0.1).init(model), "win_rate") is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eqopt.Adan(0.1, b3=1.0), r"Adan: `b3` must be in \[0, 1\)"),
        (lambda: eqopt.Adan(0.1, weight_decay=True), "Adan: `weight_decay` must be a"),
        (lambda: eqopt.AdEMAMix(0.1, b3=-0.1), r"AdEMAMix: `b3` must be in \[0, 1\)"),
        (lambda: eqopt.ADOPT(0.1, eps=-1.0), r"ADOPT: `eps` must be in \[0, inf"),
        (lambda: eqopt.OptimisticAdam(0.1, jnp.ones(2)), "Adam: `optimism` must be a"),
        (lambda: eqopt.Sophia(0.1, gamma=-1.0), r"Sophia: `gamma` must be in \[0, inf"),
        (
            lambda: eqopt.Sophia(0.1, update_interval=0),
            "Sophia: `update_interval` must",
        ),
        (
            lambda: eqopt.Sophia(0.1, clip_threshold=None, track_win_rate=True),
            "Sophia: `track_win_rate` needs a `clip_threshold`",
        ),
    ],
)
def test_bad_hyperparameters(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_sophia_says_what_it_needs():
    opt, params = eqopt.Sophia(0.1), jnp.ones(2)
    with pytest.raises(ValueError, match="needs the extra argument `value_fn`"):
        opt.step(params, opt.init(params), params)
    with pytest.raises(ValueError, match="needs the parameters, but `params` is None"):
        opt.update(params, opt.init(params), value_fn=jnp.sum)
