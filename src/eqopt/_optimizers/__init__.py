"""One file per algorithm: equation, state, `ScaleByX`, `X` and its near kin."""
