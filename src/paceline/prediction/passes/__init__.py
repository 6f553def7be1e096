"""Work of one device: seconds of the forward pass, backward pass and update, and the stored activations.

``compute`` times layers by roofline and ``host`` their launches, ``recompute`` counts the activations, ``layer_roles`` and
``blocks`` tell the layers of a block by their names. Nothing here knows of other devices except as the number that share state.
"""
