"""One room per family, with one file per algorithm: equation, state, `ScaleByX`, `X`.

Next to the rooms is code that several families share.
"""
