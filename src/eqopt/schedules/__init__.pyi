from ._cosine import (
    CosineDecay as CosineDecay,
    WarmupCosineDecay as WarmupCosineDecay,
)
from ._cyclic import Cyclic as Cyclic
from ._exponential import (
    ExponentialDecay as ExponentialDecay,
    Step as Step,
    WarmupExponentialDecay as WarmupExponentialDecay,
)
from ._join import Join as Join
from ._one_cycle import (
    CosineOneCycle as CosineOneCycle,
    LinearOneCycle as LinearOneCycle,
)
from ._piecewise import (
    MultiStep as MultiStep,
    PiecewiseConstant as PiecewiseConstant,
    PiecewiseInterpolate as PiecewiseInterpolate,
)
from ._plateau import (
    ReduceOnPlateau as ReduceOnPlateau,
    ReduceOnPlateauState as ReduceOnPlateauState,
)
from ._polynomial import Linear as Linear, Polynomial as Polynomial
from ._restarts import SGDR as SGDR, CosineRestarts as CosineRestarts
from ._schedule import (
    AbstractSchedule as AbstractSchedule,
    Clipped as Clipped,
    Constant as Constant,
    Product as Product,
    Sum as Sum,
)
from ._stateful import AbstractStatefulSchedule as AbstractStatefulSchedule
from ._warmup import (
    InverseSquareRoot as InverseSquareRoot,
    WarmupConstant as WarmupConstant,
    WarmupStableDecay as WarmupStableDecay,
)
from ._warmup_decay import WarmupDecay as WarmupDecay
