"""The stories: balanced, linked, held apart, and English."""

import re
from collections import Counter, defaultdict
from dataclasses import fields, replace
from functools import cache
from random import Random

import pytest

from data.config import StoriesConfig
from data.links import ORACLES
from data.stories import GENERATOR_VERSION, SPLITS, assert_balanced, language_of, load_stories, plot_shares, generate_split
from data.stories.blocks import draw_block
from data.stories.floor import words
from data.stories.frames import OPENERS, held_out, plain
from data.stories.grammar import write
from data.stories.language import Language, Population, placement, told_frames, told_pairs
from data.stories.lexicon import FEELINGS, FOODS, QUALITIES, names, nouns, referents, unit_hash
from data.stories.plots import ALL_HOLDOUTS, PLOTS
from data.tokenizer import word_tokenizer

_NO_SHARES = {field.name: 0.0 for field in fields(StoriesConfig) if field.name.startswith("share_")}
# The default mix, small.
CONFIG = StoriesConfig(
    **(
        _NO_SHARES
        | {"share_agreement": 0.36, "share_later_cue": 0.13, "share_no_antecedent": 0.06, "share_no_pronoun": 0.45}
    ),
    source="stories",
    seed=3,
    n_train_stories=6000,
    n_validation_stories=800,
    n_test_templates=7,
    n_test_pairs=3,
    n_bystanders=0,
    skew=0.5,
)
# Every family, each with as large a share as the least one needs to be seen.
FULL = replace(
    CONFIG,
    n_bystanders=1,
    n_validation_stories=200,
    n_test_templates=2,
    n_test_pairs=1,
    **{name: 0.055 for name in _NO_SHARES} | {"share_no_pronoun": 1 - 0.055 * (len(_NO_SHARES) - 1)},
)
CONTEXT_LENGTH = 64  # of the models that are trained on stories
PRONOUNS = {"It": "it its", "They": "they them their", "She": "she her", "He": "he him his"}


@cache
def full_stories() -> dict[str, list[dict]]:
    return {split: list(rows) for split, rows in load_stories(FULL).items()}


@pytest.fixture(scope="module")
def stories() -> dict[str, list[dict]]:
    return full_stories()


def every(stories: dict[str, list[dict]]) -> list[dict]:
    return [row for rows in stories.values() for row in rows]


def linked(rows: list[dict]) -> list[tuple[dict, dict]]:
    return [(row, link) for row in rows for link in row["links"]]


def word_at(row: dict, span: list[int]) -> str:
    return row["text"][span[0] : span[1]]


def pronoun_fits(pronoun: str, word: str) -> bool:
    return pronoun.lower() in PRONOUNS[referents()[word].pronoun].split()


def test_every_family_is_told_at_every_site_and_hold_out(stories: dict) -> None:
    seen = defaultdict(set)
    for row, link in linked(every(stories)):
        seen[row["family"], link["level"]].add(link["site"])
    assert seen == {
        ("agreement", "number"): {"before_pronoun", "pronoun"},
        ("agreement", "gender"): {"before_pronoun", "pronoun"},
        ("agreement", "told_gender"): {"pronoun"},
        ("agreement", "state"): {"pronoun"},
        ("attribute", "before"): {"pronoun"},
        ("attribute", "after"): {"pronoun"},
        ("ownership", "before"): {"pronoun", "before_repeat"},
        ("ownership", "after"): {"pronoun", "before_repeat"},
        ("ownership", "object"): {"pronoun", "before_repeat"},
        ("several_pronouns", "number"): {"pronoun", "before_repeat"},
        ("several_pronouns", "gender"): {"pronoun", "before_repeat"},
        ("later_cue", "later_cue"): {"pronoun", "cue", "before_repeat"},
        ("ambiguous", "ambiguous"): {"pronoun", "cue", "before_repeat"},
        ("no_antecedent", "no_antecedent"): {"pronoun"},
        ("no_antecedent", "cataphora"): {"pronoun"},
        ("plural", "plural"): {"pronoun"},
    }
    assert any(row["family"] == "no_pronoun" for row in stories["train"])
    holdouts = {(row["family"], row["links"][0]["level"], row["holdout"]) for row in stories["test"]}
    asked = {
        (plot.family, plot.level, one)
        for plot in PLOTS.values()
        if plot.family != "no_pronoun"
        for one in plot.holdouts
    }
    assert holdouts == asked
    assert {one for _, level, one in holdouts if level == "number"} == set(ALL_HOLDOUTS)


