from . import (
    optax as optax,
    optimistix as optimistix,
)
