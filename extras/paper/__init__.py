"""Tables and figures for a paper."""
