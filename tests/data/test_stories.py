"""The stories: balanced, correctly linked, split by hash, English, and the same until their version is raised."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from data.corpus import corpus_fingerprint
from data.stories import GENERATOR_VERSION, generate_split, language_of, plot_shares
from data.stories.frames import base_frame, held_out
from data.stories.grammar import derive
from data.stories.lexicon import FEELINGS, NAMES, NOUNS, PRONOUN_OF_FORM, QUALITIES, REFERENTS
from data.stories.lint import lint
from data.stories.plots import PLOTS
from data.words import words_of
from settings.train import compose_settings
from tests.data.small_corpora import FULL, SMALL, SPLITS, all_links, all_rows


def test_every_plot_has_its_share_sites_payoffs_and_hold_outs() -> None:
    linked_plots = [plot for plot in PLOTS.values() if plot.links]
    questions = {(row.family, link.question) for row, link in all_links()}
    assert questions == {(plot.family, link.question) for plot in linked_plots for link in plot.links}
    with_payoff = {link.question for _, link in all_links() if link.payoff}
    assert with_payoff == {"number", "gender", "later_cue_at_pronoun", "later_cue"}
    holdouts = {(link.question, row.holdout) for row in all_rows("test") for link in row.links}
    assert holdouts == {(link, holdout) for _, link in questions for holdout in ("iid", "headline")}
    shares = plot_shares(FULL)
    assert set(shares) == set(PLOTS) and sum(shares.values()) == pytest.approx(1)
    expected = Counter[str]()
    for name, plot in PLOTS.items():
        expected[plot.family] += shares[name] * FULL.n_train_stories
    assert Counter(row.family for row in all_rows("train")) == pytest.approx(expected, abs=16)
    with pytest.raises(ValueError, match="share_.*add up to 1"):
        replace(FULL, share_agreement=0.5)


def test_links_point_at_the_words_they_name_and_payoffs_at_answers() -> None:
    for row, link in all_links():
        text = row.text
        pronoun, query = text[slice(*link.pronoun)], text[slice(*link.query)]
        spans = link.antecedents + link.distractors
        mentions = [text[slice(*span)] for span in spans]
        agreeing = [word for word in mentions if REFERENTS[word].pronoun == PRONOUN_OF_FORM[pronoun.lower()]]
        antecedents = mentions[: len(link.antecedents)]
        assert set(mentions) <= set(REFERENTS) and len(set(spans)) == len(spans)
        assert all(end <= link.query[0] for _, end in spans) and set(antecedents) <= set(agreeing)
        if row.family == "no_antecedent":
            assert not antecedents and mentions
        if row.family == "agreement":
            assert text[slice(*link.distractors[0])] not in agreeing
            assert not link.payoff or link.answers == REFERENTS[row.pair.split()[row.meant]].verbs
        if link.question in ("number", "gender", "later_cue_at_pronoun", "no_antecedent"):
            assert query == pronoun
        if link.question == "later_cue":
            assert query in FEELINGS + QUALITIES
        if link.question == "agreement_before_pronoun":
            assert link.query[1] <= link.pronoun[0]
        if link.subject:
            assert text[slice(*link.subject)] in mentions
        first_words = [match.start() for match in re.finditer(r"\w+|[^\w\s]", text)]
        assert min(start for start, _ in spans) >= first_words[4]  # the first four words may be attention sinks
        assert link.n_fitting == (len(link.answers) if link.payoff else 0)
        if link.payoff:
            payoff = text[slice(*link.payoff)]
            assert payoff in link.answers and payoff not in link.foils and link.foils
            assert link.query[1] <= link.payoff[0]


def test_every_cue_is_right_in_exactly_half_of_each_question_and_hold_out() -> None:
    counts: dict[tuple, Counter] = defaultdict(Counter)
    for split in SPLITS:
        for row in all_rows(split):
            if row.family != "no_pronoun":
                counts[split, row.family, row.holdout][row.order, row.meant] += 1
    assert all(len(cells) == 4 and len({*cells.values()}) == 1 for cells in counts.values())
    counts.clear()
    for split in ("dev", "test"):
        for row, link in all_links(split):
            if link.antecedents:
                cues = counts[split, link.question, row.holdout]
                cues["items"] += 1
                cues["nearest"] += min(link.antecedents) > min(link.distractors)
                cues["first of the pair"] += row.meant == 0
                cues["mentioned first"] += row.order == row.meant
                cues["is subject"] += link.subject in link.antecedents
                cues["has subject"] += link.subject is not None
                assert set(row.pair.split()) <= set(words_of(row.text))
    for group, cues in counts.items():
        halves = [2 * cues[cue] for cue in ("nearest", "first of the pair", "mentioned first")]
        assert halves == [cues["items"]] * 3 and 2 * cues["is subject"] == cues["has subject"], group


def test_the_longest_possible_story_fits_the_context() -> None:
    for name, plot in PLOTS.items():
        for holdout in ("iid", "headline") if plot.has_pronoun else ("iid",):
            language = language_of(FULL, "test", holdout)

            def longest(slot: str, bindings: dict, language=language) -> list:  # noqa: ANN001
                return [max(language.rules(slot, bindings), key=lambda option: len(option.symbols))]

            text = derive(longest, Random(0), ("{OPENER}", *PLOTS[name].text.split()), {"PLOT": name}).text
            assert len(words_of(text)) < 64, text  # model.context_length in configs/model/tiny.yaml


def test_no_held_out_word_frame_cell_or_probe_prefix_is_shared() -> None:
    used: dict[str, dict] = {"words": {}, "frames": {}, "cells": {}}  # by split
    for split in ("train", "dev", "test"):
        linked = [row for row in all_rows(split) if row.family != "no_pronoun"]
        held_out_rows = [row for row in linked if split == "train" or row.holdout == "headline"]
        used["words"][split] = set(" ".join(row.pair for row in held_out_rows).split())
        used["frames"][split] = {base_frame(row.frame) for row in held_out_rows}
        used["cells"][split] = {(base_frame(row.frame), row.pair) for row in linked}
    used["frames"]["train"] |= {base_frame(row.frame) for row in all_rows("train") if "{" in row.frame}
    for of_splits in used.values():
        for first, second in combinations(of_splits.values(), 2):
            assert first and second and not first & second
    assert not any(map(held_out, used["frames"]["train"]))
    assert not any(REFERENTS[word].held_out for word in used["words"]["train"])
    prefixes = {row.text[: link.query[1]] for row, link in all_links("dev", "test")}
    assert len(prefixes) > 120 and not any(row.text.startswith(tuple(prefixes)) for row in all_rows("train"))


def test_stories_without_pronouns_teach_held_out_words() -> None:
    n = Counter()
    taught = set()
    for row in all_rows("train"):
        text = words_of(row.text)
        mentions = {word for word in text if word in REFERENTS and REFERENTS[word].kind != "rest"}
        has_held_out = any(REFERENTS[word].held_out for word in mentions)
        assert not (has_held_out and set(PRONOUN_OF_FORM) & {word.lower() for word in text}), row.text
        n[has_held_out, len(mentions)] += bool(re.search(r"\. The (animals?|things?|girl|boy) ", row.text))
        taught |= {word for word in mentions if set(REFERENTS[word].verbs) & set(text)}
    assert n[True, 2] == 0 < min(n[False, 2], n[True, 1], n[False, 1])
    assert {word for word, referent in REFERENTS.items() if referent.held_out and referent.verbs} <= taught
    joined = " ".join(row.text for row in all_rows("train"))
    for child, side in zip(("girl", "boy"), NAMES, strict=True):
        for name in [referent.word for referent in side if referent.held_out]:
            assert re.search(rf"a {child} named {name}\b|{name},? (was )?(a|the) (\w+ )?{child}", joined)


def test_sentences_are_english() -> None:
    plurals = {plural.word for _, plural in NOUNS}
    name_words = {name.word for side in NAMES for name in side}
    singulars = {singular.word for singular, _ in NOUNS} | name_words
    for text in (row.text for row in all_rows()):
        assert re.fullmatch(r"[A-Z][\w ,.]*\.", text) and "  " not in text
        assert not re.search(r" [,.]|[,.][\w]|\. [a-z]|,\.|\bthe The\b|\b(a|an|the|some) (a|an|the|some)\b", text), text
        assert not re.search(r"\b[aA] [aeiou]|\b[aA]n [^aeiou]", text), text
        assert set(re.findall(r"(?<=[a-z,] )[A-Z]\w*", text)) <= name_words, text
        for noun, verb in re.findall(r"(\w+) (was|were)\b", text):
            assert noun not in (plurals if verb == "was" else singulars), text
        for article, noun in re.findall(r"\b(an?|some) (\w+)", text):
            assert noun not in (singulars if article == "some" else plurals), text


@pytest.mark.parametrize(("text", "read_at", "candidates"), [
    ("The cat sat near the buses. It", "It", "cat"), ("Lily saw the cats. They purred.", "They", "cats"),
    ("The cat sat on the mat because it was tired.", "it tired", "cat or mat"),
    ("The cat lay on the mat. The dog sat on the rug because it was soft.", "it", "cat or mat or dog or rug"),
    ("Before it purred, the cat stood at home.", "it", "no noun of the stories"),
])  # fmt: skip
def test_a_pronoun_has_its_candidates_and_cue(text: str, read_at: str, candidates: str) -> None:
    [note] = lint(text)
    assert " ".join(text[slice(*span)] for span in note.read_at) == read_at
    assert f"can refer to {candidates} by the text" in note.note


SIZES = {"n_train_stories": 600, "n_validation_stories": 60, "n_test_frames": 1, "n_test_pairs": 1}
# After an intended change of the text: raise GENERATOR_VERSION, and set the digest to that of the stories.
VERSION = 7
DIGEST = "45f40e283bcb204c947888b509905cd34eef097ff03f75971655fbd01a30b36b"
# Runs and caches of the default stories carry it.
FINGERPRINT = "1d049ed8e37af8e208a8509d6ac2033b376e8724c5cb36b7bfb62a33c49621fe"


def test_the_stories_change_only_with_the_generator_version_and_keep_their_fingerprint() -> None:
    config = compose_settings().data
    rows = [asdict(story) for split in SPLITS for story in generate_split(replace(config, **SIZES), split)]
    digest = hashlib.sha256("".join(json.dumps(row, sort_keys=True) for row in rows).encode())
    assert (GENERATOR_VERSION, digest.hexdigest()) == (VERSION, DIGEST)
    assert corpus_fingerprint(config, Path()) == FINGERPRINT
    assert generate_split(SMALL, "train") != generate_split(replace(SMALL, seed=4), "train")  # another seed
