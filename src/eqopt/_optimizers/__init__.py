"""One room per family, with one file per algorithm: equation, state, `ScaleByX`, `X`.

Beside the rooms lies what several families share.
"""
