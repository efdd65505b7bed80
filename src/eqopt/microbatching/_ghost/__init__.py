"""The gradients of single examples, without computing them."""
