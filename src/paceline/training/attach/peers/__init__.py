"""Local steps of peers that come and go: each site runs its own job, and those that are there exchange.

``torch.distributed`` does all transport. Peers meet in a ``TCPStore`` (``peer_store``), agree there on the members of an
exchange (``rounds``) and make a gloo group of them (``peer_groups``). A newcomer or a late peer fetches the shared weights from
one that has them (``transfer``).
"""
