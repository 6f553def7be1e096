"""Records of who used and who owes what, and audits of lenders."""
