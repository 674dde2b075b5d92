"""Models of other programs: transformers, modules of the user's own, and the export to them."""
