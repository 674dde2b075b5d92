"""The results of a probe: the content of probe.json, which `probe_model` returns as `results`.

Fields are the keys of the file, in their order. A grid is by layer and head, [L][H]. A value that could not be measured
is missing, or nan within an `Estimate`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data.pairs import Cell
from probe.config import ProbeConfig
from settings.errors import UserError
from settings.typed_json import flattened, from_json, may_be_absent, to_json

SCHEMA_VERSION = 21  # the version of probe.json; raise it with every change of a field
Grid = list[list[float]]  # a value of every head, [L][H]
SUPPORTED = "supported"
CARRIED = "carried"  # by heads that are not shown to look at the antecedent
SUGGESTIVE = "suggestive"
NOT_ESTABLISHED = "not established"
MIN_CARRIED = 0.5  # of the answer, the lower end of the interval; registered in research/preregistration.md,
MAX_SAME_ANSWER = 0.15  # as this bar of its control
NO_BAR = "1 or more, with so few frames or words"  # no accuracy is above it


class Head(NamedTuple):
    """The place of a head. As text: L1H0."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True)
class Estimate:
    """A measured value and its 95 % bootstrap interval, if it has one (`probe.statistics`)."""

    value: float
    low: float | None = None
    high: float | None = None


NOT_KNOWN = Estimate(float("nan"), float("nan"), float("nan"))


def show(value: float | None) -> str:
    """Return a number as sentences have it: three decimals without zeros at the end, two digits of a small one."""
    if value is None:
        return "unknown"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}".rstrip("0").rstrip(".")


def percent(estimate: Estimate) -> str:
    """Return "98.8 % [96.1, 100.0]", without the interval if it is not known."""
    text = f"{100 * estimate.value:.1f} %"
    if estimate.low is None or estimate.high is None or estimate.low != estimate.low:
        return text
    return f"{text} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


Values = dict[str, Estimate]  # by the names of MEASURES
Curve = list[tuple[Head, float, Estimate]]  # heads added one by one, with their joint swap on dev and tested


def best_of(rules: Mapping[str, float]) -> str:
    """Return the rule of highest accuracy."""
    return max(rules, key=lambda name: rules[name])


class Measure(NamedTuple):
    """The name of a number about a head or a model, and how to read it."""

    label: str
    meaning: str
    form: str = ".3f"
    is_share: bool = False  # between 0 and 1


