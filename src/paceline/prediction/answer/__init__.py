"""A prediction as a value: its figures, range, assumptions and bottlenecks.

``result`` is the value. ``assumptions`` collects the sentences on the device, the exchange and the division of the work.
"""
