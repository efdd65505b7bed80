"""The defaults of methods that Optax does not have, as their authors have them.

Where Optax has the method, parity compares its defaults.
"""

import dataclasses

import pytest

import eqopt

from . import METHODS


ADAM = "b1=0.9, b2=0.999, eps=1e-8"
FEW_ROOTS = "precondition_frequency=10, stagger=False, correct_bias=True"
QUINTIC, CUBIC = (3.4445, -4.775, 2.0315), (1.5, -0.5, 0.0)

# As arguments of a call. What is eqopt's own choice has a comment.
DEFAULTS = {
    "AddDecayedWeights": "weight_decay=0.0, cautious=False, mode='decoupled'",
    "Cautious": "rescale='share'",
    "Hyperball": "radius='current', per='matrix'",
    "RelativeUpdate": "per='matrix'",
    "UpdateNormFloor": "floor=0.35, per='matrix'",
    "RadialBrake": "outward=0.5, inward=1.0, of='norm'",
    "KeepNorm": "radius='current', per='matrix'",
    # `b1` as in the triangular form; this form has no momentum.
    "PSGDKron": """
        b1=0.9, preconditioner_lr=0.1, damping=1e-9, max_rms=2.0, max_abs=10.0,
        weight_decay=0.0, precondition_frequency=1, whiten_momentum=False,
        max_size=8192, max_skew=1, stagger=False
    """,
    # `beta` as in their recipes; their code has no momentum.
    "Scion": """
        norm='spectral', radius=1.0, beta=0.9, eps=1e-8, weight_decay=1.0,
        normalized=True, coefficients='standard', at_least_one=False
    """,
    # The authors recommend a graft, but have none by default; and sums of the factors,
    # with new roots in each step.
    "Shampoo": f"""
        {FEW_ROOTS}, b1=0.9, b2=0.999, eps=1e-12, weight_decay=0.0, graft='adam',
        graft_b2=0.999, graft_eps=1e-8, one_sided=False, block_size=1024
    """,
    # `eps` as in Shampoo.
    "KLShampoo": f"""
        {FEW_ROOTS}, b1=0.9, b2=0.95, eps=1e-12, weight_decay=0.01, one_sided=False
    """,
    "MARS": """
        mars_type='adamw', b1=0.95, b2=0.99, eps=1e-8, gamma=0.025, max_norm=1.0,
        weight_decay=0.0, is_approx=True, optimize_1d=False, coefficients='standard'
    """,
    "AdamMini": f"{ADAM}, weight_decay=0.0",
    "StableAdamW": "b1=0.9, b2=0.99, eps=1e-6, weight_decay=0.01",
    "APOLLO": """
        b1=0.9, b2=0.999, eps=1e-6, rank=256, scale=1.0, scale_type='channel',
        update_proj_gap=200, proj='random', max_growth=1.01, weight_decay=0.0,
        key=0, scale_front=False
    """,
    "CAME": """
        b1=0.9, b2=0.999, b3=0.9999, eps=1e-30, eps_confidence=1e-16,
        clipping_threshold=1.0, weight_decay=0.0
    """,
    "SinkGD": """
        steps=5, eps=1e-8, scale=0.05, weight_decay=0.0, power_steps=1,
        width_exponent=1.0
    """,
    "SCALE": "momentum=0.9, eps=1e-8, weight_decay=0.0",
    "GPA": "mu_x=0.9967, mu_y=0.7, sees='z'",
    "Dion2": """
        fraction=0.25, ef_decay=0.95, eps=1e-8, weight_decay=0.01,
        coefficients='polar_express', scale='unit_rms'
    """,
    "LaProp": "b1=0.9, b2=0.999, eps=1e-15, weight_decay=0.0",
    "AdaMuon": """
        coefficients='standard', beta=0.95, eps=1e-8, weight_decay=0.01,
        nesterov=True, consistent_rms=0.2
    """,
    "SOAPMuon": f"""
        b1=0.95, b2=0.98, eps=1e-15, coefficients={5 * (QUINTIC,) + 2 * (CUBIC,)},
        scale='shape', weight_decay=0.0, precondition_frequency=10,
        max_precond_dim=10000, one_sided=False, kl=False, stagger=False
    """,
    "Aurora": """
        coefficients='simple', beta=0.95, pp_iterations=2, pp_beta=0.5, eps=1e-7,
        weight_decay=0.025, nesterov=True, scale='shape'
    """,
    "Orthogonalize": """
        coefficients='standard', scale='none', eps=1e-7, gram=False, restarts=(2,),
        row_normalize=False, renormalize=False
    """,
    # The values of the record; by default, the code does not extrapolate.
    "EMANesterov": "beta=0.3, decay=0.99, start=0",
    "Grams": "b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.0",
    "AdamP": f"{ADAM}, delta=0.1, wd_ratio=0.1, nesterov=False, weight_decay=0.0",
    "SGDP": """
        momentum=0.0, dampening=0.0, eps=1e-8, delta=0.1, wd_ratio=0.1,
        nesterov=False, weight_decay=0.0
    """,
    "AdaClipGN": "gamma1=0.7, gamma2=0.9, gamma3=0.999, eps=1e-8, eta_min=0.5",
    "StableSPAM": f"""
        {ADAM}, gamma1=0.7, gamma2=0.9, gamma3=0.999, reset_every=1000, eta_min=0.5,
        weight_decay=0.0
    """,
    "ScheduleFreePlus": """
        learning_rate=1.0, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.0, beta=0.9,
        max_beta=0.965, anneal_steps=0, polyak_beta=0.0, weight_power=0.0,
        weight_lr_power=2.0, average_from=0
    """,
    "Grokfast": "alpha=0.98, lamb=2.0",
}


def defaults(cls):
    """All defaults except `None`, functions and transformations."""
    pairs = {field.name: field.default for field in dataclasses.fields(cls)}
    kinds = bool | int | float | str | tuple
    return {name: x for name, x in pairs.items() if isinstance(x, kinds)}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    """Also the defaults of its parts, except that parts do not decay by default."""
    expected = eval(f"dict({DEFAULTS[name]})")
    assert defaults(getattr(eqopt, name)) == expected
    if name not in METHODS or name == "KLShampoo":  # its part is Shampoo's
        return
    for part in METHODS[name].classes:
        found = defaults(part)
        for argument in found.keys() & expected.keys() - {"weight_decay"}:
            assert found[argument] == expected[argument], (part, argument)
