"""Build the wheel: all packages under the one import name antecedent_lab.

In a checkout, installed with -e or not, they keep their short names (`from model.observe import HeadEdit`), and
editors and mypy follow every import. In a wheel, short names would collide with a user's own model.py or data/. So
every import between our modules gets the prefix while the wheel is built; nothing else changes.

Where the project's public address is known (settings/address.py), the package names it: in its urls, in the links of
README, and in its CITATION.cff.
"""

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from runpy import run_path

from setuptools import setup
from setuptools.command.build_py import build_py

NAME = "antecedent_lab"
PACKAGES = ("data", "extras", "model", "probe", "settings", "training")
PROGRAMS = ("train", "eval")
ROOT = Path(__file__).parent
ADDRESS = run_path(str(ROOT / "settings/address.py"))  # an isolated build cannot import it
IMPORT = re.compile(rf"^( *)from ({'|'.join((*PACKAGES, *PROGRAMS))})(?=\.\w| import )", re.MULTILINE)


class BuildUnderOneName(build_py):
    """Copy the tree below antecedent_lab/ and rewrite its imports."""

    def run(self) -> None:
        target = Path(self.build_lib) / NAME
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / NAME, target, ignore=ignored, dirs_exist_ok=True)
        for folder in ("configs", "docs/questions", *PACKAGES):
            shutil.copytree(ROOT / folder, target / folder, ignore=ignored, dirs_exist_ok=True)
        for file in (*map("{}.py".format, PROGRAMS), "CITATION.cff"):
            shutil.copy(ROOT / file, target)
        for path in target.rglob("*.py"):
            path.write_text(IMPORT.sub(rf"\1from {NAME}.\2", path.read_text(encoding="utf-8")), encoding="utf-8")
        if url := ADDRESS["REPOSITORY"]:
            with (target / "CITATION.cff").open("a", encoding="utf-8") as citation:
                citation.write(f"repository-code: {url}\nurl: {ADDRESS['PAGES'] or url}\n")
                citation.write(f"date-released: {datetime.now(UTC):%Y-%m-%d}\n")


setup(
    packages=[NAME],
    cmdclass={"build_py": BuildUnderOneName},
    project_urls=ADDRESS["urls"](),
    long_description=ADDRESS["with_addresses"]((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
