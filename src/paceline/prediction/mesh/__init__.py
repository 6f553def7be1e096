"""Networks divided over tensor, context, expert and pipeline groups."""
