"""The engines in Amaranth: a 256-bit stream with valid and ready goes in, another comes out."""
