"""Build the wheel: all packages under the one import name antecedent_lab.

In a checkout, installed with -e or not, they keep their short names (`from model.observe import HeadEdit`), and
editors and mypy follow every import. In a wheel, short names would collide with a user's own model.py or data/. So
every import between our modules gets the prefix while the wheel is built; nothing else changes.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NAME = "antecedent_lab"
PACKAGES = ("data", "extras", "model", "probe", "settings", "training")
PROGRAMS = ("train", "eval")
IMPORT = re.compile(rf"^( *)from ({'|'.join((*PACKAGES, *PROGRAMS))})(?=\.\w| import )", re.MULTILINE)


class BuildUnderOneName(build_py):
    """Copy the tree below antecedent_lab/ and rewrite its imports."""

    def run(self) -> None:
        root = Path(__file__).parent
        target = Path(self.build_lib) / NAME
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / NAME, target, ignore=ignored, dirs_exist_ok=True)
        for folder in ("configs", *PACKAGES):
            shutil.copytree(root / folder, target / folder, ignore=ignored, dirs_exist_ok=True)
        for file in (*map("{}.py".format, PROGRAMS), "CITATION.cff"):
            shutil.copy(root / file, target)
        for path in target.rglob("*.py"):
            path.write_text(IMPORT.sub(rf"\1from {NAME}.\2", path.read_text(encoding="utf-8")), encoding="utf-8")


setup(packages=[NAME], cmdclass={"build_py": BuildUnderOneName})
