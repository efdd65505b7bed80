"""Temporary memory of a step whose parameters and state are donated. It is exact."""

import math

import jax
import jax.numpy as jnp
import pytest

import eqopt


SLOW = pytest.mark.slow


def mostly_slow(names, cases):
    """Cases of a parametrized test: each is a compilation, and a few are quick ones."""
    quick = 4
    params = [
        pytest.param(*(case if isinstance(names, tuple) else [case]), marks=marks)
        for case, marks in zip(cases, quick * [()] + len(cases) * [SLOW], strict=False)
    ]
    name = lambda x: repr(x) if isinstance(names, str) else type(x).__name__
    return pytest.mark.parametrize(names, params, ids=name)


def temporary(opt, leaves=10, shape=(300, 1000), **extra):
    """The temporary memory of a step, as a fraction of the parameters."""
    params = [jax.ShapeDtypeStruct(shape, jnp.float32)] * leaves
    state = jax.eval_shape(opt.init, params)
    step = jax.jit(
        lambda params, state, grads: opt.step(grads, state, params, **extra),
        donate_argnums=(0, 1),
    )
    memory = step.lower(params, state, params).compile().memory_analysis()
    assert memory is not None
    size = sum(4 * p.size for p in params)
    # In place: each result reuses the buffer of an argument.
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 0.01 * size
    return memory.temp_size_in_bytes / size


@mostly_slow(
    "opt",
    [
        eqopt.ACProp(0.1, weight_decay=0.1),
        eqopt.AMSGrad(0.1),
        eqopt.AdEMAMix(0.1, weight_decay=0.1),
        eqopt.AdamMini(0.1, weight_decay=0.1),
        eqopt.AdaBelief(0.1, nesterov=True),
        eqopt.AdaBelief(0.1, weight_decay=0.1),
        eqopt.Adadelta(),
        eqopt.Adagrad(0.1),
        eqopt.AdamaxW(0.1),
        eqopt.Adan(0.1, weight_decay=0.1),
        eqopt.ADOPT(0.1),
        eqopt.ADOPT(0.1, mu_dtype=jnp.bfloat16),
        eqopt.ADOPT(0.1, nesterov=True),
        eqopt.EMANesterov(eqopt.Adam(0.1)),
        eqopt.EMANesterov(eqopt.AdamW(0.1, weight_decay=0.1)),
        eqopt.GPA(eqopt.Adam(0.1)),
        eqopt.GPA(eqopt.AdamW(0.1, weight_decay=0.1)),
        eqopt.GPA(eqopt.AdamW(0.1, weight_decay=0.1), sees="y"),
        eqopt.Grams(0.1, weight_decay=0.1),
        eqopt.LaProp(0.1, weight_decay=0.1),
        eqopt.MADGRAD(0.1, weight_decay=0.1),
        eqopt.MARS(0.1),
        eqopt.MARS(0.1, mars_type="lion"),
        eqopt.MARS(0.1, optimize_1d=True),
        eqopt.NAdamW(0.1),
        eqopt.NoisySGD(0.1, key=0),
        eqopt.OptimisticAdam(0.1),
        eqopt.OptimisticAdam(0.1, nesterov=False),
        eqopt.OptimisticGradientDescent(0.1),
        eqopt.RAdam(0.1, nesterov=True),
        eqopt.RMSprop(0.1),
        eqopt.RMSprop(0.1, bias_correction=True, eps_in_sqrt=False),
        eqopt.RMSprop(0.1, centered=True, momentum=0.9),
        eqopt.Rprop(0.1),
        eqopt.ScheduleFree(eqopt.Adam(0.1), 0.1),
        eqopt.ScheduleFreeAdamW(0.1),
        eqopt.ScheduleFreeAdamW(0.1, weight_decay=0.1),
        eqopt.ScheduleFreeSGD(weight_decay=0.1),
        eqopt.SignSGD(0.1),
        eqopt.Signum(0.1),
        eqopt.SimplifiedAdEMAMix(0.1, weight_decay=0.1),
        eqopt.Yogi(0.1),
    ],
)
@pytest.mark.slow
def test_elementwise(opt):
    assert temporary(opt) < 0.01


