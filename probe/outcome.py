"""The outcome of a question: how its heads are chosen, tested and edited, and the words of a finding."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from data.pairs import Cell, Items, Word
from model.observe import ObservableModel
from probe.batches import Progress
from probe.config import ProbeConfig
from probe.questions import Question
from probe.results import NOT_ESTABLISHED, SUGGESTIVE, Curve, Finding, Head, Tested, TestedModel, Values
from settings.errors import UserError
from training.metrics import HeadPoint


class CannotTestError(UserError):
    """A question cannot be tested with a model; its text says why."""


@dataclass(frozen=True)
class Job:
    """A study of one model: its items and settings, and the results so far."""

    model: ObservableModel
    untrained: Callable[[int], ObservableModel]  # seed -> an untrained model of the same shape
    items: Items
    documents: Sequence[tuple[str, str]]  # (name, text) of what passages come from
    config: ProbeConfig
    progress: Progress
    findings: list[Finding]  # the answers so far
    missing: list[str]  # why questions were not asked
    decode: Callable[[int], str]  # the text of a token


@dataclass(frozen=True)
class Measured:
    """The measures of heads together on the tested items."""

    values: Values
    exclusions: list[str] = field(default_factory=list)  # why nothing may be claimed, whatever else is measured
    instead: dict[str, str] = field(default_factory=dict)  # criteria that cannot be met, with the reason
    remarks: dict[str, str] = field(default_factory=dict)  # added to the reason of a criterion that is not met


class Case(ABC):
    """One question about one model."""

    question: Question
    least_swap = 0.0  # share that a set must swap on dev to take the place of a weaker head
    tests_every_set = True  # False: a set is tested only if its best head is not supported

    @abstractmethod
    def choose(self) -> list[Head]:
        """Return the heads that are tested: one that is chosen on dev, or those of another finding."""

    @abstractmethod
    def measure(self, heads: Sequence[Head]) -> Measured:
        """Return what `heads` do together on the tested items."""

    def grow(self, head: Tested) -> Curve:
        """Return heads of a set in the order in which they were added on dev; empty if `head` needs no others."""
        return []

    @abstractmethod
    def facts(self, judged: Tested) -> dict[str, Any]:
        """Return the other fields of the `Finding` whose verdict is about `judged`."""


class Compared(NamedTuple):
    """A measure of two models on the same cases."""

    measure: str
    heads: Sequence[Head | None]  # C; None: the whole model
    cases: Items  # N
    numbers: list[np.ndarray]  # those of each model, [N, C]


class Column(NamedTuple):
    """A column of the summary."""

    measure: str
    form: str
    has_interval: bool = False
    has_rule: bool = False  # whether it is shown with the accuracy of the best rule
    part: str = ""  # the part of the tested items that it is measured on; "": the items of the verdict


class Outcome(ABC):
    """An outcome of questions; `probe.outcomes.OUTCOMES` has all."""

    name: str  # in probe.json and in `Question`
    verbs: tuple[str, str]  # for one head, and for several: "links", "link"
    levels: dict[str, str]  # meaning of each level of evidence
    columns: dict[str, Column]  # columns of the summary, by title
    over_seeds: tuple[str, ...]  # columns of the tables over seeds: a measure, "PART MEASURE", or a rule
    legend: str  # explains the columns of the summary
    assumes = "exchanged weights leave queries, keys and values as they were, and no other head makes up for the change"

    @abstractmethod
    def problem(self, question: Question, items: Items) -> str:
        """Return why a question cannot be tested on its items; "" if it can."""

    @abstractmethod
    def cases(self, job: Job, questions: Sequence[Question]) -> Iterator[Case]:
        """Yield the case of each question that can be asked."""

    @abstractmethod
    def sentences(self, finding: Finding, model: TestedModel) -> list[str]:
        """Return the sentences of a claim that name its numbers."""

    def opening(self, finding: Finding) -> str:
        """Return the first sentence of a claim, by the verdict about the link."""
        heads = " and ".join(map(str, finding.judged.heads))
        verb, verb_of_several = self.verbs
        verdict = finding.judged.verdict
        if verdict == NOT_ESTABLISHED:
            return f"No attention head is shown to {verb_of_several} {finding.link}; the best candidate is {heads}"
        if verdict == SUGGESTIVE:
            return f"Attention head {heads} may {verb_of_several} {finding.link}"
        if finding.unit == "set":
            link = finding.link.replace("it attends", "they attend")
            return f"Attention heads {heads} together {verb_of_several} {link}"
        return f"Attention head {heads} {verb} {finding.link}"

    def what_it_needs(self, finding: Finding) -> str:
        """Return a sentence: what the answer rests on, and the control that shows it; "" if it was not measured."""
        return ""

    def what_carries(self, finding: Finding) -> str:
        """Return a sentence: which heads carry the answer, and what they read; "" if it was not measured."""
        return ""

    def targets(self, cell: Cell) -> tuple[Word, ...]:
        """Return the words on which weight at the query of a text is the link of a question, or its copy."""
        return cell.meant + cell.other  # one that copies attends to either entity

    @abstractmethod
    def limits(self, finding: Finding) -> list[str]:
        """Return what a reader might infer from a claim of this outcome and should not."""

    def differences(
        self, models: Sequence[ObservableModel], items: Items, question: Question, config: ProbeConfig
    ) -> list[Compared]:
        """Return the measures that two models are compared by; none if the heads belong to another question."""
        return []

    def point(self, model: ObservableModel, items: Items, tokens_per_batch: int) -> HeadPoint:
        """Return the point of a curve of training; FloatingPointError if a number is not finite."""
        raise NotImplementedError


def point_of(best: Head, grids: dict[str, np.ndarray], values: dict[str, float]) -> HeadPoint:
    """Return what metrics.jsonl stores, with four digits of the grids [L, H]."""
    rounded = {name: grid.astype(float).round(4).tolist() for name, grid in grids.items()}
    return HeadPoint(*best, rounded, values)
