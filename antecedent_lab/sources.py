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
from probe.emergence import Watched, watched_stories
from probe.opened_model import OpenedModel
from probe.opened_run import load_data
from probe.questions import DEV, SAME_WORDS, STORY_QUESTIONS
from probe.source import UNKNOWN_TRAINING, Source, check_items, running_texts
from settings.data import StoriesConfig
from settings.train import TrainSettings


def source_of(
    opened: OpenedModel, config: ProbeConfig, cache_dir: str, path: str | None = None, own_file: str | None = None
) -> Source:
    """Return the questions of `own_file`, else of the text of `path`, else of the model; UserError if it reads none."""
    if own_file is not None:
        return own_source(opened, load_question(Path(own_file)))
    if path is None and opened.settings is not None and opened.settings.run.items is not None:
        return replace(own_source(opened, load_question(Path(opened.settings.run.items))), name="")
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
    running = running_texts(opened, link_pairs(stories, *reader), [story.text for story in stories])
    return Source("", list(STORY_QUESTIONS), items, data, warnings=warnings, running=running)


def story_items(dev: Iterable[LinkedText], test: Iterable[LinkedText], reader: tuple[Tokenizer, int]) -> Items:
    """Return the pairs of stories that a study needs: all of test, but only those of dev with the words of training."""
    known = [text for text in dev if text.holdout == SAME_WORDS]
    return link_pairs(known, *reader).named(part=DEV) + link_pairs(test, *reader)


def watched(corpus: Corpus, settings: TrainSettings) -> Watched:
    """Return the items on which heads are measured during training, by question; none for some texts."""
    n_sequences = settings.run.probe_sequences
    if settings.run.items is not None:
        return watched_question(settings.run.items, corpus, settings.model.context_length, n_sequences)
    if isinstance(corpus.config, StoriesConfig):
        return watched_stories(corpus, n_sequences)
    return watched_passages(corpus, settings.model.context_length, n_sequences)
