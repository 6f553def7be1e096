"""Mechanisms: rules that say who uses whose devices and who pays whom. Each one says what it keeps and what it gives up."""