# Every number of a finding, by its name in `values`, `rules`, `untrained` and `parts`.
MEASURES = {
    "accuracy": Measure("accuracy", "the antecedent gets most attention; by chance .5, 1/3 of three", is_share=True),
    "pair_accuracy": Measure("pair accuracy", "right in both texts of a pair", is_share=True),
    "block_accuracy": Measure("block accuracy", "right in all four texts of a block", is_share=True),
    "contrast": Measure("contrast", "half the change of the log attention ratio within a pair"),
    "beyond_control_text": Measure("beyond the control", "contrast minus that in the texts without the link"),
    "bar": Measure("bar", "accuracy of the best head that luck exceeds in 1 of 20 models", is_share=True),
    "lead": Measure("lead", "accuracy minus that of the best rule"),
    "p_pair_accuracy": Measure("p of the pair accuracy", "corrected for all heads; doubled for a set", ".4f", True),
    "p_contrast": Measure("p of the contrast", "corrected for all heads; doubled for a set", ".4f", True),
    "selectivity": Measure("selectivity", "accuracy minus that of the best head for random labels; .5 for a link head"),
    "link_share": Measure("strong weights on the link", "of all weights of .3 or more, see Elsewhere", is_share=True),
    "mass": Measure("weight on mentions", "attention on all mentions together", is_share=True),
    "swap": Measure("attention swap", "share of the answer that changes sides if the weights on both do; 1: all"),
    "swap_25": Measure("a quarter exchanged", "as the attention swap, with a quarter of the weights"),
    "swap_50": Measure("half exchanged", "as the attention swap, with half of the weights"),
    "swap_75": Measure("three quarters exchanged", "as the attention swap, with three quarters of the weights"),
    "carries": Measure("carries", "share of the answer that follows if outputs at the query change places in a pair"),
    "keeps": Measure("keeps", "share of the answer that stays if the outputs of all other heads change places"),
    "same_answer": Measure("same answer", "control of carries: the output is of another text with the same answer; 0"),
    "chosen_again": Measure("chosen again", "in resampled sets of the items for choosing", is_share=True),
    "cut_meant": Measure("edge to the antecedent cut", "share of the answer lost"),
    "cut_other": Measure("edge to the other one cut", "share of the answer lost; negative: the answer gets surer"),
    "specificity": Measure("edge specificity", "loss from cutting the edge to the antecedent minus the other edge"),
    "zero": Measure("no output", "share of the answer lost without the head; later layers may compensate"),
    "answer": Measure("answer", "half the change of the answer's margin within a pair, in nats"),
    "answer_accuracy": Measure("accuracy of the answers", "the model prefers the right answers", is_share=True),
    "answer_shuffled": Measure("right, words shuffled", "all words before the query in random order", is_share=True),
    "resolved_share": Measure("resolved share", "known words; 0: what decides is ignored, 1: optimal"),
    "follows": Measure("follows the entity", "the answer changes with the class of one entity", is_share=True),
    "edge_effect": Measure("edge effect", "what the edges to both entities move the margin to their sides, in nats"),
    "beyond_control": Measure("beyond a content word", "share lost, minus that by cutting a content word's edge"),
    "flips": Measure("flips", "share of texts whose more probable word changes with the swap", is_share=True),
    "author": Measure("author's entity", "the model picks whom the author means", is_share=True),
    "author_where_nearest_wrong": Measure("where nearest is wrong", "the same there", is_share=True),
    "beyond_place": Measure("beyond place", "log odds that the nearest is meant, for each sd of the edges' part"),
    "p_beyond_place": Measure("p beyond place", "the author's choice permuted where place says the same", ".4f", True),
    "form": Measure("content words replaced", "beyond place, with other content words in the passage"),
    "p_form": Measure("p, content words replaced", "as p beyond place", ".4f", True),
    "words": Measure("beyond form", "the same for what the true words change of the edges, given the replaced"),
    "p_words": Measure("p beyond form", "as p beyond place", ".4f", True),
    "choice_share": Measure("share of the choice", "lost if the head splits its weights as where place looks alike"),
    "looks": Measure("looks at the author's person", "more than at the other person", is_share=True),
    "looks_where_unsure": Measure("the same where place is unsure", "the rule says .25 to .75", is_share=True),
    "author_auc": Measure("AUC of the choice", "the decision ranks whom the author means; .5: chance", is_share=True),
    "passages": Measure("passages", "tested", ".0f"),
    "t": Measure("t", "studentised mean of the tested effect", ".1f"),
    "p": Measure("p", "corrected for all tested heads; doubled for a set", ".4f", True),
}  # fmt: skip

# The antecedent by each simple rule, by its name in `rules`.
RULES = {
    "nearest": "the nearest mention",
    "first": "the first mention",
    "subject": "the grammatical subject",
    "uniform": "a mention by chance",
    "most frequent": "the word that was meant most often where heads are chosen",
    "fixed offset": "the mention at the usual distance",
    "last words": "the word that most often follows the last words",
    "place rule": "fitted on the places of the mentions",
}


@dataclass(frozen=True)
class Criterion:
    """A criterion of the verdict: the measured numbers, the bars, and the outcome."""

    name: str
    level: str  # the first level of evidence that needs it; "" if only "supported" does
    measured: dict[str, float | None]
    bars: dict[str, str]  # by the names in `measured`: "above 0.2"
    outcome: str  # "met", "not met" or "not measured"
    reason: str  # why it is not met; empty if it is

    @property
    def label(self) -> str:
        """The criterion in words; "pronoun_flip" is of the first questions, in which the pronoun decides."""
        return "follows what decides" if self.name == "pronoun_flip" else self.name.replace("_", " ")

    @property
    def passed(self) -> bool:
        return self.outcome == "met"


