"""No learning rate to tune."""