@mostly_slow(
    "mode", ["decoupled", "corrected", "fully_decoupled", "independent", "squared"]
)
@pytest.mark.costly
def test_modes_of_decay(mode):
    decay = eqopt.AddDecayedWeights(0.1, mode=mode, max_learning_rate=0.1)
    assert temporary(eqopt.AdamW(0.1, weight_decay=decay)) < 0.01


@mostly_slow(
    "make",
    [
        eqopt.AdamW,
        eqopt.AdamaxW,
        eqopt.LaProp,
        eqopt.Lion,
        eqopt.Prodigy,
        eqopt.StableAdamW,
    ],
)
@pytest.mark.costly
def test_cautious_decay(make):
    decay = eqopt.AddDecayedWeights(0.1, cautious=True)
    assert temporary(make(0.1, weight_decay=decay)) < 0.01


HALF = [True, False] * 5


@mostly_slow(
    ("opt", "most"),
    [
        (eqopt.Adafactor(0.1), 0.02),
        (eqopt.Adafactor(0.1, momentum=0.9), 0.02),
        # The update before the momentum, for residuals of it: of one leaf at a time.
        (eqopt.CAME(0.1, weight_decay=0.1), 0.11),
        (eqopt.COCOB(weight_decay=0.1), 0.01),
        # The direction, for the share of it that agrees: of one leaf at a time, and one
        # that goes in.
        (eqopt.Cautious(eqopt.AdamW(0.1, weight_decay=0.1)), 0.21),
        (eqopt.DAdaptAdamW(weight_decay=0.1), 0.01),
        (eqopt.DoG(), 0.01),
        (eqopt.DoWG(), 0.01),
        (eqopt.Fromage(0.1), 0.01),
        (eqopt.SGDP(0.1, 0.9, weight_decay=0.1), 0.02),
        # The direction, for its norm: of one leaf at a time.
        (eqopt.AdamP(0.1, weight_decay=0.1), 0.12),
        (eqopt.LAMB(0.1, weight_decay=0.1), 0.11),
        (eqopt.LARS(0.1), 0.01),
        # The singular vectors of one matrix.
        (eqopt.GaLore(0.1), 0.24),
        (eqopt.GaLore(0.1, 16), 0.24),
        # What one norm is of, and what the result is made of: of one leaf at a time.
        (eqopt.Hyperball(eqopt.ScaleByAdam(), 0.1), 0.21),
        (eqopt.Hyperball(eqopt.ScaleByAdam(), 0.1, per="row"), 0.21),
        (eqopt.Chain(eqopt.Adam(0.1), eqopt.RelativeUpdate()), 0.21),
        (eqopt.Chain(eqopt.Adam(0.1), eqopt.UpdateNormFloor()), 0.21),
        (eqopt.Chain(eqopt.Adam(0.1), eqopt.UpdateNormFloor(per="row")), 0.21),
        (eqopt.Chain(eqopt.Adam(0.1), eqopt.RadialBrake()), 0.21),
        (eqopt.Chain(eqopt.Adam(0.1), eqopt.RadialBrake(of="component")), 0.31),
        (eqopt.Chain(eqopt.Adam(0.1), eqopt.KeepNorm("initial")), 0.21),
        (eqopt.MoMo(weight_decay=0.1), 0.01),
        (eqopt.MoMoAdam(weight_decay=0.1), 0.01),
        (eqopt.MoMoAdam(weight_decay=0.1, mask=HALF), 0.01),
        (eqopt.NovoGrad(0.1), 0.01),
        (eqopt.Prodigy(weight_decay=0.1), 0.01),
        # The squares, for their maxima: of one leaf at a time.
        (eqopt.SM3(0.1), 0.11),
        (eqopt.ScaleByDistanceOverGradients(), 0.01),
        # The curvature before the estimate, which the step takes, and after it. (The
        # parameters before the step are needed for the estimate of all others.)
        (eqopt.Sophia(0.1), 1.01),
        (eqopt.ScheduleFreePlus(weight_decay=20.0), 0.01),
        (eqopt.StableAdamW(0.1, weight_decay=0.1), 0.01),
        # The gradients without spikes, for their norm: of one leaf at a time. (A sum that
        # computes them takes no memory, but twice the time.)
        (eqopt.StableSPAM(0.1, weight_decay=0.1), 0.11),
    ],
)
@pytest.mark.slow
def test_with_sums(opt, most):
    value_fn = lambda params: eqopt.tree.norm(params, squared=True)
    assert temporary(opt, value=jnp.ones(()), value_fn=value_fn) < most


