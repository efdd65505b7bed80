"""Adam's kin by hand, in NumPy and float64, and what they cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


B1, B2, EPS, EPS_ROOT = 0.8, 0.95, 1e-3, 1e-4


def gradients(steps):
    """Far apart in size, with a zero to begin with."""
    grads = np.random.default_rng(0).normal(size=(steps, 4)) * [1, 10, 1e-2, 1]
    grads[0, -1] = 0
    return grads


# Each as in its paper or in its authors' code; `eqopt` has no part in them.


def means(grads):
    """The first moment after each step, and the same without its bias."""
    m, seen = 0, []
    for t, g in enumerate(grads, 1):
        m = B1 * m + (1 - B1) * g
        seen.append((m, m / (1 - B1**t)))
    return seen


def rectifier(t):
    rho_inf = 2 / (1 - B2) - 1
    rho = rho_inf - 2 * t * B2**t / (1 - B2**t)
    if rho < 5:
        return 0.0
    over = (rho_inf - 4) * (rho_inf - 2) * rho
    return np.sqrt((rho - 4) * (rho - 2) * rho_inf / over)


def adamax_by_hand(grads):
    u = 0
    for (_, m_hat), g in zip(means(grads), grads, strict=True):
        u = np.maximum(B2 * u, np.abs(g) + EPS)
        yield m_hat / u


def amsgrad_by_hand(grads, corrected=True):
    v = v_max = 0
    for t, ((m, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        v = B2 * v + (1 - B2) * g**2
        v_max = np.maximum(v_max, v / (1 - B2**t) if corrected else v)
        yield (m_hat if corrected else m) / (np.sqrt(v_max + EPS_ROOT) + EPS)


def yogi_by_hand(grads, start=0.1):
    v = np.full(4, start)
    for t, ((_, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        v = v + (1 - B2) * np.sign(g**2 - v) * g**2
        yield m_hat / (np.sqrt(v / (1 - B2**t) + EPS_ROOT) + EPS)


def radam_by_hand(grads):
    v = 0
    for t, ((_, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        v, r = B2 * v + (1 - B2) * g**2, rectifier(t)
        root = np.sqrt(v / (1 - B2**t) + EPS_ROOT) + EPS
        yield r * m_hat / root if r else m_hat


def belief_by_hand(grads):
    s = 0
    for t, ((m, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        s = B2 * s + (1 - B2) * (g - m) ** 2 + EPS_ROOT
        yield m_hat / (np.sqrt(s / (1 - B2**t)) + EPS)


def acprop_by_hand(grads, rectify=True):
    s = 0
    for t, ((m, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        r = rectifier(t) if rectify else float(t > 1)
        yield r * g / (np.sqrt(s / (1 - B2 ** (t - 1))) + EPS) if r else m_hat
        s = B2 * s + (1 - B2) * (g - m) ** 2 + EPS_ROOT


@pytest.mark.parametrize(
    ("opt", "by_hand"),
    [
        (eqopt.ScaleByAdamax(B1, B2, EPS), adamax_by_hand),
        (eqopt.ScaleByAMSGrad(B1, B2, EPS, EPS_ROOT), amsgrad_by_hand),
        (
            eqopt.ScaleByAMSGrad(
                *(B1, B2, EPS, EPS_ROOT),
                bias_correction_mu=False,
                bias_correction_nu=False,
            ),
            functools.partial(amsgrad_by_hand, corrected=False),
        ),
        (eqopt.ScaleByYogi(B1, B2, EPS, EPS_ROOT, 0.1), yogi_by_hand),
        (eqopt.ScaleByRAdam(B1, B2, EPS, EPS_ROOT), radam_by_hand),
        (eqopt.ScaleByBelief(B1, B2, EPS, EPS_ROOT), belief_by_hand),
        (eqopt.ScaleByACProp(B1, B2, EPS, EPS_ROOT), acprop_by_hand),
        (
            eqopt.ScaleByACProp(B1, B2, EPS, EPS_ROOT, rectify=False),
            functools.partial(acprop_by_hand, rectify=False),
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_by_hand(opt, by_hand):
    grads = gradients(12)
    state = opt.init(jnp.zeros(4))
    for g, expected in zip(grads, by_hand(grads), strict=True):
        updates, state = opt.update(jnp.asarray(g, jnp.float32), state)
        np.testing.assert_allclose(updates, expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("b2", [0.0, 0.6, 0.7, 0.99, 0.999])
def test_rectifier(b2):
    """In float32 as in float64, at any time."""
    for t in (1, 4, 5, 6, 7, 30, 1000, 1001, 10**6, 2**31 - 2):
        opt = eqopt.ScaleByRAdam(b1=0.0, b2=b2, eps=0.0, threshold=4.5)
        # A constant gradient of one, so that everything else is one.
        state = opt.init(jnp.ones(1))
        filled = jnp.full(1, 1 - b2 ** (t - 1), jnp.float32)
        state = type(state)(jnp.asarray(t - 1, jnp.int32), state.mu, filled)
        updates, _ = opt.update(jnp.ones(1), state)
        rho_inf = 2 / (1 - b2) - 1
        rho = rho_inf - 2 * t * b2**t / (1 - b2**t)
        over = (rho_inf - 4) * (rho_inf - 2) * rho
        expected = 1
        if rho >= 4.5:
            expected = np.sqrt((rho - 4) * (rho - 2) * rho_inf / over)
        np.testing.assert_allclose(updates, expected, rtol=5e-5)


@pytest.mark.parametrize("cls", [eqopt.ScaleByRAdam, eqopt.ScaleByACProp])
def test_derivatives_while_it_divides(cls):
    """Also where the second moment is zero, beyond the steps that the laws take."""

    def after(b1, b2, eps, scale):
        opt = cls(b1, b2, eps, eps_root=0.0)
        start = opt.init(jnp.zeros(2))
        state = type(start)(jnp.asarray(100, jnp.int32), start.mu, start.nu)
        total = 0.0
        for _ in range(2):
            updates, state = opt.update(scale * jnp.array([0.0, 1.0]), state)
            total += updates.sum()
        return total

    for scale in (1.0, 0.0):
        slopes = jax.grad(after, argnums=(0, 1, 2, 3))(0.9, 0.999, 1e-8, scale)
        assert all(jnp.isfinite(slope) for slope in slopes)


@pytest.mark.parametrize(
    "cls",
    [
        eqopt.ScaleByAdamax,
        eqopt.ScaleByAMSGrad,
        eqopt.ScaleByYogi,
        eqopt.ScaleByRAdam,
        eqopt.ScaleByBelief,
        eqopt.ScaleByACProp,
    ],
)
def test_complex_parameters_are_rotated_along(cls):
    """What is done to a gradient on the real axis is done to it in any direction."""
    turn = np.exp(np.complex64(0.7j))
    opt = cls(b2=0.9)
    real, turned = opt.init(jnp.ones(3)), opt.init(jnp.ones(3, jnp.complex64))
    assert turned.nu.dtype == jnp.float32
    for i in range(8):
        g = jax.random.normal(jax.random.key(i), (3,))
        u, real = opt.update(g, real)
        v, turned = opt.update(g.astype(jnp.complex64) * turn, turned)
        np.testing.assert_allclose(v, np.asarray(u) * turn, rtol=1e-4, atol=1e-5)


def test_nadam_is_adam_with_nesterov_momentum():
    pairs = (eqopt.NAdam, eqopt.Adam), (eqopt.NAdamW, eqopt.AdamW)
    for new, old in pairs:
        assert new(0.1).chain == old(0.1, nesterov=True).chain
        assert new(0.1, nesterov=False).chain == old(0.1).chain


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (eqopt.AdaBelief, {"weight_decay": 0.5}),
        (eqopt.ACProp, {"weight_decay": 0.5}),
        (eqopt.AdamaxW, {"weight_decay": 0.5}),
        (eqopt.NAdamW, {"weight_decay": 0.5}),
    ],
)
def test_weight_decay_is_decoupled(cls, arguments):
    params = {"decays": jnp.ones(2), "stays": jnp.ones(2)}
    opt = cls(0.1, mask={"decays": True, "stays": False}, **arguments)
    zeros = jax.tree.map(jnp.zeros_like, params)
    new, _ = opt.step(zeros, opt.init(params), params)
    np.testing.assert_allclose(new["decays"], 0.95, rtol=1e-6)
    np.testing.assert_allclose(new["stays"], 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eqopt.NAdam(0.1, b1=1.0), r"NAdam: `b1` must be in \[0, 1\)"),
        (lambda: eqopt.NAdamW(0.1, b2=-0.1), r"NAdamW: `b2` must be in \[0, 1\)"),
        (lambda: eqopt.Adamax(0.1, eps=-1.0), r"Adamax: `eps` must be in \[0, inf\)"),
        (lambda: eqopt.AdamaxW(0.1, b2=1.0), r"AdamaxW: `b2` must be in \[0, 1\)"),
        (
            lambda: eqopt.AMSGrad(0.1, eps_root=-1.0),
            r"AMSGrad: `eps_root` must be in \[0, inf\)",
        ),
        (
            lambda: eqopt.Yogi(0.1, initial_accumulator_value=-1e-6),
            r"Yogi: `initial_accumulator_value` must be in \[0, inf\)",
        ),
        (
            lambda: eqopt.RAdam(0.1, threshold=3.0),
            r"RAdam: `threshold` must be in \[4, inf\), but is 3.0",
        ),
        (lambda: eqopt.AdaBelief(0.1, b1=2), r"AdaBelief: `b1` must be in \[0, 1\)"),
        (
            lambda: eqopt.ScaleByACProp(eps=-1.0),
            r"ScaleByACProp: `eps` must be in \[0, inf\)",
        ),
    ],
)
def test_messages(make, message):
    with pytest.raises(ValueError, match=message):
        make()
