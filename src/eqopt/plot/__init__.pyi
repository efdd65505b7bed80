from ._memory import state_memory as state_memory
from ._runs import learning_rates as learning_rates, training_curves as training_curves
from ._schedule import schedule as schedule