@mostly_slow(
    ("block", "most"),
    [
        # Units have a norm each: here, two vectors of 1000 for each matrix.
        (eqopt.AdaptiveGradClip(0.1), 0.03),
        (eqopt.ApplyEvery(3), 0.01),
        (eqopt.Centralize(), 0.01),
        (eqopt.EMA(0.9), 0.01),
        (eqopt.Grokfast(), 0.01),
        (eqopt.KeepParamsNonnegative(), 0.01),
        (eqopt.NormalizeByUpdateNorm(), 0.01),
        (eqopt.Snapshot("norm", eqopt.tree.norm), 0.01),
        (eqopt.StatelessWithTreeMap(jnp.multiply), 0.01),
        (eqopt.ZeroNaNs(), 0.01),
    ],
)
@pytest.mark.costly
def test_building_blocks(block, most):
    assert temporary(eqopt.Chain(block, eqopt.SGD(0.1))) < most


MUON = eqopt.Muon(0.1, weight_decay=0.1)


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.MultiSteps(MUON, 8),
        pytest.param(MUON, marks=SLOW),
        pytest.param(
            eqopt.Muon(0.1, nesterov=False, preconditioning="aol"), marks=SLOW
        ),
        pytest.param(eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), MUON), marks=SLOW),
        pytest.param(eqopt.ApplyIfFinite(MUON, 5), marks=SLOW),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("shape", "under_way"),
    [
        ((128, 128), 2),
        pytest.param((128, 300), 2, marks=SLOW),
        pytest.param((300, 128), 2, marks=SLOW),
        pytest.param((300, 300), 1, marks=SLOW),
    ],
    ids=str,
)
@pytest.mark.slow
def test_muon(opt, shape, under_way):
    """Three for each that is under way, however many there are: small ones in pairs."""
    for leaves in (6, 12):
        most = 3.1 * under_way
        assert temporary(opt, leaves=leaves, shape=shape) < most / leaves


EIGHT_BITS = eqopt.storage.BlockwiseQuantized()


@mostly_slow(
    ("opt", "alone", "in_pairs"),
    [
        (eqopt.NorMuon(0.1), 3.1, 6.1),
        (eqopt.Dion2(0.1), 2.4, 4.4),
        (eqopt.AdaMuon(0.1), 4.1, 6.1),
        (eqopt.Aurora(0.1), 4.1, 6.1),
        (eqopt.Scion(0.1), 3.1, 6.1),
    ],
)
@pytest.mark.slow
def test_loops(opt, alone, in_pairs):
    """In units of one leaf: large leaves run one by one, and small ones in pairs."""
    assert 12 * temporary(opt, leaves=12, shape=(257, 256)) < alone
    assert 12 * temporary(opt, leaves=12, shape=(256, 256)) < in_pairs


@mostly_slow(
    ("opt", "most"),
    [
        (eqopt.APOLLO(0.1), 2.1),
        (eqopt.SCALE(0.1), 1.1),
        (eqopt.SinkGD(0.1), 1.1),
        # A copy of the matrix, and the singular vectors of both sides.
        (eqopt.GaLore(0.1), 3.1),
        (eqopt.GaLore(0.1, 16), 3.1),
        # Two sides, each with a decomposition or a product that is not done in place.
        (eqopt.SOAP(0.1), 9.2),
        (eqopt.SOAP(0.1, one_sided=True), 8.2),
        (eqopt.SOAP(0.1, stagger=True), 9.2),
        (eqopt.SOAPMuon(0.1), 10.2),
        (eqopt.Shampoo(0.1), 6.2),
        (eqopt.Shampoo(0.1, one_sided=True), 7.2),
        (eqopt.Shampoo(0.1, stagger=True), 6.2),
        (eqopt.KLShampoo(0.1), 7.2),
        (eqopt.PSGDKron(0.1), 12.1),
        (eqopt.StoreState(eqopt.SOAP(0.1), EIGHT_BITS), 11.3),
    ],
)
@pytest.mark.parametrize("shape", [(256, 256), (240, 400), (400, 240)], ids=str)
@pytest.mark.costly
def test_matrices(opt, most, shape):
    """In squares of the longer side of one leaf, for any number of leaves."""
    square = max(shape) ** 2 / (6 * math.prod(shape))
    assert temporary(opt, leaves=6, shape=shape) < most * square


