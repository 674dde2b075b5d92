"""What a probe found out: the content of probe.json, and `results` of what `probe_model` returns.

Fields are the keys of the file, in their order. Scores are means over items; an `..._interval` is a 95 % bootstrap
interval (`probe.statistics`); a grid is by layer and head, [L][H]. A value that could not be measured is None, or nan
within an estimate.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data.errors import UserError
from data.typed_json import flattened, from_json, may_be_absent, to_json
from probe.config import ProbeConfig
from probe.items import HEADLINE, OwnWords

SCHEMA_VERSION = 13  # the version of probe.json; raise it with every change of a field
Interval = tuple[float, float]
Grid = list[list[float]]  # a value of every head, [L][H]


class Head(NamedTuple):
    """The place of a head. As text: L1H0."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Clusters:
    """How many different ones the blocks of stories have."""

    frames: int
    first_words: int
    second_words: int
    pairs: int


@dataclass(frozen=True, slots=True)
class SimilarHead:
    """Another head, and the correlation of its scores with those of the tested head."""

    layer: int
    head: int
    r: float

    @property
    def place(self) -> Head:
        return Head(self.layer, self.head)


# Stories and own texts: does a head attend more to the antecedent than to the distractor?


@dataclass(frozen=True, slots=True)
class DevScores:
    """Scores of a head on the items that it was chosen on."""

    accuracy: float
    block_accuracy: float
    pronoun_contrast: float


@dataclass(frozen=True, slots=True)
class RuleScores:
    """Scores of a rule that does not know the model."""

    accuracy: float
    pair_accuracy: float
    block_accuracy: float


@dataclass(frozen=True, slots=True)
class BestBaseline:
    """The most accurate rule that reads no agreement."""

    name: str
    accuracy: float
    difference_interval: Interval  # the head's accuracy minus the rule's


@dataclass(frozen=True, slots=True)
class UntrainedScores:
    """The heads that untrained models of the same shape choose on dev; mean and range over the models."""

    n_models: int
    accuracy: float
    accuracy_interval: Interval
    accuracy_range: Interval
    block_accuracy: float
    block_accuracy_range: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldoutResult:
    """Scores of the chosen head on one hold-out."""

    n_items: int
    clusters: Clusters
    accuracy: float  # antecedent above every distractor; .5 by chance
    accuracy_interval: Interval
    pair_accuracy: float  # right with either pronoun
    pair_accuracy_interval: Interval
    block_accuracy: float  # right in all four texts of a block
    block_accuracy_interval: Interval
    pronoun_contrast: float  # half the change of the log attention ratio with the pronoun
    pronoun_contrast_interval: Interval
    strict_accuracy: float  # antecedent above every other token but the first
    strict_accuracy_interval: Interval
    baselines: dict[str, RuleScores]  # by rule
    best_baseline: BestBaseline
    chance_level: float  # 95th percentile of the best head's accuracy by chance
    accuracy_flipped: float  # on items whose antecedent is the second mention
    value_weighted_contrast: float  # the pronoun contrast of weights times lengths of values; no interval
    p_pair_accuracy: float  # pair_accuracy above 1/2, corrected for all heads
    p_pronoun_contrast: float  # pronoun_contrast above 0, corrected for all heads
    p_corrected: float  # the larger of these two
    smallest_p: float  # that is possible with so few clusters
    untrained: UntrainedScores | None = may_be_absent()  # only on the headline


@dataclass(frozen=True, slots=True)
class HeadTable:
    """Scores and corrected p of every head on the headline, [L][H]."""

    accuracy: Grid
    block_accuracy: Grid
    pronoun_contrast: Grid
    p_pair_accuracy: Grid
    p_pronoun_contrast: Grid


@dataclass(frozen=True, slots=True)
class ShownSentence:
    """A sentence with its query and mentions, as token positions."""

    text: str
    query: int
    antecedents: list[list[int]]
    distractors: list[list[int]]


@dataclass(frozen=True, slots=True)
class MedianBlock:
    """The block of median contrast, so that the example shown is no better than half of all."""

    holdout: str
    block: int
    pronoun_contrast: float
    n_blocks: int
    sentences: list[ShownSentence]


@dataclass(frozen=True, slots=True)
class HeadType:
    """Mean weights on random tokens that repeat once: is it a head of another known type?"""

    previous: float
    first: float
    duplicate: float
    induction: float


@dataclass(frozen=True, slots=True)
class MentionMass:
    """Weight on all mentions at a pronoun with and without an antecedent."""

    linked: float
    unlinked: float | None