@dataclass(frozen=True)
class Tested:
    """The measures of one head, or of several together, on the tested items, and the verdict about them."""

    heads: list[Head]
    values: Values
    criteria: list[Criterion] = field(default_factory=list)
    verdict: str = ""
    level: str = ""
    reasons: list[str] = field(default_factory=list)

    __test__ = False  # its name looks like a test of pytest

    def value(self, name: str) -> float:
        """Return a measured value, nan if it was not measured."""
        return self.values.get(name, NOT_KNOWN).value


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A text with a head's weights on its mentions and the most probable next words, to look at."""

    kind: str  # "worked": written as an example; "median": from the median block; "typical": a passage
    text: str
    query: int  # token position
    word: str  # at the query
    meant: list[list[int]] = field(default_factory=list)  # token positions of each mention
    other: list[list[int]] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)  # by mention
    next: list[tuple[str, float]] = field(default_factory=list)
    exchanged: list[tuple[str, float]] = field(default_factory=list)  # weights exchanged

    @classmethod
    def of(cls, kind: str, text: str, cell: Cell, **shown: Any) -> "Shown":
        """Return a text with the query and the mentions of its cell."""
        meant = list(map(list, cell.meant))
        other = list(map(list, cell.other))
        return cls(kind=kind, text=text, query=cell.query, word="", meant=meant, other=other, **shown)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Scores of the chosen head on one part of the tested items, with those of rules and of the model's answers."""

    n: int
    values: Values
    rules: dict[str, float]  # accuracy by rule


class Read(NamedTuple):
    """A word that a head has weight on at the query."""

    word: str  # "the antecedent", "the other mention", or a word in quotation marks
    weight: float  # mean over the texts
    lost: float  # share of the answer without this edge


class Feed(NamedTuple):
    """An earlier head and the place at which it makes what later heads pass on."""

    head: Head
    place: str  # one of `probe.carry.PLACES`
    share: Estimate  # of the answer, lost through the later heads without it


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """The heads whose outputs at the query carry the answer, wherever they look (`probe.carry`)."""

    heads: list[Head]
    values: Values  # all of them together
    each: list[Estimate]  # what each carries alone
    reads: list[list[Read]]  # the words that each reads, that of the largest loss first
    feeds: list[Feed]  # the largest first

    @property
    def passes(self) -> bool:
        """Whether half of the answer follows, and it stays if another text has the same; a missing control passes."""
        moved = abs(self.values.get("same_answer", NOT_KNOWN).value)
        return (self.values["carries"].low or 0.0) >= MIN_CARRIED and not moved > MAX_SAME_ANSWER


class Place(NamedTuple):
    """A strong weight of a head in running text."""

    head: Head
    weight: float
    word: str  # that attends
    on: str  # that it attends to
    text: str  # around them, with brackets around both
    link: str  # the question whose link it is, or ""


