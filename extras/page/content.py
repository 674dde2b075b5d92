"""Everything the report page shows of a model, small enough for one file."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from data.stories.lexicon import pronouns_of
from extras.page.live import ENGLISH_TEXT, live_content
from extras.page.shown import Live, LiveTraining, PageContent, PageFinding, PageModel, PageSentence
from model.observe import only_layers
from probe.claim import asked, claim_of, limits_of
from probe.opened_model import OpenedModel
from probe.questions import QUESTIONS
from probe.results import Finding, ProbeResults, TestedModel
from probe.saved import eval_command, training_command
from probe.sentences import TokenizedText, next_tokens, word_attention
from probe.tables import finding_tables, head_names
from training.metrics import WeightHistory
from training.weight_history import pack_parameters

MAX_SENTENCE_WEIGHTS = 1_000_000  # attention weights of all sentences together, up to 5 MB


def page_content(
    opened: OpenedModel,
    results: ProbeResults | None,
    history: WeightHistory | None,
    texts: Sequence[str] = (),
    notes: Sequence[str] = (),
    live: bool | None = None,
    training: LiveTraining | None = None,
) -> PageContent:
    """Return the content of the page, with a note for everything that was left out for its size.

    The model reads every sentence now. `results` are those of this checkpoint (None: no claim is
    shown), `history` the weights during training, `texts` the user's sentences. `live`:
    whether the page has the model itself (None: if it is small).
    """
    omissions: list[str] = []
    findings = results.findings if results else []
    untested = results.missing if results and not findings else []

    live_model = live_content(opened, results, history, live, omissions, training)
    sentences = _sentences(opened, findings, texts)
    if live_model.model is None:
        sentences = within_size(sentences, omissions)
    else:  # which computes the weights
        sentences = [replace(sentence, weights=[]) for sentence in sentences]
    heading = f"Which attention head {asked(findings[0])}?" if findings else "What each head attends to"

    return PageContent(
        run=_about(opened, results),
        heading=heading,
        notes=[*notes, *untested, *(results.warnings if results else opened.began)],
        findings=[_finding_content(finding, results.model) for finding in findings] if results else [],
        sentences=sentences,
        live=live_model,
        omissions=omissions,
    )


def comparison_content(
    before: OpenedModel,
    after: OpenedModel,
    results: ProbeResults,
    findings: list[PageFinding],
    arguments: Sequence[str],
    live: bool | None,
) -> PageContent:
    """Return the content of a page about two models: what changed, and the same sentences in both.

    The slider of a live page has the weights of both. `findings` say what changed for each question; `arguments` are
    those of eval.py that make the page again; `live` as in `page_content`.
    """
    descriptions = {change.description for change in results.changes}
    shown = dict[str, None]()  # texts, each once
    for question in QUESTIONS.values():
        if question.description in descriptions:
            for example in question.examples:
                shown[example.text] = None
    texts = list(shown) or [ENGLISH_TEXT]
    notes = [*results.missing, *results.warnings]
    names = (before.name, after.name) if before.name != after.name else (before.source, after.source)

    # One live page runs models of one shape; otherwise each sentence is stored as either model reads it.
    has_one_shape = not before.is_external and {**before.shape, "dropout": 0} == {**after.shape, "dropout": 0}
    content = page_content(after, None, None, texts, notes, live if has_one_shape else False)
    model, sentences = content.live.model, [*content.sentences]
    if model and before.transformer is not None:
        old = WeightHistory([0], [pack_parameters(before.transformer.parameters(), torch.float16)])
        model = replace(model, earlier=old, before=before.source, step=max(1, model.step))
    else:
        for each in page_content(before, None, None, texts, live=False).sentences:
            sentences.append(replace(each, id=f"before-{each.id}"))
    commands = [*training_command(before), *training_command(after), eval_command(after, results, *arguments)]
    return replace(
        content,
        run=replace(content.run, commands=commands),
        heading="What changed from {} to {}?".format(*names),
        findings=findings,
        sentences=sentences,
        live=Live(model, ""),
    )


def _about(opened: OpenedModel, results: ProbeResults | None) -> PageModel:
    """Return what the page says about a model, and the commands that make the page again."""
    model = opened.model
    facts = [
        f"{model.n_layer} layers × {model.n_head} heads{only_layers(model)}",
        f"width {opened.shape['d_model']}",
        f"context of {model.context_length} tokens",
        f"{opened.n_parameters:,} parameters",
    ]
    step = "external model"
    trained = "trained elsewhere"
    if opened.settings:
        step = f"step {opened.step:,} of {opened.settings.run.max_steps:,}"
        trained = f"trained on {opened.settings.data.source}, seed {opened.settings.run.seed}"
    facts.append(trained)
    if opened.departures:
        facts.append(f"differs from a Llama-style model: {', '.join(opened.departures)}")
    return PageModel(
        name=opened.name,
        step=step,
        facts=" · ".join(facts),
        n_layer=model.n_layer,
        n_head=model.n_head,
        environment=dict(opened.environment),
        commands=[*training_command(opened), eval_command(opened, results)],
    )


def _finding_content(finding: Finding, model: TestedModel) -> PageFinding:
    return PageFinding(
        question=finding.question, description=finding.description, verdict=finding.verdict,
        heads=head_names(finding.judged.heads), place=finding.place, claim=claim_of(finding, model),
        tables=finding_tables(finding), does_not_show=limits_of(finding, model),
        reasons=finding.judged.reasons,
        carriers=finding.carrier.heads if finding.carrier else [],
        feeds=[(feed.head, feed.place, feed.share.value) for feed in finding.carrier.feeds] if finding.carrier else [],
    )  # fmt: skip


# Sentences


def _sentences(opened: OpenedModel, findings: Sequence[Finding], texts: Sequence[str]) -> list[PageSentence]:
    """Return the user's `texts` and the examples, the most important first: there may not be room for all."""
    sentences = []
    for i, text in enumerate(texts, 1):
        tokenized = opened.tokenize(text)
        query = next(iter(pronouns_of(tokenized.words)), None)
        sentences.append(_sentence(opened, f"yours-{i}", tokenized, query, predicts=True))
    for finding in findings:
        for kind in ("worked", "median", "typical"):
            for i, shown in enumerate(finding.examples_of(kind), 1):
                name = f"{kind}-{finding.question}-{i}"
                tokenized = opened.tokenize(shown.text)
                # A space before the pronoun, which the text does not end in, can be a token of its own.
                query = tokenized.word_of_token[min(shown.query, len(tokenized.tokens) - 1)]
                sentences.append(_sentence(opened, name, tokenized, query, predicts=bool(shown.next)))
    return sentences


