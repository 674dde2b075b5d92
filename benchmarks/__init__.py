"""What measures us: each file prints its own table and is run from the project's root by python -m benchmarks.NAME."""