def test_links_point_at_the_words_they_name(stories: dict) -> None:
    for row, link in linked(every(stories)):
        pronoun, query = word_at(row, link["pronoun"]), word_at(row, link["query"])
        assert pronoun.lower() in " ".join(PRONOUNS.values()).split()
        spans = [tuple(span) for span in link["antecedents"] + link["distractors"]]
        assert len(set(spans)) == len(spans) and all(end <= link["query"][0] for _, end in spans)
        mentions = [word_at(row, span) for span in spans]
        assert set(mentions) <= set(referents()) | set(FOODS)
        gold = [word_at(row, span) for span in link["antecedents"]]
        if row["family"] == "no_antecedent":
            assert not gold and mentions and not link["payoff"]
        elif row["family"] == "plural" and pronoun == "They":
            assert {referents()[word].pronoun for word in gold} == {"She", "He"} and len(gold) == 2
        elif row["family"] not in ("attribute", "ownership"):
            assert all(pronoun_fits(pronoun, word) for word in gold)
        if link["site"] == "pronoun":
            assert query.lower() in " ".join(PRONOUNS.values()).split()
        if link["site"] == "cue":
            meant = row["pair"].split()[row["meant"]]
            assert query in FEELINGS + QUALITIES + list(referents()[meant].verbs)
        if link["site"] == "before_pronoun":
            assert link["query"][1] <= link["pronoun"][0] and not link["payoff"]
        if link["subject"]:
            assert word_at(row, link["subject"]) in mentions


def test_a_payoff_is_one_of_the_answers_and_none_of_the_foils(stories: dict) -> None:
    n = Counter()
    for row, link in linked(every(stories)):
        if link["payoff"]:
            payoff = word_at(row, link["payoff"])
            assert payoff in link["answers"] and payoff not in link["foils"] and link["foils"]
            assert link["query"][1] <= link["payoff"][0]
            n[row["family"], link["site"]] += 1
            meant = row["pair"].split()[row["meant"]]
            if row["family"] == "agreement" and link["level"] != "state":
                assert tuple(link["answers"]) == referents()[meant].verbs
            if link["site"] == "before_repeat":
                assert link["payoff"][0] == link["query"][1] + 1
    assert n["agreement", "pronoun"] and n["later_cue", "cue"] and n["attribute", "pronoun"]


def test_the_pronoun_decides_at_l1_l2_and_l3_and_nothing_at_s0(stories: dict) -> None:
    for row, link in linked(every(stories)):
        if link["level"] in ("number", "gender", "told_gender", "state"):
            pronoun = word_at(row, link["pronoun"])
            one, other = (word_at(row, link[kind][0]) for kind in ("antecedents", "distractors"))
            assert pronoun_fits(pronoun, one) and not pronoun_fits(pronoun, other)
        if link["level"] == "told_gender":
            assert re.search(r"(a (girl|boy) named|the (girl|boy))", row["text"])


def test_two_cells_of_one_order_differ_only_from_the_query_on(stories: dict) -> None:
    for start in range(0, len(stories["test"]), 4):
        block = stories["test"][start : start + 4]
        assert [(row["order"], row["meant"]) for row in block] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        if block[0]["family"] in ("no_antecedent", "ownership") or block[0]["links"][0]["level"] in (
            "no_antecedent",
            "cataphora",
            "object",
        ):
            continue  # what is owned or asked comes after the pronoun, or before it another word parts the two
        for one, two in (block[:2], block[2:]):
            for link in one["links"]:
                if link["site"] in ("before_pronoun", "pronoun"):
                    at = link["query"][1 if link["site"] == "before_pronoun" else 0]
                    assert one["text"][:at] == two["text"][:at]


