"""The project's public address, from the variables that GitHub sets in every run of a workflow.

Anywhere else the address is not known, and nothing is written. setup.py runs this file by its path, so it imports
nothing but the standard library.
"""

import os
import re

SERVER, NAME = (os.environ.get(f"GITHUB_{part}", "") for part in ("SERVER_URL", "REPOSITORY"))
REPOSITORY = f"{SERVER}/{NAME}" if SERVER and NAME else ""
# Other servers publish pages at addresses of their own.
ON_GITHUB = REPOSITORY.startswith("https://github.com/")
OWNER, _, PROJECT = NAME.partition("/")
SITE = f"{OWNER.lower()}.github.io"  # a repository of this name is published at the root
PAGES = f"https://{SITE}/{'' if PROJECT.lower() == SITE else f'{PROJECT}/'}" if ON_GITHUB else ""


def urls() -> dict[str, str]:
    """Return the addresses of the project by their names in the package index, none where they are not known."""
    if not REPOSITORY:
        return {}
    places = {
        "Homepage": REPOSITORY,
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Documentation": f"{REPOSITORY}/blob/HEAD/docs/usage.md",
        "Changelog": f"{REPOSITORY}/blob/HEAD/CHANGELOG.md",
    }
    return places | ({"Pages": PAGES} if PAGES else {})


def with_addresses(markdown: str) -> str:
    """Return a text of the repository's root whose relative links and pictures have addresses, where they are known."""
    if not REPOSITORY:
        return markdown
    pictures = re.sub(r"\]\((?!\w+:|#)(?=[^)]*\.(?:svg|png)\))", f"]({REPOSITORY}/raw/HEAD/", markdown)
    return re.sub(r"\]\((?!\w+:|#)", f"]({REPOSITORY}/blob/HEAD/", pictures)
