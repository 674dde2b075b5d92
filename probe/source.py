"""A source of questions, and of their items in the tokens of a model."""

from dataclasses import dataclass, field
from typing import Any

from data.pairs import Items
from probe.elsewhere import RunningTexts
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
    running: RunningTexts
    documents: list[tuple[str, str]] = field(default_factory=list)  # name and text, of English text
    warnings: list[str] = field(default_factory=list)


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
