from ._base import (
    AbstractHidden as AbstractHidden,
    AbstractParamStorage as AbstractParamStorage,
    AbstractStateStorage as AbstractStateStorage,
    AbstractStored as AbstractStored,
    Nonnegative as Nonnegative,
    Slot as Slot,
)
from ._quantized import BlockwiseQuantized as BlockwiseQuantized, Float8 as Float8
from ._rounding import (
    Cast as Cast,
    KahanSummation as KahanSummation,
    MasterWeights as MasterWeights,
    SplitMasterWeights as SplitMasterWeights,
    StochasticRounding as StochasticRounding,
)
