"""The engine between the card's packet memory and its wire, in Amaranth."""
