"""Building blocks of policies: programs over shares and choices, legal sizes, and rigid allocation."""
