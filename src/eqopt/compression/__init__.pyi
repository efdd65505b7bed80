from ._base import AbstractCompressor as AbstractCompressor, Workers as Workers
from ._compressors import (
    DCTTopK as DCTTopK,
    Float8Blocks as Float8Blocks,
    Int8Blocks as Int8Blocks,
    PowerSGD as PowerSGD,
    Sign as Sign,
    TopK as TopK,
)
