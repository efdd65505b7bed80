from ._convert import (
    params_from_torch as params_from_torch,
    state_from_torch as state_from_torch,
)
from ._from_torch import (
    from_torch as from_torch,
)
