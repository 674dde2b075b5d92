"""The results on the next pronoun as printed lines, tables and claims; `entry` is one of probe.json's `selected`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probe.next_pronoun import LEVELS, UNKNOWN_TO_MODEL
from probe.verdict import NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED
from report.tables import Table, aligned, estimate, number

WORDS = {"next_pronoun_gender": ('"she" or "he"', "person"), "next_pronoun_number": ('"it" or "they"', "thing")}
LEGEND = (
    "Read at the word before the pronoun. share: how much of the decision changes sides when the head's attention to",
    "the two people is exchanged. flips: in how many texts the more probable pronoun changes. author's person: how",
    "often the model picks whom the text means (nearest: a rule that takes the last one named). p: corrected for all",
    "heads. E1: the pronoun follows the people. E2: cutting the head's edges moves it. E3: the head decides it.",
)
_LONGEST_EXAMPLE = 75  # characters of a passage on the terminal


def is_next_pronoun(entry: Mapping[str, Any]) -> bool:
    """Returns whether an entry of probe.json's `selected` is about the next pronoun."""
    return str(entry["question"]).startswith("next_pronoun")


def next_pronoun_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the table of all questions about the next pronoun and one real passage of each; none without entries."""
    if not entries:
        return []
    header = ("next pronoun, natural text", "head", "share [95 %]", "flips", "author's person", "p", "verdict")
    lines = [*aligned([header, *map(_row, entries)])]
    for entry in entries:
        lines += _example_lines(entry)
        lines += [f"  {line}" for line in [*_unmet(entry), *_after_lines(entry)]]
    return [*lines, "", *LEGEND]


def confirmation_lines(confirmed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the table of heads that were chosen on the run's own validation text; none without any."""
    if not confirmed:
        return []
    header = ("next pronoun, head chosen on the run's own text", "head", "passages", "edge effect, nats [95 %]",
              "meant edge cut", "other edge cut", "p")  # fmt: skip
    rows = [
        (
            WORDS[test["question"]][0],
            " + ".join(f"L{layer}H{head}" for layer, head in test["heads"]),
            f"{test['n']:,}",
            *(_of(test[name]) for name in ("edge_effect", "meant_cut", "other_cut")),
            f"{test['p']:.4f}",
        )
        for test in confirmed
    ]
    return [*aligned([header, *rows]), ""]


def heads_of(entry: Mapping[str, Any]) -> str:
    """Returns the heads that the verdict is about."""
    if entry["unit"] == "set":
        return " + ".join(f"L{layer}H{head}" for layer, head in entry["head_set"]["heads"])
    return f"L{entry['layer']}H{entry['head']}"


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    words = WORDS[entry["question"]][0]
    return (
        f"{words}: {entry['question'].removeprefix('next_pronoun_')}",
        heads_of(entry),
        _short(entry["share"], entry["share_interval"]),
        f"{entry['flips']:.2f}",
        f"{entry['author_accuracy']:.2f} (nearest {entry['nearest_accuracy']:.2f})",
        f"{entry['p_corrected']:.4f}",
        f"{entry['verdict']} ({entry['evidence_level']})",
    )


def _short(value: float | None, interval: Sequence[float | None]) -> str:
    if value is None or None in interval:
        return "–"
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _unmet(entry: Mapping[str, Any]) -> list[str]:
    """Returns the criteria that are not met, of the lowest level that has one."""
    unmet = [criterion for criterion in _judged(entry)["criteria"] if not criterion["is_met"]]
    unmet = [criterion for criterion in unmet if criterion["level"] == unmet[0]["level"]]  # the next level is further
    return [f"not met: {criterion['name']} ({criterion['measured']})" for criterion in unmet]


