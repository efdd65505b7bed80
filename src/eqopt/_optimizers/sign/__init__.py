"""Steps that use the sign of the gradient."""
