"""Questions of the user's own, in a file (docs/probe.md)."""
