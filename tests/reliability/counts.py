"""How a target tells of a count that is smaller in CI than the promise."""


def counted(count: int, whole: int) -> str:
    """Return a count; beside it the one of the promise, where this is not it."""
    return f"{count:,}" if count == whole else f"{count:,} (full: {whole:,})"
