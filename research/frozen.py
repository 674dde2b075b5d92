"""Compare the numbers of a file that commit 165ac91 wrote with those of today's program on the same run.

    python -m research.frozen OLD.json NEW.json

Either two probe.json, two comparison.json or two seeds.json. Prints each difference and the number of values compared;
the exit status is 1 if there is one. A question that only the old file has is named and is no difference.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any

_Compared = tuple[str, Any, Any]  # place in the old file ("causal.attention_swap.low"), old value, new value


def _names(text: str) -> dict[str, str]:
    """Return today's names by the old ones, from "old=new same"."""
    names = {}
    for word in text.split():
        old, _, new = word.partition("=")
        names[old] = new or old
    return names


# In places, * stands for every key or index, and all that is below a place goes along.
_SCORES = _names("""accuracy block_accuracy pair_accuracy pronoun_contrast=contrast chance_level=bar
    p_pair_accuracy p_pronoun_contrast=p_contrast
    p_corrected=p best_baseline.difference=lead lead selectivity unlinked_share""")
_EDITS = _names("""attention_swap=swap edge_ablation=cut_meant distractor_edge_ablation=cut_other
    edge_specificity=specificity zero_ablation=zero denoising_patch=restored
    answer_difference=answer""")
_EDGES = _names("""edge_effect p t meant_cut=cut_meant other_cut=cut_other content_cut=beyond_control share=swap
    flips""")
_ANSWERS = _names("""follows_twin=follows author_accuracy=author
    author_where_nearest_is_wrong=author_where_nearest_wrong""")
_TESTED = _names("verdict evidence_level=level criteria.*.outcome")
_TOLERANCE = (3e-6, 3e-5)  # relative: the files have six digits; absolute, in nats: float32


