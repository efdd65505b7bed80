from ._minimiser import (
    Minimiser as Minimiser,
)
