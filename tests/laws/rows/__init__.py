"""The rows of the registry, one module for each family."""
