"""What others have scored on the same files: published figures, each with its source.

A figure of a model trained on thousands of times more text is no baseline: it says where the test ends.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anchor:
    """One published figure."""

    name: str  # of what was scored
    share: float  # right, 0 to 1
    source: str  # author, year, table or file


_BLIMP = "Warstadt et al. 2020, BLiMP, raw_results/summary/models_summary.jsonl"
_HUMAN = "Warstadt et al. 2020, BLiMP, raw_results/summary/human_validation_summary.csv"
_ZORRO = "Huebner et al. 2021, Zorro"
# Paradigm: 5-gram, LSTM, Transformer-XL, GPT-2, people; full sentences, 1,000 pairs each.
_PARADIGMS = {
    "anaphor_gender_agreement": (0.439, 0.882, 0.912, 0.994, 0.96),
    "anaphor_number_agreement": (0.519, 0.952, 0.970, 0.992, 0.99),
    "principle_A_c_command": (0.578, 0.588, 0.608, 0.737, 0.86),
    "principle_A_case_1": (1.0, 1.0, 1.0, 1.0, 0.98),
    "principle_A_case_2": (0.489, 0.873, 0.953, 0.948, 0.96),
    "principle_A_domain_1": (0.952, 0.983, 0.991, 0.984, 0.95),
    "principle_A_domain_2": (0.564, 0.683, 0.697, 0.775, 0.75),
    "principle_A_domain_3": (0.522, 0.552, 0.600, 0.754, 0.829),
    "principle_A_reconstruction": (0.404, 0.464, 0.379, 0.468, 0.78),
}
_READERS = ("5-gram", "LSTM", "Transformer-XL", "GPT-2", "people")


def anchors_of(name: str) -> tuple[Anchor, ...]:
    """Return what is published of a file of minimal pairs, by its name without ending; () where nothing is known."""
    if name in _PARADIGMS:
        shares = zip(_READERS, _PARADIGMS[name], strict=True)
        return tuple(Anchor(who, share, _HUMAN if who == "people" else _BLIMP) for who, share in shares)
    if name == "anaphor_agreement-pronoun_gender":
        return (Anchor("RoBERTa-base", 0.910, _ZORRO),)
    return ()


# 8,896 pronouns of all 100 novels, the mention nearest to each that is no pronoun itself.
LINKS = (Anchor("nearest nominal mention, all 100 novels", 0.349, "counted in LitBank, Bamman et al. 2020"),)
