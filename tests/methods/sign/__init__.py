"""Steps by the sign of the gradient."""
