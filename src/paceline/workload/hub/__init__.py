"""Layer tables of the models of Hugging Face's libraries, built from their configuration and traced without weights."""
