"""Results on natural text as printed lines, tables and claims."""

from collections.abc import Mapping
from typing import Any

from probe.natural import N_CONTINUATION
from probe.verdict import NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED
from report.tables import Table, aligned, estimate, number, similar_rows

_LEGEND = (
    "contrast: half the change of the log attention ratio of both entities when only the pronoun changes (0: none).",
    "pair: share of prefixes where each pronoun's own class gets more attention. p: two-sided, corrected for all heads",
    "and sites. |t|: of this head; the largest of untrained models. Heads are chosen on another half of the same text.",
)


def natural_lines(natural: Mapping[str, Any]) -> list[str]:
    """Returns the table of all heads that were tested on natural text, and why questions could not be tested."""
    rows = [
        (
            f"{question}: candidate for the {target}, {entry['site'].replace('_', ' ')}",
            f"L{entry['layer']}H{entry['head']}",
            estimate(entry["contrast"], entry["contrast_interval"]),
            number(entry["pair_right"]),
            f"{entry['p_corrected']:.4f}",
            f"{abs(entry['t']):.1f}, {entry['untrained_t']:.1f}",
            entry["verdict"],
        )
        for question, target, entry in _entries(natural)
    ]
    header = ("natural text", "head", "contrast [95 %]", "pair", "p", "|t|", "verdict")
    lines = [*aligned([header, *rows]), "", *_LEGEND] if rows else []
    return [*lines, *(f"not tested: {sentence}" for sentence in natural["missing"])]


def _entries(natural: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    return [
        (question, target, entry)
        for question, result in natural["questions"].items()
        for target, entry in result["chosen"].items()
    ]


def _place(entry: Mapping[str, Any]) -> str:
    return f"L{entry['layer']}H{entry['head']}, {entry['site'].replace('_', ' ')}"


def natural_claims(natural: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (verdict, claim) of every head that was tested on natural text, the strongest verdicts first."""
    claims = []
    for question, target, entry in _entries(natural):
        head = f"L{entry['layer']}H{entry['head']}"
        pronouns = "“she” or “he”" if question == "gender" else "“it” or “they”"
        where = "At" if entry["site"] == "pronoun" else "At the word after"
        opening = {
            SUPPORTED: f"{where} {pronouns}, head {head} turns to the {target}.",
            SUGGESTIVE: f"{where} {pronouns}, head {head} may turn to the {target}.",
            NOT_ESTABLISHED: f"No head is shown to turn to the {target} at {pronouns}; the best candidate is {head}.",
        }[entry["verdict"]]
        met = [name for name, is_met in entry["criteria"].items() if is_met]
        claims.append((
            entry["verdict"],
            f"{opening} Contrast {estimate(entry['contrast'], entry['contrast_interval'])}, corrected p "
            f"{entry['p_corrected']:.4f}, |t| {abs(entry['t']):.1f} (untrained models: at most "
            f"{entry['untrained_t']:.1f}). Criteria met: {'; '.join(met) or 'none'}.",
        ))  # fmt: skip
    return sorted(claims, key=lambda shown: (SUPPORTED, SUGGESTIVE, NOT_ESTABLISHED).index(shown[0]))


def natural_tables(natural: Mapping[str, Any]) -> list[Table]:
    """Returns the tables of scores, of the causal test, of strata, and of the number of prefixes needed."""
    entries = [(f"{question}, {target}", _place(entry), entry) for question, target, entry in _entries(natural)]
    if not entries:
        return []
    scores = [
        (name, place, *(estimate(entry[score], entry[f"{score}_interval"])
                        for score in ("contrast", "value_contrast", "pair_right", "right")),
         f"{entry['p_corrected']:.4f}", number(entry["t"]), number(entry["untrained_t"]), entry["verdict"])
        for name, place, entry in entries
    ]  # fmt: skip
    counts = [
        f"{question}: {result['n_prefixes']:,} prefixes of {result['n_documents']:,} documents or sections, "
        f"{result['n_tested']:,} of them tested"
        for question, result in natural["questions"].items()
    ]
    causal = [
        (name, place, f"{test['n']:,}", number(test["mass"]), number(test["rise"]), number(test["matched_mass"]),
         number(test["matched_rise"]), estimate(test["difference"], test["difference_interval"]))
        for name, place, entry in entries if (test := entry["causal"])
    ]  # fmt: skip
    strata = [
        (name, *(f"{number(stratum['contrast'])} ({stratum['n']:,})" for stratum in entry["strata"].values()))
        for name, _, entry in entries
    ]
    needed = [
        (question, f"{point['n']:,}", f"{point['same']:.2f}", number(point["p"]))
        for question, result in natural["questions"].items() for point in result["items_needed"]
    ]  # fmt: skip
    similar = [(name, place, ", ".join(map(" ".join, similar_rows(entry)))) for name, place, entry in entries]
    header = ("question, target", "head, site", "contrast [95 %]", "weighted by value norm", "pair",
              "right", "p", "t", "largest |t| untrained", "verdict")  # fmt: skip
    edge = ("question, target", "head, site", "prefixes", "weight on the target", "rise, target cut",
            "weight on another word", "rise, other word cut", "difference [95 %]")  # fmt: skip
    strata_header = ("question, target", *(f"{name}: contrast (prefixes)" for name in entries[0][2]["strata"]))
    cut = (
        f"Loss of the next {N_CONTINUATION} real tokens in nats per token after the edge is cut. The other word is no "
        "mention and has the most similar weight."
    )
    confirmed = [
        (f"{question}, {target}", _place(test), f"{test['n']:,}",
         estimate(test["contrast"], test["contrast_interval"]), number(test["p"]), number(test["t"]),
         number(test["untrained_t"]))
        for question, result in natural["questions"].items() for target, test in result["confirmed"].items()
    ]  # fmt: skip
    chosen = ("question, target", "head, site", "prefixes", "contrast [95 %]", "p", "t", "largest |t| untrained")
    tables = [
        Table("Heads chosen on the run's own validation text, tested here", chosen, confirmed,
              "On all prefixes; one two-sided test for each head, so p is not corrected."),
        Table("Natural text", header, scores, f"{'; '.join(counts)}. {' '.join(_LEGEND)}"),
        Table("Natural text: what the edge does", edge, causal, cut),
        Table("Natural text: correlated heads", ("question, target", "head, site", "other heads, r"), similar,
              "Correlation of the contrasts over the tested prefixes, at the same site."),
        Table("Natural text: earlier pronouns", strata_header, strata, "Between the first mention and the pronoun."),
        Table("Natural text: prefixes needed", ("question", "prefixes", "same head", "median p"), needed,
              "Random parts of the prefixes: how often they choose the head that all prefixes choose."),
    ]  # fmt: skip
    return [table for table in tables if table.rows]
