from . import (
    optax as optax,
    optimistix as optimistix,
    torch as torch,
)
