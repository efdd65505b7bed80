"""Wrappers that evaluate the loss at other points, or that tune the learning rate."""

import eqopt

from ..row import Evaluated, around, nested, row


def climb(rho):
    return eqopt.Chain(eqopt.Normalize(), eqopt.Scale(-rho))


CACHED = {
    "test_no_gradient_no_change": "the state keeps all parameters while it climbs, to go "
    "back to them"
}

ROWS = [
    *around(eqopt.SAM, exempt=CACHED, sync_period=2),
    row(
        lambda rho=0.1: eqopt.SAM(eqopt.Adam(0.01), climb(rho), 3),
        name="SAM(radius)",
        exempt=CACHED,
        rho=0.2,
    ),
    row(
        lambda: eqopt.SAM(
            eqopt.Adam(0.01), eqopt.Adam(0.05), sync_period=2, reset_state=False
        ),
        name="SAM(Adam climbs)",
        exempt=CACHED,
    ),
    row(
        lambda rho=0.1: Evaluated(
            eqopt.SAM(nested(), climb(rho), sync_period=3, opaque_mode=True)
        ),
        name="SAM(opaque)",
        rho=0.2,
    ),
    # Large enough to make more difference than rounding does.
    *around(eqopt.Mechanic, s_init=0.1),
    row(
        lambda **data: eqopt.Mechanic(eqopt.SGD(0.1, 0.9), num_betas=3, **data),
        name="Mechanic(hyperparameters)",
        weight_decay=0.1,
        eps=1e-3,
        s_init=0.2,
    ),
]
