"""The browser of the page's tests, started once, and the way to show a page in it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from report.page import page
from tests.report import sample
from tests.report.browser import Opened, opened, running

Show = Callable[..., AbstractContextManager[Opened]]
browser = pytest.fixture(running, scope="session")


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Show:
    """Show the HTML of a page, or a content, by default that of `sample`; `settings` are the browser context's."""

    def show_page(shown: Any = None, **settings: Any) -> AbstractContextManager[Opened]:
        html = shown if isinstance(shown, str) else page(shown or sample.content())
        return opened(browser, html, tmp_path, **settings)

    return show_page
