"""Adam and its kin: a first moment over the root of a second one."""
