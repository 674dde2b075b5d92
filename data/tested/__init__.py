"""Texts that heads are tested on."""
