"""How an optimizer step runs, and the type of what it keeps."""