def _moved(places: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    return {f"{old}{name}": f"{new}{place}" for name, place in places.items()}


def _of_links(unit: str) -> dict[str, str]:
    """Return today's places by the old ones, of a head that was chosen by its attention; the verdict is on `unit`."""
    return {
        **_moved(_SCORES, "test.*.", "parts.*.values."),
        **_moved(_SCORES | _EDITS, "head_set.scores.", "set.values."),
        **_moved(_EDITS, "causal.", "head.values."),
        **_moved(_TESTED | _names("reasons"), "", f"{unit}."),
        **_moved(_names("layer=0.0 head=0.1 dev=1 test=2"), "head_set.curve.*.", "curve.*."),
        **_moved(_names("n_items=n baselines.*.accuracy=rules.*"), "test.*.", "parts.*."),
        **_moved(_names("accuracy block_accuracy"), "test.headline.untrained.", "untrained."),
        **_names("""test.headline.smallest_p=smallest_p unit
            selectivity=head.values.selectivity unlinked_share=head.values.unlinked_share
            mass.linked=head.values.mass weights.ov_auc=head.values.ov_auc
            layer=head.heads.0.0 head=head.heads.0.1
            heads.pronoun_contrast=grids.contrast"""),
    }


def _of_edges() -> dict[str, str]:
    """Return today's places by the old ones, of a head that decides the next word."""
    tested = _moved(_EDGES, "", "values.") | _TESTED | _names("heads")
    return {
        **_moved(tested, "chosen.", "head."),
        **_moved(tested, "head_set.", "set."),
        **_moved(_ANSWERS, "", "head.values."),
        **_names("""n unit rules curve untrained candidates.*.*.1=grids.edge_effect.*.*
            candidates.*.*.2=grids.t.*.* candidates.*.*.3=grids.p.*.*"""),
    }


def _of_seeds() -> dict[str, str]:
    """Return today's places by the old ones, of a question over seeds."""
    places = _names("n n_supported share heads.*.verdict=verdicts.* heads.*.evidence_level=levels.*")
    places |= {"heads.*.heads": "heads.*"}
    for old, new in _names("accuracy block_accuracy pronoun_contrast=contrast").items():
        places |= {f"heads.*.{old}": f"values.{new}.by_run.*", f"scores.{old}": f"values.{new}"}
    return places


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every single value with its place; NAME_interval and NAME_range are the limits of NAME."""
    if not isinstance(value, Mapping | list):
        yield place.removesuffix(".value"), value
        return
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        name, _, kind = str(key).rpartition("_")
        start = f"{place}." if place else ""
        # Limits have places of their own
        if kind in ("interval", "range") and item:
            low, high = item
            yield f"{start}{name}.low", low
            yield f"{start}{name}.high", high
        elif key == "is_met":
            yield f"{start}outcome", "met" if item else "not met"
        else:
            yield from _leaves(item, f"{start}{key}")


def _prepared(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an old result with what today's file has in another form."""
    details = entry.get("details") or {}
    if "chosen" in details:
        candidates: dict[str, dict[str, Any]] = {}
        for row in details["candidates"]:
            candidates.setdefault(row[0][0], {})[row[0][1]] = row
        untrained = {"low": min(details["untrained_t"]), "high": max(details["untrained_t"])}
        return {**details, "candidates": candidates, "untrained": {"t": untrained}}
    for scores in entry["test"].values():
        scores["baselines"].pop("agreement sieve", None)  # a rule that was deleted
        (scores.get("untrained") or {}).pop("accuracy_interval", None)  # there is a range
    mass = entry["mass"]
    share = None if mass["unlinked"] is None else mass["unlinked"] / mass["linked"]
    return {**entry, "unlinked_share": share}


def _both(old: Any, new: Any, places: Mapping[str, str], name: str = "") -> list[_Compared]:
    """Return the values of every place that both files have."""
    new_values = dict(_leaves(new))
    values = []
    for place, value in _leaves(old):
        for pattern, target in places.items():
            match = re.fullmatch(re.escape(pattern).replace(r"\*", r"([^.]*)") + r"(\..*)?", place)
            if match and value is not None:
                *stars, below = match.groups(default="")
                new_place = target.replace("*", "{}").format(*stars) + below
                values.append((f"{name}{place}", value, new_values.get(new_place)))
    return values


def compared(old: Any, new: Any) -> tuple[list[_Compared], list[str]]:
    """Return the values of both files by their old place, and the questions that only the old file has."""
    # Runs of a sweep
    if "seeds" in old:
        old_rows = _keyed(old["questions"], "question")
        return _both(old_rows, _keyed(new["questions"], "question"), _moved(_of_seeds(), "*.", "*.")), []

    # Two models
    if "selected" not in old:
        changes = []
        for question in old["questions"]:
            changes += [{**change, "question": question["question"]} for change in question["changes"]]
        names = ("question", "measure", "head")
        places = _moved(_names("before after difference t p n smallest_p"), "*.", "*.")
        return _both(_keyed(changes, *names), _keyed(new["changes"], *names), places), []

    # The heads of one model
    findings = _keyed(new["findings"], "question")
    entries = _keyed([entry for entry in old["selected"] if entry.get("details") or entry["test"]], "question")
    values = []
    for name in entries.keys() & findings.keys():
        finding = findings[name]
        places = _of_edges() if finding["outcome"] == "edge" else _of_links(finding["unit"])
        values += _both(_prepared(entries[name]), finding, places, f"{name}: ")

    # The answers of the model
    groups = []
    for group in old["behaviour"]:
        if group["site"] in ("pronoun", "cue"):
            groups.append({**group, "accuracy_interval": group["interval"]})
    answers: dict[str, Any] = {}
    for name, finding in findings.items():
        answers |= {f"{name} {part}": found["values"] for part, found in finding["parts"].items()}
    places = _moved(_names("accuracy=answer_accuracy resolved_share"), "*.", "*.")
    values += _both(_keyed(groups, "level", "holdout"), answers, places)
    return values, sorted(entries.keys() - findings.keys())


def _keyed(rows: Sequence[Mapping[str, Any]], *names: str) -> dict[str, Any]:
    keyed = {}
    for row in rows:
        keyed[" ".join(str(row[name]) for name in names)] = row
    return keyed


def is_close(old: Any, new: Any) -> bool:
    """Return whether two values are the same but for rounding."""
    if isinstance(old, float) and isinstance(new, float | int):
        return isclose(old, new, rel_tol=_TOLERANCE[0], abs_tol=_TOLERANCE[1])
    return bool(old == new)


def main(paths: Sequence[str]) -> int:
    """Print the differences of two files; return 1 if there are any, 2 without two files."""
    if len(paths) != 2:
        print(__doc__)
        return 2
    values, gone = compared(*(json.loads(Path(path).read_text()) for path in paths))
    different = [(place, old, new) for place, old, new in values if not is_close(old, new)]
    for place, old, new in sorted(different):
        print(f"{place}\n  old {old}\n  new {new}")
    for question in gone:
        print(f"{question}: only in the old file")
    print(f"{len(values)} values compared, {len(different)} differ")
    return 1 if different or not values else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
