"""Corrections of a predictor by measured steps.

``link_fit`` and ``host_fit`` find the speed of links and hosts, ``gaussian_process`` interpolates the remaining ratios of
measured to predicted seconds, ``correction`` applies them, and ``corrected_predictor`` is a predictor with a correction.
"""
