"""A source of questions, and of their items in the tokens of a model."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from data.pairs import Items
from probe.elsewhere import Running
from probe.opened_model import OpenedModel
from probe.questions import Question
from settings.errors import UserError

UNKNOWN_TRAINING = "The training data of this model is unknown, so it may have seen these sentences."


@dataclass(frozen=True)
class Source:
    """Questions for a model, and their items in its tokens."""

    name: str  # the name of the text or file, and of its results folder; "": the model's own questions
    questions: list[Question]
    items: Items
    data: dict[str, Any]  # for probe.json
    documents: list[tuple[str, str]] = field(default_factory=list)  # name and text, of English text
    warnings: list[str] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)  # in which it is seen what heads do elsewhere


def running_texts(opened: OpenedModel, items: Items, texts: Iterable[str] = ()) -> list[Running]:
    """Return the texts of pairs, each once, with their links, then `texts` without any; cut to what a model reads."""
    found: dict[tuple[int, ...], Running] = {}
    limit = opened.model.context_length
    for pair in items.pairs:
        # The counterpart of a passage is not the author's.
        for text, cell in list(zip(pair.texts, pair.cells, strict=True))[: 2 if items.has_blocks else 1]:
            tokens = opened.encode(text)[:limit]
            found[tokens] = Running(tokens, pair.question, cell)
    for text in texts:
        tokens = opened.encode(text)[:limit]
        found.setdefault(tokens, Running(tokens))
    return list(found.values())


def check_items(opened: OpenedModel, items: Items) -> list[str]:
    """Return warnings about texts in the tokens of a model; UserError if it cannot read them."""
    n_tokens = n_unknown = n_lost = largest = longest = 0
    for cell in items.cells:
        n_tokens += len(cell.tokens)
        n_unknown += cell.tokens.count(opened.unknown)
        n_lost += cell.has_lost_answer
        largest = max(largest, *cell.tokens, *cell.answers, *cell.foils, *cell.more_foils)
        longest = max(longest, 1 + len(cell.tokens))
    limit = opened.model.context_length
    if longest > limit:
        raise UserError(f"model={opened.source}: reads {limit} tokens, but the sentences need {longest}")
    if largest >= opened.model.vocab_size:
        raise UserError(f"model={opened.source}: its tokenizer writes token {largest}, which the model lacks")

    warnings = []
    if n_unknown:
        warnings.append(f"Its tokenizer replaces {n_unknown / n_tokens:.1%} of the tokens by unknown.")
    if n_lost:
        problem = "both answers begin with the same tokens, so the model's answer is not tested there"
        warnings.append(f"In {n_lost:,} of {len(items.cells):,} texts {problem}.")
    return warnings
