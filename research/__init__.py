"""Programs that produce the published numbers (README.md); the product and its tests import none of them."""
