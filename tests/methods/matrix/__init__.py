"""Steps for parameters that are matrices."""