@dataclass(frozen=True, slots=True)
class ControlHeads:
    """Attention swap of other heads of the layer."""

    heads: list[int]
    attention_swap: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalResult:
    """Effects of edits of one head, as shares of the change of the answer between partners (`probe.causal`).

    They are None if the answer does not change.
    """

    n_pairs: int
    n_dropped: int
    n_frames: int
    controls: ControlHeads | None
    attention_swap: float | None
    edge_ablation: float | None
    distractor_edge_ablation: float | None
    edge_specificity: float | None
    head_effect: float | None
    zero_ablation: float | None
    denoising_patch: float | None
    attention_swap_interval: Interval | None
    edge_ablation_interval: Interval | None
    distractor_edge_ablation_interval: Interval | None
    edge_specificity_interval: Interval | None
    head_effect_interval: Interval | None
    zero_ablation_interval: Interval | None
    denoising_patch_interval: Interval | None
    margin: float
    margin_interval: Interval
    answer_difference: float
    answer_difference_interval: Interval


@dataclass(frozen=True, slots=True)
class SetStep:
    """A head that was added to a set, and the joint attention swap with it."""

    layer: int
    head: int
    dev: float
    test: float


@dataclass(frozen=True, slots=True)
class Criterion:
    """One of the five criteria of "supported"."""

    name: str
    measured: dict[str, float | None]
    bars: dict[str, float]  # by the names in `measured`
    passed: bool
    outcome: str  # "met", "not met" or "not measured"
    reason: str  # why it is not met; empty if it is


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScores:
    """What the heads of a set do together on the headline: their attention weights are added.

    Fields as in `HoldoutResult` and `QuestionResult`. The p are corrected as if the set were one more head, and
    doubled, because the set is tested after the head.
    """

    accuracy: float
    accuracy_interval: Interval
    block_accuracy: float
    block_accuracy_interval: Interval
    pronoun_contrast: float
    pronoun_contrast_interval: Interval
    lead_interval: Interval  # accuracy minus that of the best baseline
    p_pair_accuracy: float
    p_pronoun_contrast: float
    p_corrected: float
    smallest_p: float
    selectivity: float
    unlinked_share: float | None  # weight on mentions without an antecedent, relative to with one: the worst head's
    edge_specificity: float  # all edges to the antecedent cut, minus all edges to the distractor cut
    edge_specificity_interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSet:
    """Heads that decide the answer together, added one by one (`probe.head_sets`)."""

    heads: list[Head]
    reached: bool
    all_heads_dev: float  # joint attention swap of all heads on dev, in a large model of 16 candidates
    attention_swap: float
    attention_swap_interval: Interval
    curve: list[SetStep]
    # Filled only if the chosen head is not supported and the set has two heads or more.
    scores: SetScores | None = None
    verdict: str = ""
    evidence_level: str = ""
    reasons: list[str] = field(default_factory=list)
    criteria: list[Criterion] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WeightsResult:
    """Do the head's value and output matrices raise the right answers? .5 by chance."""

    ov_auc: float | None
    ov_auc_interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionResult:
    """The head chosen for one question of the stories or of the user's own, and its tests."""

    question: str
    family: str
    site: str
    layer: int
    head: int
    dev: DevScores
    test: dict[str, HoldoutResult]  # by hold-out
    heads: HeadTable
    similar: list[SimilarHead]
    median: MedianBlock
    selectivity: float
    head_type: HeadType
    mass: MentionMass
    causal: CausalResult | None
    head_set: HeadSet | None
    weights: WeightsResult
    unit: str  # what the verdict is about: "head", the chosen one, or "set", if heads share the work
    verdict: str
    evidence_level: str
    reasons: list[str]
    criteria: list[Criterion]
    own: OwnWords | None = may_be_absent()  # the words of a question of the user's own

    @property
    def place(self) -> Head:
        """The chosen head."""
        return Head(self.layer, self.head)

    @property
    def _judged_set(self) -> HeadSet | None:
        return self.head_set if self.unit == "set" else None

    @property
    def judged_heads(self) -> list[Head]:
        """The heads that the verdict is about: the chosen one, or those of the set."""
        return self._judged_set.heads if self._judged_set else [self.place]

    @property
    def judged_scores(self) -> "HoldoutResult | SetScores":
        """The headline scores of these heads."""
        return (self._judged_set and self._judged_set.scores) or self.headline

    @property
    def judged_swap(self) -> float | None:
        """Their attention swap; None without a causal test."""
        if self._judged_set:
            return self._judged_set.attention_swap
        return None if self.causal is None else self.causal.attention_swap

    @property
    def headline(self) -> HoldoutResult:
        """The scores that the verdict is about."""
        return self.test[HEADLINE]


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaviourResult:
    """The model's answers at the payoffs of one group of items (`probe.behaviour`)."""

    family: str
    level: str
    site: str
    holdout: str
    n: int
    clusters: Clusters
    accuracy: float
    interval: Interval
    resolved_share: float | None
    loss: float
    bayes_loss: float | None
    blind_loss: float | None


