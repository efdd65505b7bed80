"""Steps proportional to each layer, and state shared by many elements of a layer."""
