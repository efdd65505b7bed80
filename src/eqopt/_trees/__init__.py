"""Trees and their leaves: how they are walked, kept, placed, and which are matrices."""
