from ._base import AbstractCompressor as AbstractCompressor, Workers as Workers
from ._blocks import (
    Float8Blocks as Float8Blocks,
    Int8Blocks as Int8Blocks,
    Sign as Sign,
)
from ._low_rank import PowerSGD as PowerSGD
from ._sparse import DCTTopK as DCTTopK, TopK as TopK
