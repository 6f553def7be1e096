"""Step time and memory of many layouts at once.

``batch`` gives the exact steps of undivided networks as arrays. ``layout_bounds`` gives lower bounds for divided ones, so that
few of millions need a full prediction.
"""
