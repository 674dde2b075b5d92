"""The sentences of a page, each with every head's attention: the showcase, the median blocks, the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.links import Span
from model.transformer import Transformer
from probe.sentences import SHOWCASE, Asked, Sentence, layout, next_words, view, written, written_words

_N_NEXT = 5  # words that may come next


_GROUPS = {"number": "cells", "later_cue": "twins"}  # of the showcase


# A question whose items are of the showcase's kind, though it is another's part.
_AS = {"number": "number"}


@dataclass(frozen=True, slots=True)
class Pen:
    """A model, and all that is needed to write down what it does with a text."""

    model: Transformer  # in eval mode
    cut: Callable[[str], Sentence]
    name: Callable[[int], str]  # of a token
    unknown: int | None  # the token that stands for what the tokenizer cannot write
    notes: Callable[[str], list[tuple[Span, Span | None, str]]]  # of a text: pronoun, later clue, what to say of it

    def writes(self, text: str) -> bool:
        """Whether the model can read `text` as it stands: no unknown word, and not too long."""
        ids = self.cut(text).ids
        return self.unknown not in ids[1:] and len(ids) <= self.model.config.context_length


@dataclass(frozen=True, slots=True)
class Marks:
    """What is asked of a sentence: places in its words, the token before the text being the first."""

    asked: Sequence[int] = ()
    antecedents: Sequence[int] = ()
    distractors: Sequence[int] = ()


def entry(pen: Pen, text: str, about: Mapping[str, Any], marks: Marks, *, goes_on: bool = False) -> dict[str, Any]:
    """Return what a page holds of one sentence.

    Args:
        pen: the model and its tokenizer.
        text: not empty and not longer than the model reads.
        about: its "id", "group", "title" and "item".
        marks: what is asked.
        goes_on: whether to say what the model expects after the text.

    """
    sentence = pen.cut(text)
    seen = layout(sentence, text)
    weights = view(pen.model, sentence)
    following = next_words(pen.model, sentence.ids, _N_NEXT) if goes_on else []
    return {
        **about,
        "text": text,
        "pieces": seen.pieces,
        "words": seen.words,
        "owner": seen.owner,
        "asked": list(marks.asked),
        "antecedents": list(marks.antecedents),
        "distractors": list(marks.distractors),
        "notes": [*unknown_note(pen, sentence, text), *(note for *_, note in pen.notes(text))],
        "next": [[pen.name(token), round(chance, 4)] for token, chance in following],
        "weights": written(weights),
        "word_weights": written_words(weights, seen),
        "film": None,
    }


def unknown_note(pen: Pen, sentence: Sentence, text: str) -> list[str]:
    """Return a note on the words that the model does not know, where there are some."""
    spans = zip(sentence.ids[1:], sentence.offsets, strict=True)
    unknown = dict.fromkeys(text[slice(*span)] for token, span in spans if token == pen.unknown)
    return [f"the model does not know {', '.join(unknown)}: each reads as unknown"] if unknown else []


def showcase(pen: Pen) -> dict[str, list[dict[str, Any]]]:
    """Return the four cells and the twins by their questions; none of a question that the model cannot read."""
    return {
        name: [_shown(pen, group, place, one) for place, one in enumerate(SHOWCASE[name][1], 1)]
        for name, group in _GROUPS.items()
        if all(pen.writes(one.text) for one in SHOWCASE[name][1])
    }


def _shown(pen: Pen, group: str, place: int, one: Asked) -> dict[str, Any]:
    words = [word for word, _ in pen.cut(one.text).words]
    asked, meant, other = (1 + words.index(word) for word in (one.word, one.antecedent, one.distractor))
    ends = one.text.endswith(one.word)
    later = "" if ends else ", as a later word will say"
    title = f'at "{one.word}": {one.antecedent} is meant, not {one.distractor}{later}'
    about = {"id": f"{group}-{place}", "group": group, "title": title, "item": None}
    return entry(pen, one.text, about, Marks([asked], [meant], [other]), goes_on=ends)


def like(question: str) -> str:
    """Return the question of the showcase whose sentences ask this one too; itself where there is none."""
    return _AS.get(question, question)


def median_lines(items: str, question: str, median: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the lines of items.jsonl that hold a question's median block, with their numbers, the first being 1.

    Args:
        items: all of items.jsonl.
        question: a part of another question, as "gender", has its items there.
        median: as in probe.json.

    """
    name, mark = question.partition(",")[0], f'"block": {median["block"]},'
    near = ((number, json.loads(line)) for number, line in enumerate(items.splitlines(), 1) if mark in line)
    return [
        (number, one)
        for number, one in near
        if (one["question"], one["holdout"], one["block"]) == (name, median["holdout"], median["block"])
    ]


def median_block(pen: Pen, number: int, question: str, median: Mapping[str, Any], items: str) -> list[dict[str, Any]]:
    """Return the four sentences of a question's median block; `number` counts the questions."""
    found = []
    for place, (line, one) in enumerate(median_lines(items, question, median), 1):
        text = _fitting(pen, one["text"])
        owner = layout(pen.cut(text), text).owner
        marks = Marks(
            [owner[one["query"]]], *([owner[word[0]] for word in one[side]] for side in ("antecedents", "distractors"))
        )
        title = f"median of {median['n_blocks']} blocks, cell {place} of 4: a rule chose it, not a person"
        about = {"id": f"median-{number}-{place}", "group": "median", "title": title}
        found.append(entry(pen, text, about | {"item": {"question": one["question"], "line": line}}, marks))
    return found


def _fitting(pen: Pen, text: str) -> str:
    """Return as much of `text`, from its start, as the model can read."""
    sentence, limit = pen.cut(text), pen.model.config.context_length
    return text if len(sentence.ids) <= limit else text[: sentence.offsets[limit - 2][1]]


def own(pen: Pen, number: int, text: str) -> dict[str, Any]:
    """Return the user's sentence: asked are its pronouns, and before a pronoun the later word that decides it."""
    spans = [span for _, span in pen.cut(text).words]
    asked: list[int] = []
    for pronoun, clue, _ in pen.notes(text):
        asked += [1 + spans.index(span) for span in (clue, pronoun) if span]
    about = {"id": f"own-{number}", "group": "own", "title": "your sentence", "item": None}
    return entry(pen, text, about, Marks(list(dict.fromkeys(asked))), goes_on=True)
