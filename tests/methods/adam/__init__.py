"""Adam and its variants: a first moment over the root of a second one."""
