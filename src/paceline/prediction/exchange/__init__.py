"""Exchanges of a step: bytes and seconds on links inside and between nodes.

``exchange_plan`` lists the collectives of gradients and weights, ``collective_time`` prices one collective,
``exchange_seconds`` prices a plan with its codec, and ``group_view`` is the cluster as one group of devices sees it.
"""
