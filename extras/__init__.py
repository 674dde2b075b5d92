"""What the core does not know: each folder is one thing more that the program can do, and imports no other."""
