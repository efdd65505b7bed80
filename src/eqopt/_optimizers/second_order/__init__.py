"""Steps that use the curvature of the loss."""
