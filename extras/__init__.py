"""Extras: each folder adds one thing to the program. The core imports none of them, and none imports another."""