ADAMW = eqopt.AdamW(0.1)
CLIPPED = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), ADAMW)
RULE = eqopt.SigmaRule()


@pytest.mark.parametrize(
    ("opt", "most"),
    [
        (eqopt.OuterNesterov(ADAMW), 0.01),
        (eqopt.ParamEMA(ADAMW), 0.01),
        (eqopt.ParamEMA(CLIPPED), 0.01),
        (eqopt.ParamEMA(eqopt.MultiSteps(ADAMW, 8)), 0.01),
        (eqopt.ParamEMA(eqopt.Lookahead(ADAMW, 2, 0.5)), 0.01),
        (eqopt.MultiSteps(eqopt.ParamEMA(ADAMW), 8), 0.01),
        (eqopt.SWA(ADAMW, 10), 0.01),
        (eqopt.SWA(eqopt.ParamEMA(ADAMW), 10, 5), 0.01),
        (eqopt.MultiSteps(eqopt.SWA(ADAMW, 3), 8), 0.01),
        (eqopt.SkipStep(ADAMW, RULE), 0.01),
        (eqopt.SkipStep(CLIPPED, lambda value, norm: ~(norm < 9)), 0.01),
        (eqopt.SkipStep(eqopt.ParamEMA(ADAMW), RULE), 0.01),
        (eqopt.DynamicLossScale(ADAMW), 0.01),
        (eqopt.DynamicLossScale(eqopt.MultiSteps(ADAMW, 8)), 0.01),
        # The gradients as a vector, and the parameters where they decay.
        (eqopt.Flatten(eqopt.Adam(0.1)), 1.01),
        (eqopt.Flatten(eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.SGD(0.1))), 1.01),
        (eqopt.Flatten(ADAMW), 2.01),
        (eqopt.Flatten(eqopt.ParamEMA(ADAMW)), 2.01),
        (eqopt.Flatten(eqopt.SWA(ADAMW, 10)), 2.01),
        # The gradients, divided: a norm is needed before they are used.
        (eqopt.DynamicLossScale(CLIPPED), 1.01),
        (eqopt.DynamicLossScale(eqopt.SkipStep(ADAMW, RULE)), 1.01),
        (
            eqopt.MultiSteps(
                ADAMW, 8, should_skip_update_fn=eqopt.SkipLargeUpdates(9.0)
            ),
            0.01,
        ),
        # The leaf that is counted.
        (
            eqopt.MultiSteps(ADAMW, 8, should_skip_update_fn=eqopt.SkipNotFinite()),
            0.11,
        ),
    ],
    ids=repr,
)
@pytest.mark.slow
def test_wrappers(opt, most):
    assert temporary(opt, value=jnp.ones(())) < most


def test_order_of_donated_arguments():
    """As "Getting started" explains: JAX matches donated memory by order and shape."""
    opt = eqopt.AdamW(0.1)
    params = [jax.ShapeDtypeStruct((300, 1000), jnp.float32)] * 4
    state = jax.eval_shape(opt.init, params)

    def fraction(step, *args):
        program = jax.jit(step, donate_argnums=(0, 1)).lower(*args, params).compile()
        memory = program.memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes / sum(4 * p.size for p in params)

    forwards = lambda params, state, grads: opt.step(grads, state, params)
    backwards = lambda state, params, grads: opt.step(grads, state, params)
    turned = lambda state, params, grads: opt.step(grads, state, params)[::-1]
    assert fraction(forwards, params, state) < 0.01
    assert fraction(turned, state, params) < 0.01
    assert fraction(backwards, state, params) > 1
