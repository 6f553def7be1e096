"""One training step, from its costs to its schedule.

``step_model`` makes a step of a strategy. ``costs`` collects the seconds of its pieces, ``timeline`` decides which piece waits
for which, ``exposed`` and ``waits`` say what the step waits for, and ``memory`` counts bytes on one device.
"""
