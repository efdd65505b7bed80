"""Line searches: step sizes from the loss along the updates."""

import math

import eqopt

from ..row import evaluated, row


KEEPS = {"other_model": "the gradient in the state is replaced, and not read in a step"}


ROWS = [
    row(
        evaluated(eqopt.ScaleByBacktrackingLinesearch, 5),
        name="ScaleByBacktrackingLinesearch",
        slope_rtol=0.1,
        decrease_factor=0.5,
        increase_factor=4.0,
        max_learning_rate=0.5,
        atol=0.1,
        rtol=0.2,
    ),
    row(
        evaluated(
            eqopt.ScaleByBacktrackingLinesearch,
            5,
            store_grad=True,
            increase_factor=math.inf,
        ),
        name="ScaleByBacktrackingLinesearch(store_grad)",
        exempt=KEEPS,
        max_learning_rate=0.5,
    ),
    row(
        evaluated(eqopt.ScaleByZoomLinesearch, 5),
        name="ScaleByZoomLinesearch",
        exempt=KEEPS,
        max_learning_rate=0.5,
        tol=0.1,
        increase_factor=8.0,
        slope_rtol=0.1,
        curv_rtol=0.5,
        approx_dec_rtol=1e-3,
        stepsize_precision=0.1,
    ),
    row(
        evaluated(
            eqopt.ScaleByZoomLinesearch,
            5,
            approx_dec_rtol=None,
            initial_guess_strategy="one",
        ),
        name="ScaleByZoomLinesearch(one, no approximation)",
        exempt=KEEPS,
        curv_rtol=0.5,
    ),
]
