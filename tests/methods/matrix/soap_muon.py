"""SOAP-Muon: the direction of SOAP, made orthogonal."""

import functools

import numpy as np
import optax

import eqopt

from ...laws.row import row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, TABLES, newton_schulz
from ..method import Method
from .soap import soap_by_hand


COEFFICIENTS = [*TABLES["standard"][0], *[(1.5, -0.5, 0.0)] * 2]
BETA, FREQUENCY = 0.9, 3


def soap_muon_by_hand(grads, rows=COEFFICIENTS):
    m, n = grads[0].shape
    for u in soap_by_hand(BETA, FREQUENCY, correct_bias=False)(grads):
        # The first update is zero.
        yield -np.sqrt(max(1, m / n)) * newton_schulz(u, rows)


METHODS = [
    Method(
        eqopt.SOAPMuon,
        idea="the direction of SOAP, made orthogonal",
        theirs=lambda rate: optax.contrib.muon(rate),
        deviates="Optax has no SOAP-Muon; beside it is its Muon",
        nearest="Muon",
        rates=(0.0032, 0.001, 0.001, 0.0032),
        ratio=None,
        laws=[
            row(
                eqopt.SOAPMuon,
                at=0.01,
                learning_rate=0.1,
                b1=0.5,
                shampoo_beta=0.7,
                eps=1e-3,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            f"soap_muon, {shape}": ByHand(
                eqopt.SOAPMuon(
                    1.0,
                    B1,
                    B2,
                    BETA,
                    EPS,
                    steps=steps,
                    precondition_frequency=FREQUENCY,
                    weight_dimension_numbers=NUMBERS,
                ),
                functools.partial(soap_muon_by_hand, rows=COEFFICIENTS[:steps]),
                shape,
            )
            for shape, steps in (((4, 4), None), ((4, 5), None), ((5, 4), 3))
        },
    ),
]
