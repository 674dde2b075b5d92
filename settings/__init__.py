"""Settings, their checks, and the files and errors of a command."""