def test_every_cue_is_right_in_exactly_half_of_each_family_level_site_and_hold_out(stories: dict) -> None:
    counts: dict[tuple, Counter] = defaultdict(Counter)
    for split in ("dev", "test"):
        for row, link in linked(stories[split]):
            if link["antecedents"]:
                pair = row["pair"].split()
                gold, other = (min(link[kind]) for kind in ("antecedents", "distractors"))
                cues = counts[split, row["family"], link["level"], link["site"], row["holdout"]]
                cues["all"] += 1
                cues["nearest"] += gold > other
                cues["first of the pair"] += row["meant"] == 0
                cues["mentioned first"] += row["order"] == row["meant"]
                cues["is subject"] += link["subject"] in link["antecedents"]
                cues["has subject"] += link["subject"] is not None
                assert set(pair) & set(words(row["text"])) == set(pair)
    for group, cues in counts.items():
        everything = cues["all"]
        if group[1] == "later_cue" and group[3] == "before_repeat":
            continue  # asked in half of the blocks' texts, of every cell alike
        assert 2 * cues["nearest"] == 2 * cues["first of the pair"] == 2 * cues["mentioned first"] == everything, group
        assert 2 * cues["is subject"] == cues["has subject"], group


def test_a_broken_balance_is_noticed() -> None:
    language = language_of(CONFIG, "train", "iid")
    plot = PLOTS["agreement number"]
    block = draw_block(Random(0), language, plot, told_frames(plot, language.population)[0], shared=True)
    assert_balanced(block)
    with pytest.raises(AssertionError, match="not in half"):
        assert_balanced([*block[:3], replace(block[3], meant=0)])


def test_no_candidate_stands_among_the_first_four_words(stories: dict) -> None:
    for row, link in linked(every(stories)):
        starts = [match.start() for match in re.finditer(r"\w+|[^\w\s]", row["text"])]
        assert min(span[0] for span in link["antecedents"] + link["distractors"]) >= starts[4]
    assert min(len(opener.split()) for opener in OPENERS) >= 4


def test_every_word_of_dev_and_test_is_one_known_token_and_every_story_fits_the_context(stories: dict) -> None:
    tokenizer = word_tokenizer(row["text"] for row in stories["train"])
    for row in every(stories):
        encoding = tokenizer.encode(row["text"])
        assert "<|unknown|>" not in encoding.tokens
        assert encoding.tokens == words(row["text"]) and len(encoding.tokens) < CONTEXT_LENGTH
        assert tokenizer.decode(encoding.ids) == row["text"]
    assert 700 <= tokenizer.get_vocab_size() <= 1200


@pytest.mark.parametrize("config", [CONFIG, FULL])
def test_the_longest_story_that_could_be_told_fits_the_context(config: StoriesConfig) -> None:
    for name in plot_shares(config):
        for holdout in PLOTS[name].holdouts:
            language = language_of(config, "test", holdout)

            def longest(slot: str, bound: dict, language: Language = language) -> list:
                return [max(language.rules(slot, bound), key=lambda option: len(option.symbols))]

            text = write(longest, Random(0), ("{OPENER}", *PLOTS[name].text.split()), {"PLOT": name}).text
            assert len(words(text)) < CONTEXT_LENGTH, text


def test_the_vocabulary_and_the_templates_are_as_many_as_designed() -> None:
    assert [sum(not one.held_out for one in side) for side in names()] == [48, 48]
    assert all(sum(one.held_out == "test" for one in side) >= 8 for side in names())
    assert len(nouns()) >= 60
    for one in referents().values():
        assert one.kind == "rest" or len(set(one.verbs)) == 4
        assert re.fullmatch(r"\w+", one.word)
    frames = {text for plot in PLOTS.values() if plot.frames for frame in plot.frames() for text in frame}
    assert len(frames) >= 200
    assert (
        len(
            {
                plain(frame[0])
                for name in ("agreement number", "agreement gender", "later_cue")
                for frame in PLOTS[name].frames()
            }
        )
        >= 200
    )


def test_the_hold_outs_hold(stories: dict) -> None:
    train = stories["train"]
    asked = [row for row in train if row["links"]]
    frames_in_training = {plain(row["template"]) for row in train if "{" in row["template"]}
    pairs_in_training = {row["pair"] for row in train if not has_held_out(row)}
    cells_in_training = {(plain(row["template"]), row["pair"]) for row in asked}
    antecedents = {word for row in asked for word in row["pair"].split()}
    assert not any(held_out(frame) for frame in frames_in_training)
    assert not any(referents()[word].held_out for word in antecedents)
    n = Counter()
    for row in stories["dev"] + stories["test"]:
        if row["family"] == "no_pronoun":
            continue
        n[row["holdout"]] += 1
        assert (plain(row["template"]), row["pair"]) not in cells_in_training
        if row["holdout"] == "pairs":
            assert row["pair"] not in pairs_in_training
        if row["holdout"] in ("nouns", "headline"):
            assert not set(row["pair"].split()) & antecedents
        if row["holdout"] in ("templates", "headline"):
            assert plain(row["template"]) not in frames_in_training
    assert set(n) == set(ALL_HOLDOUTS)


