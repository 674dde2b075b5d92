"""Results on natural text as printed lines, tables and claims."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from probe.natural import N_CONTINUATION
from probe.results import ConfirmedShift, NaturalResult, ShiftResult
from probe.verdict import NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED
from report.tables import Item, Table, estimate, number, similar_rows, table_of

_LEGEND = (
    "contrast: half the change of the log attention ratio of both entities when only the pronoun changes (0: none).",
    "pair: share of prefixes where each pronoun's own class gets more attention. p: two-sided, corrected for all heads",
    "and sites. |t|: of this head; the largest of untrained models. Heads are chosen on another half of the same text.",
)


def natural_lines(natural: NaturalResult) -> list[str]:
    """Return the table of all heads that were tested on natural text, and why questions could not be tested."""
    shifts = {}
    for question, target, shift in natural.chosen():
        shifts[f"{question}: candidate for the {target}, {_site(shift)}"] = shift
    lines = []
    if shifts:
        table = _named_table("", "natural text", shifts, {
            "head": lambda shift: str(shift.place),
            "contrast [95 %]": lambda shift: estimate(shift.contrast, shift.contrast_interval),
            "pair": lambda shift: number(shift.pair_right),
            "p": lambda shift: f"{shift.p_corrected:.4f}",
            "|t|": lambda shift: f"{abs(shift.t):.1f}, {shift.untrained_t:.1f}",
            "verdict": lambda shift: shift.verdict,
        })  # fmt: skip
        lines = [*table.lines(), "", *_LEGEND]
    return [*lines, *(f"not tested: {sentence}" for sentence in natural.missing)]


def natural_claims(natural: NaturalResult) -> list[tuple[str, str]]:
    """Return (verdict, claim) of every head that was tested on natural text, the strongest verdicts first."""
    claims = [(shift.verdict, _claim(question, target, shift)) for question, target, shift in natural.chosen()]
    return sorted(claims, key=lambda shown: (SUPPORTED, SUGGESTIVE, NOT_ESTABLISHED).index(shown[0]))


def _claim(question: str, target: str, shift: ShiftResult) -> str:
    # The claim, by the verdict
    pronouns = "“she” or “he”" if question == "gender" else "“it” or “they”"
    where = "At" if shift.site == "pronoun" else "At the word after"
    head = shift.place
    opening = {
        SUPPORTED: f"{where} {pronouns}, head {head} turns to the {target}.",
        SUGGESTIVE: f"{where} {pronouns}, head {head} may turn to the {target}.",
        NOT_ESTABLISHED: f"No head is shown to turn to the {target} at {pronouns}; the best candidate is {head}.",
    }[shift.verdict]

    # The numbers behind it
    met = [name for name, is_met in shift.criteria.items() if is_met]
    return (
        f"{opening} Contrast {estimate(shift.contrast, shift.contrast_interval)}, corrected p {shift.p_corrected:.4f}, "
        f"|t| {abs(shift.t):.1f} (untrained models: at most {shift.untrained_t:.1f}). "
        f"Criteria met: {'; '.join(met) or 'none'}."
    )


def natural_tables(natural: NaturalResult) -> list[Table]:
    """Return the tables of scores, of the causal test, of strata, and of the number of prefixes needed."""
    shifts = {f"{question}, {target}": shift for question, target, shift in natural.chosen()}
    if not shifts:
        return []
    tables = [
        _confirmed_table(natural),
        _score_table(natural, shifts),
        _edge_table(shifts),
        _similar_table(shifts),
        _strata_table(shifts),
        _needed_table(natural),
    ]
    return [table for table in tables if table.rows]


def _named_table(
    title: str, header: str, items: Mapping[str, Item], columns: Mapping[str, Callable[[Item], str]], note: str = ""
) -> Table:
    """Return the table of items whose first column is their name."""
    table = table_of(title, items.values(), columns, note)
    rows = [[name, *row] for name, row in zip(items, table.rows, strict=True)]
    return replace(table, header=[header, *table.header], rows=rows)


def _site(shift: ShiftResult | ConfirmedShift) -> str:
    return shift.site.replace("_", " ")


def _place(shift: ShiftResult | ConfirmedShift) -> str:
    return f"{shift.place}, {_site(shift)}"


def _confirmed_table(natural: NaturalResult) -> Table:
    confirmed = {}
    for question, result in natural.questions.items():
        for target, test in result.confirmed.items():
            confirmed[f"{question}, {target}"] = test
    title = "Heads chosen on the run's own validation text, tested here"
    return _named_table(title, "question, target", confirmed, {
        "head, site": _place,
        "prefixes": lambda test: f"{test.n:,}",
        "contrast [95 %]": lambda test: estimate(test.contrast, test.contrast_interval),
        "p": lambda test: number(test.p),
        "t": lambda test: number(test.t),
        "largest |t| untrained": lambda test: number(test.untrained_t),
    }, "On all prefixes; one two-sided test for each head, so p is not corrected.")  # fmt: skip


def _score_table(natural: NaturalResult, shifts: Mapping[str, ShiftResult]) -> Table:
    # Numbers of prefixes, for the note
    counts = []
    for question, result in natural.questions.items():
        prefixes = f"{result.n_prefixes:,} prefixes of {result.n_documents:,} documents or sections"
        counts.append(f"{question}: {prefixes}, {result.n_tested:,} of them tested")
    return _named_table("Natural text", "question, target", shifts, {
        "head, site": _place,
        "contrast [95 %]": lambda shift: estimate(shift.contrast, shift.contrast_interval),
        "weighted by value norm": lambda shift: estimate(shift.value_contrast, shift.value_contrast_interval),
        "pair": lambda shift: estimate(shift.pair_right, shift.pair_right_interval),
        "right": lambda shift: estimate(shift.right, shift.right_interval),
        "p": lambda shift: f"{shift.p_corrected:.4f}",
        "t": lambda shift: number(shift.t),
        "largest |t| untrained": lambda shift: number(shift.untrained_t),
        "verdict": lambda shift: shift.verdict,
    }, f"{'; '.join(counts)}. {' '.join(_LEGEND)}")  # fmt: skip


def _edge_table(shifts: Mapping[str, ShiftResult]) -> Table:
    rows = []
    for name, shift in shifts.items():
        cut = shift.causal
        if cut is not None:
            weights_and_rises = map(number, (cut.mass, cut.rise, cut.matched_mass, cut.matched_rise))
            difference = estimate(cut.difference, cut.difference_interval)
            rows.append([name, _place(shift), f"{cut.n:,}", *weights_and_rises, difference])
    header = ("question, target", "head, site", "prefixes", "weight on the target", "rise, target cut",
              "weight on another word", "rise, other word cut", "difference [95 %]")  # fmt: skip
    note = (
        f"Loss of the next {N_CONTINUATION} real tokens in nats per token after the edge is cut. The other word is no "
        "mention and has the most similar weight."
    )
    return Table("Natural text: what the edge does", header, rows, note)


def _similar_table(shifts: Mapping[str, ShiftResult]) -> Table:
    return _named_table("Natural text: correlated heads", "question, target", shifts, {
        "head, site": _place,
        "other heads, r": lambda shift: ", ".join(map(" ".join, similar_rows(shift.similar))),
    }, "Correlation of the contrasts over the tested prefixes, at the same site.")  # fmt: skip


def _strata_table(shifts: Mapping[str, ShiftResult]) -> Table:
    rows = []
    names: list[str] = []  # the same for all heads
    for name, shift in shifts.items():
        names = list(shift.strata)
        rows.append([name, *(f"{number(part.contrast)} ({part.n:,})" for part in shift.strata.values())])
    header = ["question, target", *(f"{name}: contrast (prefixes)" for name in names)]
    return Table("Natural text: earlier pronouns", header, rows, "Between the first mention and the pronoun.")


def _needed_table(natural: NaturalResult) -> Table:
    rows = []
    for question, result in natural.questions.items():
        for point in result.items_needed:
            rows.append([question, f"{point.n:,}", f"{point.same:.2f}", number(point.p)])
    header = ("question", "prefixes", "same head", "median p")
    note = "Random parts of the prefixes: how often they choose the head that all prefixes choose."
    return Table("Natural text: prefixes needed", header, rows, note)
