"""The report page: one HTML file that works offline."""
