"""The place rule: fitted log odds, and passages with redrawn names."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from data.passages import Passage, passages_in, with_two
from data.place import N_NAMES, PlaceRule, fit_place_rule, nearest, place_features, redrawn
from tests.probe.factories import documents


@cache
def people() -> tuple[Passage, ...]:
    return tuple(with_two(passages_in(documents(), "gender")))


def labelled(rule_is_subject: bool) -> list[Passage]:
    """Return passages in which the subject is meant, or the person named last."""
    found = []
    for passage in people():
        meant = 0 if passage.subject in passage.mentions[0] else 1
        found.append(replace(passage, meant=meant if rule_is_subject else nearest(passage)))
    return found


@cache
def fitted(rule_is_subject: bool) -> PlaceRule:
    return fit_place_rule(labelled(rule_is_subject)[::2])


@pytest.mark.parametrize("rule_is_subject", [True, False])
def test_the_rule_learns_whom_the_author_means_by_place(rule_is_subject: bool) -> None:
    test = labelled(rule_is_subject)[1::2]
    is_nearest = np.array([passage.meant == nearest(passage) for passage in test])
    accuracy = ((fitted(rule_is_subject).log_odds(test) > 0) == is_nearest).mean()
    assert len(test) > 20 and accuracy > 0.95, accuracy


def test_the_rule_knows_neither_the_names_nor_the_author() -> None:
    rule = fitted(True)
    passage = people()[0]
    swapped = replace(passage, meant=1 - passage.meant)
    drawn = redrawn([passage], rule, lambda name: 1, seed=3)[0]
    assert place_features(swapped) == place_features(passage)
    assert drawn.place == rule.log_odds([passage])[0] == pytest.approx(rule.log_odds([drawn])[0])


def test_a_text_with_names_of_one_gender_keeps_the_people_of_the_other() -> None:
    [passage] = with_two(passages_in([("d", "Lily met the king in the park. She was glad.")], "gender"))
    [drawn] = redrawn([passage], fitted(True), lambda name: 1, seed=0)
    assert drawn.text == passage.text and np.isfinite(drawn.place)


def without_mentions(passage: Passage) -> str:
    text = passage.text
    for start, end in sorted((*passage.mentions[0], *passage.mentions[1]), reverse=True):
        text = f"{text[:start]}_{text[end:]}"
    return text


def test_names_are_drawn_anew_and_everything_else_stays() -> None:
    passages = list(people())
    drawn = redrawn(passages, fitted(True), lambda name: len(name) % 2, seed=1)
    names: tuple[set[str], set[str]] = (set(), set())
    for old, new in zip(passages, drawn, strict=True):
        assert (new.doc, new.meant, new.forms) == (old.doc, old.meant, old.forms)
        for side in (0, 1):
            surfaces = {*new.surfaces(side)}
            assert len(surfaces) == 1 or surfaces == {*old.surfaces(side)}
            names[side].update(name for name in surfaces if name[0].isupper())
        assert without_mentions(new) == without_mentions(old)
    assert all(1 < len(of_side) <= N_NAMES for of_side in names)
    lengths = {len(name) % 2 for of_side in names for name in of_side}
    assert len(lengths) == 1  # as many tokens each
