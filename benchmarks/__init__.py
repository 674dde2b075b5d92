"""Programs that produce the published numbers: each writes docs/results/NAME.json and NAME.md."""