@dataclass(frozen=True, slots=True)
class ShowcaseExample:
    """A worked example: a head's weights on both nouns, and the most probable next words."""

    text: str
    query: str
    antecedent: str
    distractor: str
    weights: dict[str, float]
    next: list[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class ContractResult:
    """Largest violations found by `probe.contract`, and accuracies at sites where nothing is decided yet."""

    head_output: float
    query_rows: float
    row_sum: float
    future_weight: float
    logits: float
    future_logits: float
    undecided: dict[str, float]


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """Entropy of attention and asymmetry of the scores, [L][H]."""

    entropy: Grid
    score_asymmetry: Grid | None


# The next pronoun: which head decides between "she" and "he"?


@dataclass(frozen=True, slots=True)
class LevelCriterion:
    """A criterion of an evidence level: the measured value, and whether it is enough."""

    name: str
    level: str  # the first level that needs it
    is_met: bool
    measured: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """What some heads do together on the tested half."""

    heads: list[Head]
    edge_effect: Estimate  # nats, signed
    p: float  # for the edge effect: corrected for all tested heads, or doubled for a set of heads
    t: float
    meant_cut: Estimate  # share of the margin lost when the edge to the meant entity is cut
    other_cut: Estimate  # the same for the other entity; negative: the margin rises
    content_cut: Estimate  # share lost by cutting the meant edge minus that of a random content word's edge
    share: Estimate  # share of the margin that changes sides when the weights on both entities change places
    flips: Estimate  # share of texts whose more probable pronoun changes with them
    verdict: str
    evidence_level: str
    criteria: list[LevelCriterion]


@dataclass(frozen=True, slots=True)
class PassageExample:
    """A tested passage, with the probabilities of both pronouns before and after the weights change places."""

    text: str
    forms: tuple[str, str]
    entities: tuple[str, str]  # the last mention of each class
    weights: tuple[float, float]  # attention of the head to the mentions of each class
    clean: tuple[float, float]  # probability of either pronoun
    exchanged: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Whom the model picks in passages with two entities."""

    stratum: str  # which passages
    n: int
    author: Estimate  # share of passages in which the model picks the entity of the author's pronoun
    nearest: float  # the same for the rule that takes the last mention
    n_wrong: int  # passages in which that rule is wrong
    author_where_wrong: Estimate  # nan without any


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPronounResult:
    """The answer to one question: which head decides the next pronoun."""

    question: str
    site: str
    layer: int
    head: int
    verdict: str  # for the head, or for the set if only that is supported
    evidence_level: str
    unit: str  # "head" or "set": what the verdict is about
    p_corrected: float
    n: int  # tested passages
    n_one: int
    n_two: int
    n_documents: int
    n_entities: tuple[int, int]  # different entities of each class in the tested passages
    effective_clusters: tuple[float, float, float]  # 1 / sum of squared shares: documents, entities of each class
    follows_twin: Estimate  # passages with one entity whose margin follows the twin
    right_in_both: float  # share in which the more probable pronoun is right in passage and twin
    head_share_of_one: Estimate  # share of the margin of one entity, lost when the head's edge to it is cut
    interchanged: Estimate  # share of that margin, moved when the head's output is that of the twin
    choices: list[Choice]
    author_accuracy: Estimate  # passages with two: the model picks the person of the author's pronoun
    nearest_accuracy: float
    rules: dict[str, float]
    author_where_nearest_is_wrong: Estimate
    n_nearest_is_wrong: int
    weight_correlation: float  # between the head's difference of attention and the model's margin, over texts of two
    chosen: SetResult
    head_set: SetResult | None  # two heads or more: the smallest set that exchanges enough, or the last one
    set_reaches: bool  # it exchanges enough on the choosing half; only then the verdict can be that of the set
    curve: list[tuple[Head, float, Estimate]]  # heads added one by one: the head, share on either half
    untrained_t: list[float]
    candidates: list[tuple[Head, float, float, float]]  # head, edge effect, t, p on the tested half
    left_out: dict[str, dict[str, int]]
    examples: list[PassageExample]

    @property
    def place(self) -> Head:
        """The chosen head."""
        return Head(self.layer, self.head)

    @property
    def judged(self) -> SetResult:
        """What the verdict is about: the head, or the set of heads."""
        return self.head_set if self.unit == "set" and self.head_set else self.chosen

    @property
    def name(self) -> str:
        """The question without "next_pronoun_"."""
        return self.question.removeprefix(NEXT_PRONOUN)

    def entry(self) -> dict[str, Any]:
        """Return the entry of probe.json's `selected`: the values that most readers need, then all `details`."""
        chosen = self.judged
        named = "question site layer head verdict evidence_level unit p_corrected n nearest_accuracy".split()
        entry: dict[str, Any] = {name: getattr(self, name) for name in named}
        estimates = {
            "share": chosen.share,
            "flips": chosen.flips,
            "follows_twin": self.follows_twin,
            "author_accuracy": self.author_accuracy,
        }
        for name, estimate in estimates.items():
            entry[name] = estimate.value
            entry[f"{name}_interval"] = [estimate.low, estimate.high]
        entry["head_set"] = self.head_set
        entry["details"] = self
        return entry


NEXT_PRONOUN = "next_pronoun_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What a head or a set that was chosen on another text does in this one: one test, without a correction."""

    question: str
    heads: list[Head]
    n: int
    edge_effect: Estimate  # nats, signed
    t: float
    p: float
    meant_cut: Estimate  # nats of the margin lost when the edge to the meant entity is cut
    other_cut: Estimate  # the same for the other entity; negative: the margin rises
    picks_meant: Estimate  # passages in which the model prefers the pronoun of the meant entity


# The whole


@dataclass(frozen=True, slots=True)
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

    def fact(self, name: str) -> Any:
        """Return a setting or fact of the model, None if it has none of this name."""
        return self.shape.get(name)


@dataclass(frozen=True, slots=True)
class Leakage:
    """Links of the test stories, and how many of them are in the training stories."""

    links: int
    leaked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedData:
    """The corpus behind the items; the last two are known of the stories."""

    generator_version: int | None = may_be_absent()
    fingerprint: str
    leakage: Leakage | None = may_be_absent()

    __test__ = False  # its name looks like a test of pytest


@dataclass(frozen=True, kw_only=True)
class ProbeResults:
    """The content of probe.json."""

    schema_version: int
    model: TestedModel
    settings: ProbeConfig
    warnings: list[str]
    contract: ContractResult | None = may_be_absent()
    attention: AttentionResult | None = may_be_absent()
    behaviour: list[BehaviourResult] = field(default_factory=list)
    selected: list[QuestionResult] = field(default_factory=list)
    showcase: dict[str, list[ShowcaseExample]] = field(default_factory=dict)
    data: TestedData
    next_pronoun: list[NextPronounResult] = field(default_factory=list)  # the first of `selected` in the file
    missing: list[str] = field(default_factory=list)  # why a question about the next pronoun was not tested

    def question(self, name: str) -> QuestionResult | None:
        """Return the result of a question of the stories or of the user's own, None if it was not tested."""
        return next((result for result in self.selected if result.question == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return the content of probe.json."""
        written = to_json(self)
        first = [to_json(result.entry()) for result in self.next_pronoun]
        written["selected"] = first + written["selected"]
        del written["next_pronoun"]
        return written

    @classmethod
    def from_json(cls, value: Any, where: str = "probe.json") -> "ProbeResults":
        """Return the content of a file as `ProbeResults`; UserError names the field that is missing or wrong."""
        if not isinstance(value, dict) or not isinstance(value.get("selected"), list):
            raise UserError(f"{where}: not the results of a probe")
        if value.get("schema_version") != SCHEMA_VERSION:
            raise UserError(f"{where}: version {value.get('schema_version')} instead of {SCHEMA_VERSION}")
        next_pronoun = []
        selected = []
        for entry in value["selected"]:
            is_next = isinstance(entry, dict) and str(entry.get("question")).startswith(NEXT_PRONOUN)
            if is_next:
                next_pronoun.append(entry.get("details"))
            else:
                selected.append(entry)
        results: ProbeResults = from_json(cls, value | {"selected": selected, "next_pronoun": next_pronoun}, where)
        for result in results.selected:
            if HEADLINE not in result.test:
                raise UserError(f"{where}: question {result.question}: no hold-out {HEADLINE}")
        return results

    def rounded(self) -> "ProbeResults":
        """Return the results as the file has them, so that nothing is shown that the file does not say."""
        return ProbeResults.from_json(self.to_json())
