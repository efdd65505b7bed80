from ._constant import Constant as Constant
from ._cosine import (
    CosineDecay as CosineDecay,
    WarmupCosineDecay as WarmupCosineDecay,
)
from ._join import Join as Join
from ._polynomial import Linear as Linear, Polynomial as Polynomial
from ._schedule import AbstractSchedule as AbstractSchedule
from ._stateful import AbstractStatefulSchedule as AbstractStatefulSchedule