def _judged(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the part of an entry that its verdict is about: the head, or the set of heads."""
    judged: Mapping[str, Any] = entry["head_set"] if entry["unit"] == "set" else entry["details"]["chosen"]
    return judged


def _example_lines(entry: Mapping[str, Any]) -> list[str]:
    """Returns the most typical passage: weights on both entities, both pronouns before and after the exchange."""
    lines = []
    for example in entry["details"]["examples"][:1]:
        text = " ".join(example["text"].split())
        shown = text if len(text) <= _LONGEST_EXAMPLE else f"… {text[-_LONGEST_EXAMPLE:]}"
        pairs = list(zip(example["entities"], example["weights"], strict=True))
        attends = ", ".join(f"{name} {weight:.2f}" for name, weight in sorted(pairs, key=lambda pair: -pair[1]))
        before, after = (
            ", ".join(f"{form} {chance:.2f}" for form, chance in zip(example["forms"], chances, strict=True))
            for chances in (example["clean"], example["exchanged"])
        )
        head = f"L{entry['layer']}H{entry['head']}"
        lines += [f"  {shown} ___", f"    {head} → {attends}    next: {before}    weights exchanged: {after}"]
    return lines


def _after_lines(entry: Mapping[str, Any]) -> list[str]:
    """Returns what the head does right after the pronoun; none if that was not measured."""
    after, noun = entry["details"]["after"], WORDS[entry["question"]][1]
    if after is None:
        return []
    contrast = after["contrast"]
    looks = _direction(contrast, f"looks at that {noun}", f"looks at the other {noun}", "turns to neither")
    head = f"L{entry['layer']}H{entry['head']}"
    values = _short(contrast["value"], (contrast["low"], contrast["high"]))
    lines = [f"right after the pronoun, {head} {looks}: contrast {values}, p {after['p']:.4f}"]
    raised = [after["raises_pronoun"], after["raises_name"]]
    if None not in raised:
        pronoun, name = (f"{_direction(value, 'raises', 'lowers', 'does not move')}" for value in raised)
        sizes = ", ".join(f"{value['value']:.2f}" for value in raised)
        lines.append(f"its output {pronoun} the pronoun and {name} the name of whom it looks at ({sizes} nats)")
    return lines


def _direction(value: Mapping[str, float], positive: str, negative: str, unknown: str) -> str:
    """Returns the word for the sign of an estimate, `unknown` if its interval contains 0."""
    return positive if value["low"] > 0 else negative if value["high"] < 0 else unknown


def next_pronoun_claim(entry: Mapping[str, Any]) -> str:
    """Returns the claim about one question in a few sentences."""
    words, noun = WORDS[entry["question"]]
    heads, details = heads_of(entry), entry["details"]
    is_set = entry["unit"] == "set"
    name = f"Heads {heads} together" if is_set else f"Attention head {heads}"
    opening = {
        SUPPORTED: f"{name} decide{'' if is_set else 's'} whether the next word is {words}.",
        SUGGESTIVE: f"{name} may decide whether the next word is {words}.",
        NOT_ESTABLISHED: f"No head is shown to decide whether the next word is {words}; the best candidate is {heads}.",
        UNKNOWN_TO_MODEL: f"The model does not know whether the next word is {words}: it ignores the {noun}.",
    }[entry["verdict"]]
    follows = details["follows_twin"]
    sentences = [
        opening,
        f"The model follows the {noun} in {follows['value']:.1%} [{follows['low']:.1%}, {follows['high']:.1%}] "
        f"of {details['n_one']} passages that mention one.",
        f"In {details['n_two']} passages with one of each class, exchanging the attention weights on the two moves a "
        f"share of {_short(entry['share'], entry['share_interval'])} of the decision to the other side and changes the "
        f"more probable pronoun in {entry['flips']:.0%}; corrected p {entry['p_corrected']:.4f}.",
        f"The {noun} that the model picks is the author's in {entry['author_accuracy']:.0%} of them; the last one "
        f"mentioned is the author's in {entry['nearest_accuracy']:.0%}.",
        f"Evidence level {entry['evidence_level']}: {LEVELS[entry['evidence_level']]}.",
    ]
    return " ".join([*sentences, *(f"{sentence.capitalize()}." for sentence in _unmet(entry))])


def next_pronoun_card(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the claim card of an entry, for claims.json."""
    names = "question site layer head verdict evidence_level unit p_corrected n".split()
    limits = [
        "that the model understands the text",
        "that the choice is more than recency: compare the author's person with the nearest mention",
        "that another run has such a head at the same index",
        "anything beyond its passages and the words of the lexicon, in which gender is binary",
    ]
    return {
        "claim": next_pronoun_claim(entry),
        **{name: entry[name] for name in names},
        "criteria": _judged(entry)["criteria"],
        "does_not_show": limits,
    }


def next_pronoun_tables(entries: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Returns the tables of decisions, edges, criteria, heads and sets, and the passages shown."""
    tables = []
    for entry in entries:
        details = entry["details"]
        parts = [
            _decision_table(entry), _choice_table(details), _edge_table(entry), _criteria_table(entry),
            _head_table(details), _set_table(details), _after_table(details), _passage_table(details),
        ]  # fmt: skip
        for table in parts:
            if table is not None:
                tables.append(replace(table, title=f"Next pronoun, {WORDS[entry['question']][0]}: {table.title}"))
    return tables


def _decision_table(entry: Mapping[str, Any]) -> Table:
    """Returns whether the model's margin follows the entities, and the rules beside its choice."""
    details = entry["details"]
    left_out = []
    for reasons in details["left_out"].values():
        left_out += [f"{count:,} {reason}" for reason, count in reasons.items()]
    effective = ", ".join(f"{value:.0f}" for value in details["effective_clusters"])
    note = (
        f"{entry['n']:,} tested passages: {details['n_one']} with one entity, {details['n_two']} with two, of "
        f"{details['n_documents']} documents or sections. Effective clusters: {effective} (documents, entities of each "
        f"class). Left out: {'; '.join(left_out) or 'none'}."
    )
    n_wrong, wrong = details["n_nearest_is_wrong"], _of(details["author_where_nearest_is_wrong"])
    rows = [
        ("follows the twin (one entity)", _of(details["follows_twin"]), "the margin changes with the entity's class"),
        ("right in both readings", number(details["right_in_both"]), "and the more probable pronoun is right"),
        ("head's edge cut (one entity)", _of(details["head_share_of_one"]), "share of the margin lost"),
        ("output of the twin (one entity)", _of(details["interchanged"]), "share of the margin moved"),
        ("author's entity (two)", _of(details["author_accuracy"]), "the model picks whom the author means"),
        (f"  nearest is wrong ({n_wrong})", wrong, "the same, where the last is not meant"),
    ]
    rows += [(f"  rule: {name}", number(value), "") for name, value in details["rules"].items()]
    rows.append(("correlation", number(details["weight_correlation"]), "difference of the head's weights and margin"))
    return Table("the model's choice", ("measure", "value [95 %]", "meaning"), rows, note)


def _choice_table(details: Mapping[str, Any]) -> Table:
    """Returns whom the model picks in the passages of both halves."""
    rows = [
        (choice["stratum"], f"{choice['n']:,}", _of(choice["author"]), number(choice["nearest"]),
         f"{choice['n_wrong']:,}", _of(choice["author_where_wrong"]))
        for choice in details["choices"]
    ]  # fmt: skip
    header = ("passages with two", "n", "author's entity", "nearest", "nearest is wrong in", "author's entity there")
    note = "Both halves: no head is chosen here. The twin's earlier pronouns are exchanged too."
    return Table("whom the model picks", header, rows, note)


def _edge_table(entry: Mapping[str, Any]) -> Table:
    """Returns what the edits of the head, and of the set if there is one, do."""
    parts = [("head", entry["details"]["chosen"])]
    if entry["head_set"]:
        parts.append(("set", entry["head_set"]))
    names = ("edge_effect", "meant_cut", "other_cut", "content_cut", "share", "flips")
    rows = []
    for kind, part in parts:
        heads = " + ".join(f"L{layer}H{head}" for layer, head in part["heads"])
        values = [_of(part[name]) for name in names]
        rows.append((f"{kind} {heads}", *values, f"{part['verdict']} ({part['evidence_level']})"))
    header = ("heads", "edge effect, nats", "meant edge cut", "other edge cut", "beyond a random word", "exchanged",
              "flips", "verdict")  # fmt: skip
    note = "Cuts and exchange: shares of the size of the margin, passages with two entities."
    return Table("edges", header, rows, note)


def _criteria_table(entry: Mapping[str, Any]) -> Table:
    """Returns the criteria of the verdict."""
    rows = [
        (criterion["name"], criterion["level"], "met" if criterion["is_met"] else "not met", criterion["measured"])
        for criterion in _judged(entry)["criteria"]
    ]
    return Table("criteria", ("criterion", "level", "outcome", "measured"), rows)


def _head_table(details: Mapping[str, Any]) -> Table:
    """Returns the edge effects of all tested heads."""
    rows = [
        (f"L{layer}H{head}", number(effect), number(t), f"{p:.4f}")
        for (layer, head), effect, t, p in details["candidates"]
    ]
    note = f"Largest t of untrained models: {', '.join(f'{t:.1f}' for t in details['untrained_t'])}."
    return Table("all tested heads", ("head", "edge effect, nats", "t", "p"), rows, note)


def _set_table(details: Mapping[str, Any]) -> Table:
    """Returns the share exchanged against the number of heads."""
    rows = [
        (str(n), f"L{head[0]}H{head[1]}", number(chosen), _of(tested))
        for n, (head, chosen, tested) in enumerate(details["curve"], 1)
    ]
    header = ("heads", "added", "share exchanged, choosing half", "tested half [95 %]")
    return Table("heads together", header, rows, "Added one by one on the choosing half.")


def _after_table(details: Mapping[str, Any]) -> Table | None:
    """Returns what the head does right after the pronoun; None if that was not measured."""
    after = details["after"]
    if not after:
        return None
    rows = [("contrast at the pronoun", _of(after["contrast"]), "negative: it looks at the other entity")]
    for name, key in (("pronoun of whom it looks at", "raises_pronoun"), ("name", "raises_name")):
        if after[key]:
            rows.append((f"its output: {name}", _of(after[key]), "nats per unit of attention; negative: lowered"))
    note = f"{after['n']:,} prefixes; p of the contrast {after['p']:.4f}, one test. It describes the head."
    return Table("the same head right after it", ("measure", "value [95 %]", ""), rows, note)


def _passage_table(details: Mapping[str, Any]) -> Table:
    """Returns the passages shown as examples."""
    rows = [
        (
            " ".join(example["text"].split()),
            " / ".join(example["forms"]),
            " / ".join(f"{weight:.2f}" for weight in example["weights"]),
            " / ".join(f"{chance:.3f}" for chance in example["clean"]),
            " / ".join(f"{chance:.3f}" for chance in example["exchanged"]),
        )
        for example in details["examples"]
    ]
    header = ("passage", "pronouns", "weights on their entities", "probability", "weights exchanged")
    note = "Of the fifth nearest to the median share, those with the most probable pronouns."
    return Table("passages", header, rows, note)


def _of(value: Mapping[str, Any]) -> str:
    return estimate(value["value"], (value["low"], value["high"]))
