"""Sharing between sites: what each gains, who would leave, and who pays whom."""
