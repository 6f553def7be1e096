"""Sites, their jobs, and simulations of sharing between them."""