@dataclass(frozen=True)
class Elsewhere:
    """What the judged heads do in running text (`probe.elsewhere`)."""

    texts: str  # which were read
    n_texts: int
    n_tokens: int
    n_strong: int  # weights of .3 or more, but those on the start token and of a token on itself
    n_link: int  # strong weights that are the link of the question
    n_queries: int  # texts with such a link
    places: list[Place]  # the ten strongest, each of another pair of words


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer to one question: the chosen head, its measures, and the verdict."""

    question: str
    description: str
    link: str  # the link or copy of a head: "a pronoun to its antecedent"
    outcome: str  # a name of `probe.outcomes.OUTCOMES`
    unit: str  # the subject of the verdict: the chosen "head", or the "set"
    head: Tested
    set: Tested | None = None  # two heads or more that were added one by one
    curve: Curve = field(default_factory=list)
    n: int  # tested texts, or passages
    clusters: dict[str, int]  # how many different ones
    left_out: dict[str, int] = field(default_factory=dict)
    smallest_p: float  # that is possible with so few clusters
    untrained: Values = field(default_factory=dict)  # mean and range
    rules: dict[str, float] = field(default_factory=dict)  # accuracy of simple rules
    grids: dict[str, Grid] = field(default_factory=dict)  # every head; nan where not tested
    parts: dict[str, Part] = field(default_factory=dict)  # the head on each part of the items
    examples: list[Shown] = field(default_factory=list)
    carrier: Carrier | None = None
    elsewhere: Elsewhere | None = None
    notes: list[str] = field(default_factory=list)
    file: str | None = may_be_absent()  # file of a question of the user's own

    @property
    def place(self) -> Head:
        return self.head.heads[0]

    @property
    def judged(self) -> Tested:
        """The subject of the verdict: the head, or the set of heads."""
        return self.set if self.unit == "set" and self.set else self.head

    @property
    def verdict(self) -> str:
        """The verdict about the link; where none is supported, `CARRIED` if heads that carry the answer are known."""
        is_carried = self.carrier is not None and self.carrier.passes
        return CARRIED if is_carried and self.judged.verdict != SUPPORTED else self.judged.verdict

    @property
    def level(self) -> str:
        return self.judged.level

    @property
    def best_rule_sentence(self) -> str:
        return f"the best rule ({best_of(self.rules)}) is right in {100 * max(self.rules.values()):.1f} %"

    def examples_of(self, kind: str) -> list[Shown]:
        return [shown for shown in self.examples if shown.kind == kind]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A number in two models on the same items, and the paired test of its difference (`extras.compare.difference`)."""

    question: str
    description: str  # the question in words
    measure: str  # "answer", "effect" or "attention"
    head: Head | None  # None: the whole model
    before: float  # mean, in nats
    after: float
    difference: Estimate
    t: float
    p: float  # two-sided, corrected for all heads of this measure
    n: int  # cases
    smallest_p: float  # that is possible with so few clusters


@dataclass(frozen=True)
class TestedModel:
    """Which model was tested."""

    run: str  # the directory of the run; the folder or hub name of an external model
    step: int
    trained_on: str | None  # None: not known
    shape: dict[str, Any] = flattened()  # settings of the model, or the facts about an external one

    __test__ = False  # its name looks like a test of pytest

    @property
    def is_external(self) -> bool:
        """Whether another program trained the model, so that its training data are unknown."""
        return "source" in self.shape


@dataclass(frozen=True, kw_only=True)
class ProbeResults:
    """The content of probe.json, and of comparison.json, which has `before` and `changes`."""

    schema_version: int = SCHEMA_VERSION
    model: TestedModel
    before: TestedModel | None = may_be_absent()
    settings: ProbeConfig
    data: dict[str, Any]  # fingerprint, and of the stories generator_version
    environment: dict[str, Any] = field(default_factory=dict, compare=False)  # versions, machine, commit, date, command
    warnings: list[str]
    missing: list[str] = field(default_factory=list)  # why a question was not asked
    findings: list[Finding] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    contract: dict[str, float] = field(default_factory=dict)  # see `probe.contract`

    def finding(self, question: str) -> Finding | None:
        """Return the finding of a question, None if it was not tested."""
        for finding in self.findings:
            if finding.question == question:
                return finding
        return None

    @classmethod
    def from_json(cls, value: Any, where: str = "probe.json") -> "ProbeResults":
        """Return the content of a file as `ProbeResults`; UserError names the field that is missing or wrong."""
        if not isinstance(value, dict) or not isinstance(value.get("findings"), list):
            raise UserError(f"{where}: not the results of a probe, or of an older version; run eval.py again")
        if value.get("schema_version") != SCHEMA_VERSION:
            raise UserError(f"{where}: version {value.get('schema_version')} instead of {SCHEMA_VERSION}")
        results: ProbeResults = from_json(cls, value, where)
        return results

    def rounded(self) -> "ProbeResults":
        """Return the results as the file has them, so that nothing is shown that the file does not say."""
        return ProbeResults.from_json(to_json(self))
