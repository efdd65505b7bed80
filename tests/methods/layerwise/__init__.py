"""Steps in proportion to each layer, and one state for many elements of it."""
