"""What changed between two models as tables, for the terminal and the page."""

from collections.abc import Iterable

from probe.questions import MAX_P
from probe.results import Change, ProbeResults
from probe.tables import aligned, number
from probe.text_tables import Table

CHANGE_LEGEND = """\
answer: how far the model's answer follows the antecedent, in nats. effect: how much of it a head moves.
attention: a head's contrast. p: paired, two-sided, corrected for all heads of the measure.
changed: p below 0.01. The intervals are not corrected."""
MOST_CHANGES = 10  # changed heads that are listed, for each measure
FEWEST_CHANGES = 4


def change_lines(results: ProbeResults, all_rows: bool) -> list[str]:
    """Return the tables of `change_tables` for a terminal."""
    remarks = [f"note: {sentence}" for sentence in [*results.missing, *results.warnings]]
    if not any(change.difference.value for change in results.changes):
        return ["both models give exactly the same numbers", *remarks]
    lines = []
    for question, table in change_tables(results, all_rows).items():
        notes = [f"  {note}" for note in table.note.splitlines()]
        lines += ["", f"{question}: {table.title}", *aligned([table.header, *table.rows]), *notes]
    return [*lines, "", CHANGE_LEGEND, *remarks]


def change_tables(results: ProbeResults, all_rows: bool) -> dict[str, Table]:
    """Return a table for each question, of all heads or the most changed ones; its note counts the changed heads.

    The question with the largest change is the first, and so is the measure in its table.
    """
    grouped: dict[str, dict[str, list[Change]]] = {}
    for change in largest_first(results.changes):
        grouped.setdefault(change.question, {}).setdefault(change.measure, []).append(change)
    tables = {}
    for question, by_measure in grouped.items():
        rows: list[list[str]] = []
        notes = []
        for measure, changes in by_measure.items():
            n_changed = sum(change.p < MAX_P for change in changes)
            n_rows = len(changes) if all_rows else max(FEWEST_CHANGES, min(n_changed, MOST_CHANGES))
            rows += map(_row, changes[:n_rows])
            counts = f"{n_changed} of {len(changes)} heads changed, {changes[0].n} cases"
            if measure == "answer":
                counts = _verdict(changes[0])
            if changes[0].smallest_p >= MAX_P:
                counts += f"; so few independent cases cannot show a change (smallest p {changes[0].smallest_p:.3f})"
            notes.append(f"{measure}: {counts}")
        header = ["", "before", "after", "difference [95 %]", "p", ""]
        tables[question] = Table(changes[0].description, header, rows, "\n".join(notes))
    return tables


def largest_first(changes: Iterable[Change]) -> list[Change]:
    """Return the established changes by their size, then the others by theirs."""
    return sorted(changes, key=lambda change: (change.p >= MAX_P, -abs(change.difference.value)))


def _row(change: Change) -> list[str]:
    label = f"  {change.measure} {change.head or ''}".rstrip()
    before, after = number(change.before), number(change.after)
    return [label, before, after, number(change.difference), f"{change.p:.4f}", _verdict(change)]


def _verdict(change: Change) -> str:
    return "changed" if change.p < MAX_P else "no change shown"
