"""Bridges: transformations of Optax, as far as these obey the laws."""

import optax

import eqopt
from eqopt.interop.optax import from_optax, to_optax

from ..row import is_matrix, nested, row


# Made once, because Optax's functions are only equal to themselves.
ADAM = optax.adam(0.01)
CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
INJECTED = optax.inject_hyperparams(optax.adamw, "mask")(0.01, mask=is_matrix)
STATELESS = optax.centralize()
THERE_AND_BACK = to_optax(nested())

NO_COPIES = {"test_copies": "functions made inside of others cannot be pickled"}
NOT_OPTAX = {
    **NO_COPIES,
    "derivatives": "the square roots of Optax have no derivative at zero gradients",
    "half_precision": "Optax computes in the dtypes that "
    "meet, and its moments take on those that come out",
    **dict.fromkeys(
        (
            "test_a_compiled_init_on_explicit_axes",
            "test_state_is_sharded_like_parameters",
        ),
        "compiled, the zeros of Optax have nothing to do with the parameters",
    ),
    "test_no_default_stands_still": "the moments of Optax do",
    "other_model": "the moments of Optax broadcast",
    "test_missing_in_some_steps": "where there is state, Optax takes no `None`",
}
NOT_ADAM = {
    **NOT_OPTAX,
    **dict.fromkeys(
        ("test_init_of_the_whole", "test_no_gradient_no_change", "partly_trained"),
        "where there is state, Optax takes no `None`",
    ),
    "zero_gradients": "an epsilon of 1e-8 is zero in float16",
}

ROWS = [
    row(lambda: from_optax(ADAM), name="from_optax(adam)", exempt=NOT_ADAM),
    row(lambda: from_optax(CLIPPED), name="from_optax(chain)", exempt=NOT_OPTAX),
    row(
        lambda: from_optax(INJECTED),
        name="from_optax(inject_hyperparams)",
        exempt=NOT_ADAM
        | {
            "test_nothing_is_rounded_between_parts": "Optax rounds hyperparameters to "
            "bfloat16: `b2` is 1, and what comes out NaN"
        },
    ),
    row(
        lambda: eqopt.Chain(from_optax(STATELESS), eqopt.Adam(0.01)),
        name="Chain(from_optax)",
        exempt=NO_COPIES,
    ),
    row(
        lambda: from_optax(THERE_AND_BACK),
        name="from_optax(to_optax)",
        exempt={
            **NO_COPIES,
            "test_a_model_of_other_shapes": "the message names what `to_optax` was given",
        },
    ),
]
