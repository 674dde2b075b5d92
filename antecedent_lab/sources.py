"""The questions for a model, and their items in its tokens, from stories, English text or a file."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from data.corpus import load_stories
from data.loader import Corpus
from data.pairs import Items, LinkedText, link_pairs
from data.stories import GENERATOR_VERSION
from extras.english.source import english_source, watched_passages
from extras.own.file import load_question
from extras.own.source import own_source, watched_question
from probe.config import ProbeConfig
from probe.elsewhere import Running, RunningTexts
from probe.emergence import Watched, watched_stories
from probe.opened_model import OpenedModel
from probe.opened_run import load_data
from probe.questions import DEV, SAME_WORDS, STORY_QUESTIONS
from probe.source import UNKNOWN_TRAINING, Source, check_items
from settings.data import StoriesConfig
from settings.errors import UserError
from settings.files import found
from settings.train import TrainSettings


def source_of(
    opened: OpenedModel, config: ProbeConfig, cache_dir: str, path: str | None = None, own_file: str | None = None
) -> Source:
    """Return the questions of `own_file`, else of the text of `path`, else of the model; UserError if it reads none."""
    if own_file is not None:
        return own_source(opened, load_question(Path(own_file)))
    of_run = None if opened.settings is None or path is not None or opened.has_stories else opened.settings.run.items
    if of_run is not None:
        if not found(of_run).exists():
            raise UserError(f"{opened.source}: asks items={of_run}, which is not there; give items=FILE.jsonl")
        return replace(own_source(opened, load_question(Path(of_run))), name="")
    corpus = None if opened.data is None or path is not None else load_data(opened, cache_dir)
    if corpus is not None and opened.has_stories:
        return _story_source(opened, corpus)
    return english_source(opened, corpus, path, config)


def _story_source(opened: OpenedModel, corpus: Corpus) -> Source:
    reader = (opened.tokenizer, opened.bos_id)
    items = story_items(load_stories(corpus, "dev"), load_stories(corpus, "test"), reader)
    data = {"fingerprint": corpus.fingerprint, "generator_version": GENERATOR_VERSION}

    warnings: list[str] = []
    if opened.is_external:
        warnings = [UNKNOWN_TRAINING, *check_items(opened, items)]
    stories = load_stories(corpus, "validation")
    return Source("", list(STORY_QUESTIONS), items, data, _validation_stories(opened, stories), warnings=warnings)


def _validation_stories(opened: OpenedModel, stories: list[LinkedText]) -> RunningTexts:
    """Return whole stories, of all kinds as in training, with their links."""
    pairs = link_pairs(stories, opened.tokenizer, opened.bos_id).pairs
    links = {text: (pair.question, cell) for pair in pairs for text, cell in zip(pair.texts, pair.cells, strict=True)}
    texts: dict[tuple[int, ...], Running] = {}
    for story in stories:
        tokens = opened.encode(story.text)[: opened.model.context_length]
        texts[tokens] = Running(tokens, *links.get(story.text, ()))
    return RunningTexts("the validation stories", list(texts.values()))


def story_items(dev: Iterable[LinkedText], test: Iterable[LinkedText], reader: tuple[Tokenizer, int]) -> Items:
    """Return the pairs of stories that a study needs: all of test, but only those of dev with the words of training."""
    known = [text for text in dev if text.holdout == SAME_WORDS]
    return link_pairs(known, *reader).named(part=DEV) + link_pairs(test, *reader)


def watched(corpus: Corpus, settings: TrainSettings) -> Watched:
    """Return the items on which heads are measured during training, by question; none for some texts.

    A question of the user's own is read, and refused, even if nothing is watched; eval.py asks it.
    """
    n_sequences = settings.run.probe_sequences
    own: Watched = {}
    if settings.run.items is not None:
        own = watched_question(settings.run.items, corpus, settings.model.context_length, n_sequences)
    if not n_sequences:
        return {}
    if isinstance(corpus.config, StoriesConfig):
        return watched_stories(corpus, n_sequences) | own
    return own or watched_passages(corpus, settings.model.context_length, n_sequences)
