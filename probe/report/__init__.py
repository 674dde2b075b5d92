"""What a person sees of a probe: tables, pictures, one page."""
