"""Work of one device: seconds of the forward pass, backward pass and update, and bytes of memory.

``compute`` times layers by roofline and ``host`` their launches, ``recompute`` and ``memory`` count bytes, and ``costs``
collects the seconds of a step. Nothing here knows of other devices except as the number that share state.
"""
