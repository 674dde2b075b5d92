"""The questions about English text, as data: bars and words.

edge: how much of the answer goes through a head's edges to the people before it? whose: do these edges predict whom the
author means? The bars were fixed before anything was measured against them; they are our conventions.
"""

from probe.questions import MAX_P, Bar, Question

TESTED = "tested"  # passages of the documents that are not in dev
REPLACED = "replaced"  # passages with every content word replaced
UNKNOWN_TO_MODEL = "the model does not know"  # the verdict: its choice may ignore the entities

_EDGE_BARS = (
    Bar("the pronoun follows the twin", "E1", "follows", "low", "above", 0.5, "from {follows_low}"),
    Bar("corrected p below 0.01", "E2", "p", "value", "below", MAX_P, "{p}"),
    Bar("corrected p below 0.01", "E2", "t", "value", "above", 0.0),
    Bar("cutting the meant edge takes 10% of the margin", "E3", "cut_meant", "value", "at least", 0.10,
        "{cut_meant}, from {cut_meant_low}"),
    Bar("cutting the meant edge takes 10% of the margin", "E3", "cut_meant", "low", "above", 0.02),
    Bar("cutting the other edge raises it", "E3", "cut_other", "high", "below", 0.0, "up to {cut_other_high}"),
    Bar("more than a random content word's edge", "E3", "beyond_control", "low", "above", 0.0,
        "from {beyond_control_low}"),
    Bar("share exchanged of 0.2 or more", "E3", "swap", "value", "at least", 0.2, "{swap}"),
)  # fmt: skip
_WHOSE_BARS = (
    Bar("predicts the author's person beyond place", "E2", "p_beyond_place", "value", "below", MAX_P,
        "its edges may tell nothing beyond place and form: coefficient {beyond_place}, p {p_beyond_place}; needed: p "
        "below {p_beyond_place_bar}"),
    Bar("predicts the author's person beyond place", "E2", "beyond_place", "value", "above", 0.0),
    Bar("the choice depends on it", "E3", "choice_share", "value", "at least", 0.2,
        "{choice_share} of the choice is lost if the head splits its weights as where place looks alike, from "
        "{choice_share_low}; needed: {choice_share_bar}, from {choice_share_low_bar}"),
    Bar("the choice depends on it", "E3", "choice_share", "low", "above", 0.05),
)  # fmt: skip

NEXT_PRONOUN = Question(
    name="next_pronoun_gender",
    description='"she" or "he": gender',
    link='the gender of the people it attends to into the next pronoun ("she" or "he")',
    outcome="edge",
    bars=_EDGE_BARS,
    suggestive=tuple(bar.criterion for bar in _EDGE_BARS if bar.level in ("E1", "E2")),
    least_criteria=0,
    verdict_at_e0=UNKNOWN_TO_MODEL,
)
WHOSE = Question(
    name="next_pronoun_whose",
    description='"she" or "he": whose',
    link="what predicts whom the author means, beyond a fitted rule of place",
    outcome="whose",
    bars=_WHOSE_BARS,
    suggestive=(_WHOSE_BARS[0].criterion,),
    least_criteria=0,
    heads_of=NEXT_PRONOUN.name,
)
