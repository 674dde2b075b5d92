"""One run's life: where it is kept, what it runs on, how it is optimised, what it writes down."""
