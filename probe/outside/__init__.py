"""Tests that nobody here wrote: minimal pairs, pronoun links of novels, WinoBias, and any text (docs/outside.md)."""
