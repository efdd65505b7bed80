from ._from_optax import (
    from_optax as from_optax,
)
from ._state import (
    state_from_optax as state_from_optax,
    state_to_optax as state_to_optax,
)
from ._to_optax import (
    to_optax as to_optax,
)
