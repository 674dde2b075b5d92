"""Output for a notebook: pages in a frame."""

import html

from extras.page.content import page_content
from extras.page.page import page
from probe.opened_model import OpenedModel


class Html(str):
    """A page that needs no network: a notebook shows it in a frame, and its script cannot reach the notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<a page of {len(self):,} characters; a notebook shows it, write_text saves it>"

    def _repr_html_(self) -> str:
        attributes = 'title="Antecedent" sandbox="allow-scripts" style="width: 100%; height: 60rem; border: 0"'
        return f'<iframe {attributes} srcdoc="{html.escape(self)}"></iframe>'


def sentence_view(opened: OpenedModel, text: str) -> Html:
    """Return the report's view of one sentence that the model can read."""
    return Html(page(page_content(opened, None, None, [text], live=False)))
