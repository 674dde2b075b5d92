"""How to cite this program: `antecedent-lab cite`, in a checkout `python -m antecedent_lab cite`."""

import sys
from dataclasses import dataclass

from settings.command_line import about, one_line_errors
from settings.train import settings_from_arguments


@dataclass(frozen=True)
class CiteSettings:
    """Print how to cite this program, as BibTeX, from CITATION.cff.

    antecedent-lab cite
    """


def command() -> None:
    """Print the entry, below a line that BibTeX does not read."""
    with one_line_errors():
        settings_from_arguments(CiteSettings, sys.argv[1:])
        facts = about()
        authors = " and ".join(f"{{{author.name}}}" for author in facts.authors)
        print(facts.message)
        print("@software{antecedent,")
        for name, value in {"title": facts.title, "author": authors, "version": facts.version}.items():
            print(f"  {name} = {{{value}}},")
        print("}")