def _sentence(
    opened: OpenedModel, name: str, text: TokenizedText, query: int | None, *, predicts: bool
) -> PageSentence:
    """Return a sentence with its id `name`, and with the next tokens if it `predicts` them."""
    following = next_tokens(opened.model, text.tokens, 5) if predicts else []
    causal = word_attention(opened.model, text)[..., np.tri(len(text.words), dtype=bool)]
    weights: list[list[list[int]]] = [[]] * len(causal)
    for layer in opened.model.attention_layers:
        weights[layer] = np.rint(10_000 * causal[layer]).astype(int).tolist()
    return PageSentence(
        id=name, text=text.text, words=text.words, query=query,
        next=[(opened.decode(token), probability) for token, probability in following],
        weights=weights,
    )  # fmt: skip


def unknown_note(opened: OpenedModel, text: TokenizedText) -> list[str]:
    """Return a note that names the words outside the vocabulary, if there are any."""
    tokens = zip(text.tokens[1:], text.spans, strict=True)
    unknown = [text.text[start:end] for token, (start, end) in tokens if token == opened.unknown]
    words = ", ".join(dict.fromkeys(unknown))
    return [f"Not in the model's vocabulary, so read as the unknown word: {words}."] if words else []


def within_size(sentences: Sequence[PageSentence], omissions: list[str]) -> list[PageSentence]:
    """Return the sentences for which there is room, in order."""
    selected = []
    room = MAX_SENTENCE_WEIGHTS
    for sentence in sentences:
        size = sum(map(np.size, sentence.weights))
        if size <= room:
            room -= size
            selected.append(sentence)
    if n_omitted := len(sentences) - len(selected):
        omissions.append(f"{n_omitted} sentences: the page holds {MAX_SENTENCE_WEIGHTS:,} weights.")
    return selected
