from ._compressors import (
    AbstractCompressor as AbstractCompressor,
    DCTTopK as DCTTopK,
    Float8Blocks as Float8Blocks,
    Int8Blocks as Int8Blocks,
    PowerSGD as PowerSGD,
    Sign as Sign,
    TopK as TopK,
    Workers as Workers,
)
