"""What workers send to each other; the laws have one worker."""

import eqopt
from eqopt import compression

from ..row import row


COMPRESSORS = {
    "PowerSGD": compression.PowerSGD(1),
    "TopK": compression.TopK(0.5),
    "DCTTopK": compression.DCTTopK(4, 8),
    "Int8": compression.Int8Blocks(),
    "Float8": compression.Float8Blocks(),
    "Sign": compression.Sign(),
}
ROWS = [
    row(
        lambda compressor=compressor, **data: eqopt.CompressedMean(
            eqopt.Adam(0.01), None, compressor, **data
        ),
        name=f"CompressedMean({name})",
        decay=0.5,
    )
    for name, compressor in COMPRESSORS.items()
]
ROWS.append(
    row(
        lambda: eqopt.DiLoCo(
            eqopt.Adam(0.01), None, 2, compressor=compression.PowerSGD(1)
        ),
        name="DiLoCo(compressed)",
    )
)
