"""Steps by the curvature of the loss."""
