"""Errors that a user can cause, and their messages as one printable line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(ValueError):
    """Something the user did: a wrong setting, a damaged file, unsuitable data. The message is one line.

    The programs print the message alone and exit with status 2, as for files, memory and missing packages.
    """


def one_line(error: Exception) -> str:
    """Return the message of an error of a library, or of its cause, as one line of at most 200 characters."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    message = " ".join(str(cause).split()) or type(cause).__name__
    return printable(message[:200])


def printable(text: str) -> str:
    """Return `text` with every character that could control a terminal replaced, except line ends and tabs."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)


def extra(name: str) -> str:
    """Return the argument of pip for an extra: that of the package, or in a checkout that of this folder."""
    return f"'antecedent-lab[{name}]'" if __name__.startswith("antecedent_lab.") else f"'.[{name}]'"


@contextmanager
def damaged_file_error(path: Path, remedy: str) -> Iterator[None]:
    """Turn errors of parsing a damaged or missing file into a UserError that names the file and a remedy."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {remedy}") from None
    except UserError as error:  # it names the problem
        raise UserError(f"{path}: damaged ({error}); {remedy}") from None
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        raise UserError(f"{path}: damaged; {remedy}") from None
