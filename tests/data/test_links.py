"""What an item can know where it is read."""

from collections import defaultdict
from dataclasses import replace

from data.links import LinkItem, decided, flipped, link_items, undecided
from data.tokenizer import end_id, word_tokenizer
from tests.data.test_stories import full_stories


def full_items() -> list[LinkItem]:
    rows = full_stories()
    tokenizer = word_tokenizer(row["text"] for row in rows["train"])
    return link_items(rows["test"], tokenizer, end_id(tokenizer))


def test_what_is_undecided_is_found_from_the_texts_alone() -> None:
    items = full_items()
    assert undecided(items) == {
        ("agreement", "number", "before_pronoun"),
        ("agreement", "gender", "before_pronoun"),
        ("later_cue", "later_cue", "pronoun"),
        ("A", "A", "pronoun"),
    }
    assert undecided(reversed(items)) == undecided(items)


def test_a_block_is_decided_if_the_cells_of_both_orders_differ_up_to_the_query() -> None:
    item = next(item for item in full_items() if item.antecedents)

    def block(*tokens: tuple[int, ...]) -> list[LinkItem]:
        return [replace(item, tokens=some, query=2) for some in tokens]

    assert decided(block((0, 1, 5, 7), (0, 1, 6, 7), (0, 2, 5), (0, 2, 6)))
    assert not decided(block((0, 1, 5, 7), (0, 1, 5, 8), (0, 2, 5), (0, 2, 5)))
    assert not decided(block((0, 1, 5, 7), (0, 1, 6, 7), (0, 2, 5), (0, 2, 5)))


def test_the_second_mention_is_meant_in_every_flipped_item_and_in_half_of_all() -> None:
    items = [item for item in full_items() if item.antecedents and item.family == "agreement"]
    some = flipped(items)
    assert 2 * len(some) == len(items)
    assert all(min(item.antecedents) > min(item.distractors) for item in some)
    by_block = defaultdict(int)
    for item in some:
        by_block[item.block, item.site] += 1
    assert set(by_block.values()) == {2}
