from ._plot import (
    learning_rates as learning_rates,
    power_law as power_law,
    schedule as schedule,
    state_memory as state_memory,
    training_curves as training_curves,
)
