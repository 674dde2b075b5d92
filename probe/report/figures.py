"""Figures for papers, as PNG: the map of heads, the four cells, when it came, whether it is why. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def check_installed() -> None:
    """Raise ValueError, before minutes of work, where matplotlib, an extra, is not there."""
    raise NotImplementedError


def draw_run(content: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw one run: the PNG of each file's name; one of which nothing is known is left out.

    Args:
        content: what the page holds (`probe.report.content`).

    """
    raise NotImplementedError


def draw_seeds(results: Mapping[str, Any], records: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, bytes]:
    """Draw when the heads of several seeds came: {"emergence.png": bytes}, or {} where no question has curves.

    Args:
        results: what seeds.json holds (`probe.seeds.over_seeds`).
        records: the lines of metrics.jsonl of each run, by the names in `results["runs"]`.

    """
    raise NotImplementedError
