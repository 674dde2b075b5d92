"""The stories: balanced, linked, held apart, and English."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from data.config import StoriesConfig
from data.stories import GENERATOR_VERSION, assert_balanced, load_stories
from data.stories.families import HOLDOUTS, LEVELS, draw_block, frames, placement
from data.stories.grammar import OPENERS, fill
from data.stories.lexicon import FEELINGS, QUALITIES, names, nouns, referents, rests, unit_hash
from data.tokenizer import word_tokenizer

CONFIG = StoriesConfig(
    source="stories",
    seed=3,
    n_train_stories=6000,
    n_dev_stories=800,
    n_test_templates=7,
    n_test_pairs=3,
    share_v=0.4,
    share_r=0.15,
    share_n=0.08,
    share_x=0.37,
)


@pytest.fixture(scope="module")
def stories() -> dict[str, list[dict]]:
    return {split: list(rows) for split, rows in load_stories(CONFIG).items()}


def every(stories: dict[str, list[dict]]) -> list[dict]:
    return [row for rows in stories.values() for row in rows]


def word_at(row: dict, span: list[int]) -> str:
    return row["text"][span[0] : span[1]]


def test_links_point_at_the_words_they_name(stories: dict) -> None:
    seen = Counter()
    for row in every(stories):
        for link in row["links"]:
            pronoun = word_at(row, link["pronoun"])
            assert pronoun in ("It", "They", "She", "He", "it")
            for span in link["antecedents"]:
                assert referents()[word_at(row, span)].pronoun.lower() == pronoun.lower()
            mentions = {word_at(row, span) for span in link["antecedents"] + link["distractors"]}
            assert len(mentions) == 2
            if link["level"] == "N":
                assert not link["antecedents"] and not link["payoff"]
            else:
                payoff = word_at(row, link["payoff"])
                assert payoff in link["answers"] and payoff not in link["foils"]
            if link["site"] == "S2":
                assert word_at(row, link["query"]) in FEELINGS + QUALITIES
            else:
                assert link["query"] == link["pronoun"]
            seen[link["level"], link["site"]] += 1
    assert set(seen) == {("L1", "S1"), ("L2", "S1"), ("R", "S1"), ("R", "S2"), ("N", "S1")}


def test_at_l1_and_l2_the_pronoun_fits_the_antecedent_and_not_the_distractor(stories: dict) -> None:
    for row in every(stories):
        for link in row["links"]:
            if link["level"] in ("L1", "L2"):
                pronoun = word_at(row, link["pronoun"])
                assert referents()[word_at(row, link["antecedents"][0])].pronoun == pronoun
                assert referents()[word_at(row, link["distractors"][0])].pronoun != pronoun


def test_every_cue_is_right_in_exactly_half_of_each_family_and_hold_out(stories: dict) -> None:
    counts: dict[tuple, Counter] = {}
    for row in every(stories):
        for link in row["links"]:
            if link["antecedents"]:
                gold, other = link["antecedents"][0], link["distractors"][0]
                cues = counts.setdefault((row["family"], link["level"], link["site"], row["holdout"]), Counter())
                cues["all"] += 2
                cues["nearest"] += 2 * (gold > other)
                cues["pair"] += 2 * (word_at(row, gold) == row["pair"].split()[0])
    for group, cues in counts.items():
        assert 2 * cues["nearest"] == 2 * cues["pair"] == cues["all"], group


def test_a_broken_balance_is_noticed() -> None:
    frame = frames("L1")[0]
    block = draw_block(Random(0), "V", "L1", "train", "iid", frame, shared=True)
    assert_balanced(block)
    with pytest.raises(AssertionError, match="not in half"):
        assert_balanced([*block[:3], replace(block[3], meant=0)])


def test_no_candidate_stands_among_the_first_four_words(stories: dict) -> None:
    tokenizer = word_tokenizer(row["text"] for row in stories["train"])
    for row in every(stories):
        first_four = tokenizer.encode(row["text"]).tokens[:4]
        assert not set(first_four) & set(referents()), row["text"]
    assert min(len(opener.split()) for opener in OPENERS) >= 4


def test_every_word_of_dev_and_test_is_one_known_token(stories: dict) -> None:
    tokenizer = word_tokenizer(row["text"] for row in stories["train"])
    for row in stories["dev"] + stories["test"]:
        encoding = tokenizer.encode(row["text"])
        assert "<|unknown|>" not in encoding.tokens
        for link in row["links"]:
            for span in [link["query"], *link["antecedents"], *link["distractors"]]:
                assert encoding.char_to_token(span[0]) == encoding.char_to_token(span[1] - 1)


def test_the_hold_outs_hold(stories: dict) -> None:
    train = stories["train"]
    linked = [row for row in train if row["links"]]
    frames_in_training = {row["template"] for row in train}
    pairs_in_training = {row["pair"] for row in linked}
    cells_in_training = {(row["template"], row["pair"]) for row in linked}
    antecedents = {word for row in linked for word in row["pair"].split()}
    kept = {frame[0] for level in ("L1", "L2", "R") for split in ("dev", "test") for frame in frames(level, split)}
    assert len(kept) > 100 and not kept & frames_in_training
    assert not any(referents()[word].held_out for word in antecedents)
    for row in stories["dev"] + stories["test"]:
        if row["family"] == "X":
            continue
        assert (row["template"], row["pair"]) not in cells_in_training
        if row["holdout"] == "pairs":
            assert row["pair"] not in pairs_in_training
        if row["holdout"] in ("nouns", "headline"):
            assert not set(row["pair"].split()) & antecedents
        if row["holdout"] in ("templates", "headline"):
            assert row["template"] not in frames_in_training


def test_dev_and_test_share_no_held_out_noun_or_frame(stories: dict) -> None:
    kept = {}
    for split in ("dev", "test"):
        rows = [row for row in stories[split] if row["holdout"] == "headline"]
        assert rows
        kept[split] = ({word for row in rows for word in row["pair"].split()}, {row["template"] for row in rows})
    assert not kept["dev"][0] & kept["test"][0]
    assert not kept["dev"][1] & kept["test"][1]


def test_no_probe_prefix_occurs_in_training(stories: dict) -> None:
    prefixes = set()
    for row in stories["train"]:
        for link in row["links"]:
            prefixes.add(row["text"][: link["query"][1]])
    probes = {
        row["text"][: link["query"][1]] for split in ("dev", "test") for row in stories[split] for link in row["links"]
    }
    assert len(probes) > 500
    assert not probes & prefixes


def test_no_story_of_dev_or_test_stands_in_training(stories: dict) -> None:
    train = {row["text"] for row in stories["train"]}
    assert not any(row["text"] in train for split in ("dev", "test") for row in stories[split])


def test_a_family_without_a_share_is_left_out_everywhere() -> None:
    config = replace(CONFIG, share_r=0.0, share_v=0.55, n_test_templates=1, n_test_pairs=1)
    assert {row["family"] for rows in load_stories(config).values() for row in rows} == {"V", "N", "X"}


def test_never_antecedent_nouns_are_still_known_from_stories_without_pronouns(stories: dict) -> None:
    told = " ".join(row["text"] for row in stories["train"] if row["family"] == "X")
    for one in referents().values():
        if one.held_out:
            assert f" {one.word}" in told


def test_the_same_config_writes_the_same_stories_and_another_seed_others() -> None:
    small = replace(CONFIG, n_train_stories=40, n_dev_stories=40, n_test_templates=1, n_test_pairs=1)
    texts = [load_stories(config)["train"]["text"][:] for config in (small, small, replace(small, seed=4))]
    assert texts[0] == texts[1] != texts[2]
    assert GENERATOR_VERSION == 1


def test_splits_are_decided_by_a_hash_that_does_not_move() -> None:
    assert unit_hash("frame", "the {A} sat near the {B} .") == pytest.approx(0.9123026, abs=1e-7)
    assert [one.word for one, _ in nouns() if one.held_out == "test"] == "owl bear snake bell fountain radio".split()


def test_the_vocabulary_is_as_designed() -> None:
    assert len(nouns()) == 60
    assert [sum(not one.held_out for one in side) for side in names()] == [48, 48]
    assert [sum(bool(one.held_out) for one in side) for side in names()] == [8, 8]
    for one in referents().values():
        assert one.kind == "rest" or len(set(one.verbs)) == 4
    assert len(frames("L1")) + len(frames("L2")) + len(frames("R")) >= 200
    assert len(rests()) == 12


def test_sentences_read_as_english() -> None:
    cats, ox = referents()["cats"], referents()["ox"]
    text = fill("One sunny day , there {A.was} {A.a} {A} near the {B} . {B.was}", {"A": cats, "B": ox})
    assert text.text == "One sunny day, there were some cats near the ox. was"
    assert text.text[slice(*text.spans["B"])] == "ox"
    assert fill("{A.a} {A} {A.was}", {"A": ox}).text == "an ox was"


def test_a_frame_with_a_pair_has_one_place() -> None:
    one, two = nouns()[0][0], nouns()[30][1]
    frame = frames("L1")[0]
    places = Counter(placement(frame, (a, b)) for a, _ in nouns() for _, b in nouns())
    assert placement(frame, (one, two)) == ("train", "iid")
    assert placement(frame, (one, nouns()[0][1])) is None
    assert {place[1] for place in places if place} == {"iid", "pairs", "nouns"}
    assert set(HOLDOUTS) >= {"iid", "headline"} and set(LEVELS) == {"V", "R", "N"}


def test_shares_must_add_up() -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        replace(CONFIG, share_v=0.5)
