"""Networks divided over tensor, context, expert and pipeline groups.

``divided_layers`` is one device's part of the layers, ``stages`` the parts of a pipeline, ``pipeline`` the order of their
passes. ``mesh_step`` joins them to one step.
"""
