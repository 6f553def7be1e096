"""Search for the best strategy under a goal.

``space`` holds the values to try, ``candidates`` the legal combinations, ``layouts`` the divided ones. ``ranking`` orders
them by ``goal``, and ``plan`` joins the steps to one answer.
"""
