from ._optax import (
    from_optax as from_optax,
    state_from_optax as state_from_optax,
    state_to_optax as state_to_optax,
    to_optax as to_optax,
)
