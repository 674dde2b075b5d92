"""python eval.py text=: what every head does at the pronouns of the user's own sentence, and the page with it."""

from __future__ import annotations

import json
from contextlib import nullcontext

from probe.open import Opened
from report.reporting import PAGE, TEXTS, Probed, claim_or_note, page_content, pen_of, read_probe, read_texts, with_text


def look(opened: Opened, text: str) -> bool:
    """Print what every head does at the pronouns of the user's sentence, and add the sentence to the run's page.

    A text without a pronoun is only added. Returns whether the page could be written.

    Raises:
        ValueError: for a text that the model cannot read, or a model that cheats, before a word is said.
        BlockingIOError: another process writes to the run's probe/.

    """
    from data.stories.lint import lint
    from probe.sentences import word_rows
    from report.page import page
    from report.sentences import unknown_note
    from report.tables import sentence_lines
    from report.terminal import printable
    from training.checkpoint import write_files

    if not text.strip():
        raise ValueError("text is empty")
    sentence, limit = opened.cut(text), opened.model.config.context_length
    if len(sentence.ids) > limit:
        raise ValueError(f"text is {len(sentence.ids) - 1} tokens long; this model reads {limit - 1}")
    notes = lint(text)  # reads the whole text again at every pronoun: of one that is too long, without an end
    asked = [span for note in notes for span in (note.span, note.clue) if span]
    rows = word_rows(opened.model, sentence, asked) if asked else []
    claimed = claim_or_note(opened, opened.run / "probe")
    with claimed or nullcontext():
        probed, missing = read_probe(opened)
        texts = with_text(read_texts(opened.run), text)
        content = page_content(opened, probed, texts, missing)
        files = {TEXTS: json.dumps(texts, indent=2) + "\n", PAGE: page(content)}
        for note in [*unknown_note(pen_of(opened), sentence, text), *(note.note for note in notes)]:
            print(f"note     {printable(note)}")
        if not notes:
            looked = "it, its, they, them, their, she, her, he, him and his"
            print(f"note     no pronoun in text (looked for {looked}): only the page shows it")
        if rows:
            lines = sentence_lines([word for word, _ in sentence.words], rows, chosen_heads(probed))
            print("\n".join(printable(line) for line in lines))
        if claimed is not None:
            write_files(opened.run / "probe", files)
    return claimed is not None


def chosen_heads(probed: Probed | None) -> dict[tuple[int, int], list[str]]:
    """Return which heads a probe of this checkpoint chose, and for which questions."""
    chosen: dict[tuple[int, int], list[str]] = {}
    for one in probed.results["selected"] if probed else ():
        chosen.setdefault((one["layer"], one["head"]), []).append(one["question"])
    return chosen
