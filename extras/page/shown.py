"""The content of the page: the fields are the keys of its JSON."""

from dataclasses import dataclass, field
from typing import Any

from probe.results import Head
from probe.text_tables import Table
from training.metrics import WeightHistory


@dataclass(frozen=True)
class LiveTokenizer:
    """A tokenizer that the page's script can run."""

    kind: str  # "words", "characters" or "bpe"
    vocabulary: list[str]  # by id
    merges: list[str]  # of "bpe": "left right", in the order in which they were learned; with `space` their ids
    start: int  # the token before every text
    unknown: int | None
    # The character of a "bpe" for a space, and before a text, which it reads whole; a byte: "<0xE2>". None: GPT-2's
    space: str | None = None


@dataclass(frozen=True, kw_only=True)
class LiveTraining:
    """The stories and settings with which the page trains a new model."""

    stories: (
        str  # base64 of gzip of the tokens, uint16; each story begins with the start token, which also ends the last
    )
    n_stories: int
    tokens_per_batch: int
    max_steps: int
    seed: int
    optim: dict[str, Any]
    questions: list[dict[str, Any]]  # the sentences on which its heads are watched, and the clusters of their blocks
    floor: float  # the lower bound of the loss
    file: str  # base64 of gzip of a JSON: config.json and tokenizer.json of the run, for the file that a reader saves


@dataclass(frozen=True, kw_only=True)
class LiveModel:
    """A model that the page's script runs."""

    source: str  # the run's directory, for the Python that the page shows
    step: int
    shape: dict[str, Any]  # the settings of the model
    parameters: list[tuple[str, int]]  # name and size, in the order of the weights
    type: str  # number format of the weights: "float32" or "float16"
    weights: str  # base64
    earlier: WeightHistory
    tokenizer: LiveTokenizer
    text: str  # the sentence that the page begins with
    verb_groups: list[dict[str, list[str]]]  # "words", and the "verbs" that only they have; empty: not of stories
    chosen_tokenizer: str | None = None  # that the user named for a model of another program
    english: str = ""  # a page in the same folder whose model knows more words; "": none
    before: str = ""  # the run whose weights are `earlier`, in the page of a comparison
    training: LiveTraining | None = None  # with which the page trains a new model


@dataclass(frozen=True)
class Live:
    """The live model, or the reason why the page has none."""

    model: LiveModel | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class PageModel:
    """Name, shape, training and provenance of a model."""

    name: str
    step: str
    facts: str
    n_layer: int
    n_head: int
    environment: dict[str, Any]
    commands: list[str]  # that make the page again


@dataclass(frozen=True, kw_only=True)
class PageFinding:
    """A finding, and what the page says about it."""

    question: str
    description: str
    verdict: str
    heads: str  # that the verdict is about
    place: Head  # the chosen head
    claim: str
    tables: list[Table]
    does_not_show: list[str]
    reasons: list[str]  # why no more is claimed
    carriers: list[Head] = field(default_factory=list)  # that carry the answer at the query
    feeds: list[tuple[Head, str, float]] = field(
        default_factory=list
    )  # what feeds them: head, place, share of the answer


@dataclass(frozen=True, kw_only=True)
class PageSentence:
    """A sentence with the attention of every head; words are indices into `words`."""

    id: str  # group and number, for the address: report.html#yours-1
    text: str
    words: list[str]
    query: int | None  # heads are read at this word; None: the last one
    next: list[tuple[str, float]]  # the most probable next tokens
    # Ten-thousandths, [L][H][n]: all rows, row r up to word r; [] without attention. In a page with a live model: []
    weights: list[list[list[int]]]


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """Everything that the page shows."""

    run: PageModel
    heading: str
    notes: list[str]
    findings: list[PageFinding]
    sentences: list[PageSentence]
    omissions: list[str]  # parts that are left out for their size
    live: Live
