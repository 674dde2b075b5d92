"""python eval.py text=: what every head does at the pronouns of the user's own sentence."""

from __future__ import annotations

from probe.commands.opened import Opened, chosen_heads


def look(opened: Opened, text: str) -> None:
    """Print what every head does at the pronouns of the user's sentence, and what cannot be seen there."""
    from data.stories.lint import lint
    from data.tokenizer import unknown_id
    from probe.report.tables import sentence_lines
    from probe.sentence import word_rows

    notes = lint(text)
    if not text.strip():
        raise ValueError("text is empty")
    if not notes:
        raise ValueError("no pronoun in text: looked for it, its, they, them, their, she, her, he, him and his")
    sentence, limit = opened.cut(text), opened.model.config.context_length
    if len(sentence.ids) > limit:
        raise ValueError(f"text is {len(sentence.ids) - 1} tokens long; this model reads {limit - 1}")
    asked = [span for note in notes for span in (note.span, note.clue) if span]
    rows = word_rows(opened.model, sentence, asked)  # before a word is said: a model that cheats is refused here
    unread = unknown_id(opened.tokenizer)
    spans = zip(sentence.ids[1:], sentence.offsets, strict=True)
    unknown = [text[slice(*span)] for token, span in spans if token == unread]
    if unknown:
        print(f"note     the model does not know {', '.join(dict.fromkeys(unknown))}: each reads as unknown")
    for note in notes:
        print(f"note     {note.note}")
    print("\n".join(sentence_lines([word for word, _ in sentence.words], rows, chosen_heads(opened.run))))
