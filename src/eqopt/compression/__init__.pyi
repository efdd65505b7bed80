from ._base import AbstractCompressor as AbstractCompressor, Workers as Workers
from ._blocks import Float8 as Float8, Int8 as Int8, Sign as Sign
from ._low_rank import PowerSGD as PowerSGD
from ._sparse import DCTTopK as DCTTopK, TopK as TopK