def has_held_out(row: dict) -> bool:
    return any(referents()[word].held_out for word in row["pair"].split())


def test_a_derived_frame_is_kept_out_with_the_one_it_comes_from() -> None:
    for name, of in (
        ("agreement state", "agreement number"),
        ("agreement told_gender", "agreement gender"),
        ("no_pronoun names", "agreement gender"),
    ):
        kept = {frame[0]: held_out(frame[0]) for frame in PLOTS[of].frames()}
        derived = {frame[0] for frame in PLOTS[name].frames()}
        assert not derived & set(kept)
        for text in derived:
            assert held_out(text) == kept[plain(text)]


def test_a_couple_is_never_a_pair_that_novel_pairs_keep_out_of_training() -> None:
    language = Language(Population(shares=(("plural", 1.0),)))
    boys = {boy.word: boy for boy in names()[1]}
    for girl in names()[0]:
        drawn = {option.symbols[0] for option in language.rules("C", {"PLOT": "plural", "A": girl.word})}
        kept = {
            pair[1].word
            for pair in told_pairs(PLOTS["agreement gender"], Population("test", "pairs"))
            if pair[0] == girl
        }
        assert drawn and not drawn & kept
        assert all(boys[word].held_out == girl.held_out for word in drawn)


def test_two_words_of_one_pool_are_one_pair() -> None:
    for name in ("ambiguous", "ownership object"):
        pairs = {(one.word, two.word) for one, two in told_pairs(PLOTS[name], Population())}
        assert pairs and not {(two, one) for one, two in pairs} & pairs


def test_dev_and_test_share_no_held_out_word_frame_or_cell(stories: dict) -> None:
    kept, cells = {}, {}
    for split in ("dev", "test"):
        rows = [row for row in stories[split] if row["holdout"] == "headline"]
        kept[split] = ({word for row in rows for word in row["pair"].split()}, {plain(row["template"]) for row in rows})
        cells[split] = {(plain(row["template"]), row["pair"]) for row in stories[split] if row["links"]}
        assert rows and cells[split]
    assert not kept["dev"][0] & kept["test"][0]
    assert not kept["dev"][1] & kept["test"][1]
    assert not cells["dev"] & cells["test"]


def test_no_story_of_dev_or_test_stands_in_training(stories: dict) -> None:
    train = {row["text"] for row in stories["train"]}
    assert not any(row["text"] in train for split in ("dev", "test") for row in stories[split])


def test_a_kind_of_story_without_a_share_is_left_out_everywhere() -> None:
    config = replace(
        CONFIG, share_later_cue=0.0, share_agreement=0.49, n_validation_stories=40, n_test_templates=1, n_test_pairs=1
    )
    assert {one.family for split in SPLITS for one in generate_split(config, split)} == {
        "agreement",
        "no_antecedent",
        "no_pronoun",
    }


def test_shares_are_spread_over_plots_and_add_up(stories: dict) -> None:
    shares = plot_shares(FULL)
    assert set(shares) == set(PLOTS) and sum(shares.values()) == pytest.approx(1)
    counts = Counter(row["family"] for row in stories["train"])
    for family in {plot.family for plot in PLOTS.values()}:
        share = sum(shares[name] for name, plot in PLOTS.items() if plot.family == family)
        assert counts[family] == pytest.approx(share * FULL.n_train_stories, abs=16)
    assert set(plot_shares(CONFIG)) < set(PLOTS)


def test_held_out_words_are_known_from_stories_without_pronouns(stories: dict) -> None:
    told = [set(words(row["text"])) for row in stories["train"] if row["family"] == "no_pronoun"]
    for one in referents().values():
        if one.held_out:
            near = [some for some in told if one.word in some]
            assert near and (not one.verbs or any(set(one.verbs) & some for some in near)), one.word
    whole = " ".join(row["text"] for row in stories["train"] if row["family"] == "no_pronoun")
    for child, side in zip(("girl", "boy"), names(), strict=True):
        for one in side:
            if one.held_out:
                assert re.search(rf"a {child} named {one.word}\b|{one.word},? (was )?(a|the) (\w+ )?{child}", whole)


