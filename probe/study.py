"""How questions are answered: choose a head on dev, test it once on other items, edit it, and judge it.

    items        pairs of texts (`data.pairs`), in parts that share no document or word
    choose       a head on dev
    test         all heads on the other part, corrected for the search, and compared with untrained models
    edit         the chosen head, and heads that were added one by one (`probe.edits`)
    judge        by bars that were fixed in advance (`probe.questions`, `probe.verdict`)

What a question's outcome decides of this is in `probe.outcomes`, one file each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data.pairs import Items
from model.observe import ObservableModel
from probe.batches import Progress
from probe.config import ProbeConfig
from probe.contract import check_contract
from probe.outcome import CannotTestError, Case, Job
from probe.outcomes import OUTCOMES
from probe.questions import DEV, Question
from probe.results import SUPPORTED, Curve, Finding, Tested
from probe.verdict import judged


@dataclass(frozen=True)
class Study:
    """Everything that was found out about a model; fields as in `ProbeResults`."""

    findings: list[Finding]
    missing: list[str]
    contract: dict[str, float]


def study(
    model: ObservableModel,
    untrained: Callable[[int], ObservableModel],
    items: Items,
    questions: Sequence[Question],
    config: ProbeConfig,
    documents: Sequence[tuple[str, str]] = (),
    progress: Progress = lambda stage, share: None,
    decode: Callable[[int], str] = str,
) -> Study:
    """Ask all of the `questions` that have items, with `model` in float32.

    `untrained` makes a model of the same shape from a seed; one is in memory at a time. `documents`, (name, text) each,
    are what passages come from; `decode` gives the text of a token. UserError if the recorded attention is not the
    attention that the model uses.
    """
    chosen, missing = askable(questions, items)
    findings: list[Finding] = []
    if not chosen:
        return Study(findings, missing, {})
    contract = check_contract(model, items.where(lambda pair: pair.part != DEV).cells)
    job = Job(model, untrained, items, documents, config, progress, findings, missing, decode)
    for name, outcome in OUTCOMES.items():
        for case in outcome.cases(job, [question for question in chosen if question.outcome == name]):
            try:
                findings.append(answer(case))
            except CannotTestError as problem:
                missing.append(str(problem))
    return Study(findings, missing, contract)


def askable(questions: Sequence[Question], items: Items) -> tuple[list[Question], list[str]]:
    """Return the questions that can be asked, and why others cannot."""
    problems = {question: OUTCOMES[question.outcome].problem(question, items) for question in questions}
    return [question for question in questions if not problems[question]], list(filter(None, problems.values()))


def answer(case: Case) -> Finding:
    """Return the answer to one question."""
    heads = case.choose()
    head = judged(heads, case.measure(heads), case.question)

    # Heads may share the work, so that none is supported alone: they are added, tested together, and judged.
    curve = case.grow(head)
    added = [step[0] for step in curve]
    together = None
    if len(heads) > 1:
        together = head
    elif len(added) > 1 and (case.tests_every_set or head.verdict != SUPPORTED):
        together = judged(added, case.measure(added), case.question)
    about = _judged(head, together, curve, case.least_swap)
    question = case.question
    return Finding(
        question=question.name,
        description=question.description,
        link=question.link,
        outcome=question.outcome,
        unit="set" if about is together else "head",
        head=head,
        set=together,
        curve=curve,
        file=question.file,
        **case.facts(about),
    )


def _judged(head: Tested, together: Tested | None, curve: Curve, least_swap: float) -> Tested:
    """Return what the verdict is about: a supported set that swaps enough on dev takes the place of a weaker head."""
    if together is None or together.verdict != SUPPORTED or head.verdict == SUPPORTED:
        return head
    swap_on_dev = curve[-1][1]
    return together if swap_on_dev >= least_swap else head
