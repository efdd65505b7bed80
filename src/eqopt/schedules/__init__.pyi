from ._cycles import (
    SGDR as SGDR,
    CosineOneCycle as CosineOneCycle,
    CosineRestarts as CosineRestarts,
    Cyclic as Cyclic,
    LinearOneCycle as LinearOneCycle,
)
from ._decay import (
    CosineDecay as CosineDecay,
    ExponentialDecay as ExponentialDecay,
    Linear as Linear,
    Polynomial as Polynomial,
    Step as Step,
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
from ._schedule import (
    AbstractSchedule as AbstractSchedule,
    AbstractStatefulSchedule as AbstractStatefulSchedule,
    Clipped as Clipped,
    Constant as Constant,
    Join as Join,
    Product as Product,
    Sum as Sum,
)
from ._warmup import (
    InverseSquareRoot as InverseSquareRoot,
    WarmupConstant as WarmupConstant,
    WarmupCosineDecay as WarmupCosineDecay,
    WarmupDecay as WarmupDecay,
    WarmupExponentialDecay as WarmupExponentialDecay,
    WarmupStableDecay as WarmupStableDecay,
)