def test_training_never_asks_which_of_two_a_held_out_word_is(stories: dict) -> None:
    n = Counter()
    for row in stories["train"]:
        text = words(row["text"])
        kept = [word for word in text if word in referents() and referents()[word].held_out]
        asked = {"It", "They", "She", "He", "it", "they", "she", "he", "him", "her"} & set(text)
        assert not (kept and asked), row["text"]
        mentions = {word for word in text if word in referents() and referents()[word].kind != "rest"}
        chosen = re.search(r"\. The (animals?|things?|girl|boy) ", row["text"])
        n[bool(kept), len(mentions)] += bool(chosen)
    # A held-out word beside another mention is never to be found by what it is; trained words are, and both alone.
    assert n[True, 2] == 0 < min(n[False, 2], n[True, 1], n[False, 1])


def test_the_same_config_writes_the_same_stories_and_another_seed_others() -> None:
    small = replace(FULL, n_train_stories=1200, n_validation_stories=40, n_test_templates=1, n_test_pairs=1)
    texts = [generate_split(config, "train") for config in (small, small, replace(small, seed=4))]
    assert texts[0] == texts[1] != texts[2]
    assert GENERATOR_VERSION == 4


def test_splits_are_decided_by_a_hash_that_does_not_move() -> None:
    assert unit_hash("frame", "the {A} sat near the {B} .") == pytest.approx(0.9123026, abs=1e-7)


def test_every_link_of_dev_and_test_knows_how_surprised_the_oracles_are(stories: dict) -> None:
    for split in SPLITS:
        for _, link in linked(stories[split]):
            asked = split in ("dev", "test") and link["payoff"]
            assert len(link["surprisal"]) == (len(ORACLES) if asked else 0)


def test_sentences_read_as_english(stories: dict) -> None:
    plurals = {many.word for _, many in nouns()}
    singulars = {one.word for one, _ in nouns()} | {name.word for side in names() for name in side}
    capitals = {name.word for side in names() for name in side} | {"Roger"}
    for row in every(stories):
        text = row["text"]
        assert re.fullmatch(r"[A-Z][\w ,.]*\.", text) and "  " not in text
        assert not re.search(r" [,.]|[,.][\w]|\. [a-z]|,\.|\bthe The\b|\b(a|an|the|some) (a|an|the|some)\b", text), text
        assert not re.search(r"\b[aA] [aeiou]|\b[aA]n [^aeiou]", text), text
        inside = re.findall(r"(?<=[a-z,] )[A-Z]\w*", text)
        assert set(inside) <= capitals, text
        for noun, verb in re.findall(r"(\w+) (was|were)\b", text):
            assert not (noun in plurals and verb == "was" or noun in singulars and verb == "were"), text
        for article, noun in re.findall(r"\b(an?|some) (\w+)", text):
            assert not (noun in plurals and article != "some" or noun in singulars and article == "some"), text


def test_a_frame_with_a_pair_has_one_place() -> None:
    plot = PLOTS["agreement number"]
    frame = next(frame for frame in plot.frames() if not held_out(frame[0]))
    places = Counter(placement(plot, frame, (a, b)) for a, _ in nouns() for _, b in nouns())
    assert placement(plot, frame, (nouns()[0][0], nouns()[0][1])) is None
    assert {place[1] for place in places if place} == {"iid", "pairs", "nouns"}
    assert {place[0] for place in places if place and place[1] == "iid"} == {"train", "dev", "test"}


def test_a_skewed_training_text_means_the_first_mention_in_that_share_and_tests_stay_balanced() -> None:
    skewed = replace(CONFIG, skew=0.9, n_validation_stories=40, n_test_templates=1, n_test_pairs=1)
    first = {split: [one.order == one.meant for one in generate_split(skewed, split) if one.links] for split in SPLITS}
    train = first["train"]
    assert abs(sum(train) / len(train) - 0.9) < 4 * (0.09 / len(train)) ** 0.5
    for split in ("dev", "test"):
        assert 2 * sum(first[split]) == len(first[split]) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share_agreement": 0.5}, "add up to 1"),
        ({"share_agreement": -0.1, "share_no_pronoun": 0.91}, "0 or more"),
        ({"skew": 1.0}, "skew"),
        ({"n_bystanders": 3}, "n_bystanders"),
        ({"n_train_stories": 3}, "4 or more"),
    ],
)
def test_impossible_settings_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)
