"""How questions are answered: choose a head on dev, test it once on other items, edit it, and judge it.

    items        pairs of texts (`data.pairs`), in parts that share no document or word
    choose       a head on dev, by its attention or by the effect of its edges
    test         all heads on the other part, corrected for the search, and compared with untrained models
    edit         the chosen head, and heads that were added one by one (`probe.edits`)
    judge        by bars that were fixed in advance (`probe.questions`, `probe.verdict`)

`probe.attention_study` and `probe.edge_study` do this for the two outcomes of a question; `probe.whose` asks of a head
that copies whose gender it copies.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from data.errors import UserError
from data.pairs import Items, LinkedText, link_pairs
from data.passages import Passage, Reader, passage_items, passage_parts, with_two
from data.place import PlaceRule, redrawn
from data.tokenizer import encode_text
from model.observe import ObservableModel
from probe.attention import HeadScores
from probe.attention_study import study_attention
from probe.batches import Progress
from probe.config import ProbeConfig
from probe.edge_study import problem_of, study_edges
from probe.questions import CHECKED_PART, DEV, HEADLINE, NEXT_PRONOUN, SAME_WORDS, TESTED, WHOSE, Question
from probe.results import Finding
from probe.verdict import SUPPORTED
from probe.whose import study_whose

MAX_PASSAGES = (300, 300)  # with one entity and with two; the others are left out at random
MAX_PASSAGES_LARGE = (40, 150)  # for a model of more than MANY_HEADS heads, which is slow
MANY_HEADS = 128
MAX_WHOSE = (2000, 150)  # passages with two people and new names, for a model with few and with many heads


@dataclass(frozen=True)
class Study:
    """Everything that was found out about a model; fields as in `ProbeResults`."""

    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    contract: dict[str, float] = field(default_factory=dict)
    scores: HeadScores | None = None  # every head at every pair, by attention


def study(
    model: ObservableModel,
    untrained: Callable[[int], ObservableModel],
    items: Items,
    questions: Sequence[Question],
    config: ProbeConfig,
    documents: Sequence[tuple[str, str]] = (),
    progress: Progress = lambda stage, share: None,
) -> Study:
    """Ask all of the `questions` that have items, with `model` in float32.

    `untrained` makes a model of the same shape from a seed; one is in memory at a time. `documents`, (name, text) each,
    are what passages come from.
    """
    seeds = range(config.seed, config.seed + config.n_untrained)
    chosen, missing = askable(questions, items)
    by_attention = [question for question in chosen if question.outcome == "attention"]
    result = Study(missing=missing)

    # By attention every head is measured once for all questions; by edges each question has passages of its own.
    if by_attention:
        models = map(untrained, seeds)
        findings, scores, contract = study_attention(model, models, items, by_attention, config, progress)
        result = Study(findings, missing, contract, scores)
    for question in chosen:
        if question.outcome == "edge":
            models = map(untrained, seeds)
            try:
                finding = study_edges(model, models, items, documents, question, config, progress)
                result.findings.append(finding)
            except UserError as problem:
                missing.append(str(problem))
        elif question.outcome == "whose":
            for finding in [each for each in result.findings if each.question == question.heads_of]:
                if finding.verdict == SUPPORTED:
                    progress("whose gender it copies", 0.9)
                    result.findings.append(study_whose(model, items, finding, question, config))
    return result


def askable(questions: Sequence[Question], items: Items) -> tuple[list[Question], list[str]]:
    """Return the questions that can be asked, and why others cannot; attention questions are left out without a reason.

    By attention a question needs pairs on dev and on the headline: with few frames it may lack some.
    """
    chosen = []
    missing = []
    for question in questions:
        problem = problem_of(question, items) if question.outcome == "edge" else ""
        if problem:
            missing.append(problem)
        elif question.outcome != "attention" or {DEV, HEADLINE} <= set(items.parts(question.name)):
            chosen.append(question)
    return chosen, missing


def story_items(dev: Iterable[LinkedText], test: Iterable[LinkedText], reader: tuple[Tokenizer, int]) -> Items:
    """Return the pairs of stories that a study needs: of dev those with the words of training, and all of test."""
    known = [text for text in dev if text.holdout == SAME_WORDS]
    of_dev = link_pairs(known, *reader).where(lambda pair: pair.question not in CHECKED_PART)
    of_test = link_pairs(test, *reader).where(lambda pair: CHECKED_PART.get(pair.question, pair.part) == pair.part)
    return of_dev.named(DEV) + of_test


def passages_of(
    model: ObservableModel,
    reader: tuple[Tokenizer, int],
    passages: Sequence[Passage],
    config: ProbeConfig,
) -> Items:
    """Return passages in the tokens of a model, in two parts; `reader` is its tokenizer and start token."""
    limits = MAX_PASSAGES if model.n_layer * model.n_head <= MANY_HEADS else MAX_PASSAGES_LARGE
    return passage_parts(passages, NEXT_PRONOUN.name, Reader(*reader, model.context_length), config.seed, limits)


def whose_passages_of(
    model: ObservableModel,
    reader: tuple[Tokenizer, int],
    passages: Sequence[Passage],
    rule: PlaceRule,
    config: ProbeConfig,
) -> Items:
    """Return the passages with two entities, their log odds of the place rule, and names drawn anew."""
    tokenizer, bos_id = reader
    limit = MAX_WHOSE[model.n_layer * model.n_head > MANY_HEADS]
    if not with_two(passages):
        return Items([])
    drawn = redrawn(with_two(passages), rule, lambda word: len(encode_text(tokenizer, f" {word}").ids), config.seed)
    of_model = Reader(tokenizer, bos_id, model.context_length)
    items = passage_items(drawn, WHOSE.name, of_model, config.seed, limit, has_two=True, max_share=1.0)
    return items.named(TESTED)
