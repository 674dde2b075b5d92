"""What a page holds, taken out of its HTML again."""

import json
import re
from typing import Any


def content_of(page: bytes) -> dict[str, Any]:
    """Return the data of a report.html; AssertionError where it is no JSON of finite numbers."""
    (text,) = re.findall(rb'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found
