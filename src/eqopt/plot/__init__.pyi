from ._plot import (
    learning_rates as learning_rates,
    schedule as schedule,
    state_memory as state_memory,
    training_curves as training_curves,
)
