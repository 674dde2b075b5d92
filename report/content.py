"""Everything the report page shows of a model, small enough for one file."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from data.links import Span
from data.stories.lint import lint
from probe.claim import claim_card
from probe.items import HEADLINE
from probe.opened_model import OpenedModel
from probe.results import ProbeResults, QuestionResult, ShownSentence, TestedModel
from probe.sentences import SHOWCASE, TokenizedText, next_tokens, pack_weights, word_attention
from probe.verdict import MAX_P, corrected_p
from report.live import live_content
from report.next_pronoun import copied, next_pronoun_claim, next_pronoun_tables
from report.page import PageClaim, PageContent, PageModel, PageQuestion, PageSentence
from report.reproduce import ablation_code, reproducing_commands
from report.tables import DESCRIPTIONS, description, model_tables
from training.metrics import Metrics, ProbePoint, QuestionPoint
from training.weight_history import WeightHistory

MAX_SENTENCE_CHARACTERS = 3_000_000  # base64 of the attention weights of all sentences


def page_content(
    opened: OpenedModel,
    results: ProbeResults | None,
    metrics: Metrics,
    history: WeightHistory | None,
    texts: Sequence[str] = (),
    notes: Sequence[str] = (),
    live: bool | None = None,
) -> PageContent:
    """Return the content of the page, with a note for everything that was left out for its size.

    The model reads every sentence now. `results` are those of this checkpoint (None: no claim is shown), `metrics` and
    `history` the records of training, `texts` the user's sentences. `live`: whether the page has the model itself
    (None: if it is small).
    """
    omissions: list[str] = []

    # Sentences in the order of their importance, because there may not be room for all
    groups = [[_own_sentence(opened, i, text)] for i, text in enumerate(texts, 1)]
    groups += [_example_sentences(opened, question) for question in SHOWCASE]
    groups += [_median_block(opened, result) for result in results.selected] if results else []
    sentences = within_size(groups, omissions)

    shown_texts = [opened.tokenize(sentence.text) for sentence in sentences]

    content = PageContent(
        run=about(opened, _commands(opened, results)),
        notes=list(notes),
        max_p=MAX_P,
        sentences=sentences,
        training=training_content(metrics, results),
        resumed=opened.resumed,
        live=live_content(opened, results, history, shown_texts, live, omissions),
        omissions=omissions,
    )
    return content if results is None else _with_results(content, results, opened)


def _with_results(content: PageContent, results: ProbeResults, opened: OpenedModel) -> PageContent:
    """Return the content with everything that was found out about the model."""
    # Questions, with those of their sentences for which there was room
    questions = []
    for result in results.selected:
        groups = (f"{result.question}-", f"median-{result.question}-")
        ids = [sentence.id for sentence in content.sentences if sentence.id.startswith(groups)]
        questions.append(_question_content(result, results.model, ids))

    # How a run was resumed is shown elsewhere on the page.
    warnings = [warning for warning in results.warnings if warning not in opened.resumed]
    return replace(
        content,
        notes=[*content.notes, *warnings],
        asked=asked(results),
        questions=questions,
        next_pronoun=[PageClaim(result.verdict, next_pronoun_claim(result)) for result in results.next_pronoun],
        tables=[*next_pronoun_tables(results.next_pronoun), *model_tables(results)],
    )


def asked(results: ProbeResults) -> str:
    """Return what the heads were tested for, as the heading of the page asks: "links a pronoun to its antecedent"."""
    own = [result.own.link for result in results.selected if result.own is not None]
    has_link = own or any(result.verdict != NOT_ESTABLISHED for result in results.selected)
    if results.next_pronoun and not has_link:
        return f"copies {copied(results.next_pronoun[0])}"
    return f"links {own[0] if own else 'a pronoun to its antecedent'}"


def _commands(opened: OpenedModel, results: ProbeResults | None) -> list[str]:
    """Return the commands that make the page again."""
    if results is None:
        return reproducing_commands(opened, None)
    files = [result.own.file for result in results.selected if result.own is not None]
    return reproducing_commands(opened, results.settings, files[0] if files else None)


def about(opened: OpenedModel, commands: list[str]) -> PageModel:
    """Return the name, shape, training and provenance of a model."""
    # How it was trained is known of runs only.
    model = opened.model
    training = "trained elsewhere"
    if opened.data and not opened.is_external:
        training = f"trained on {opened.data.source}, seed {opened.seed}"

    facts = [
        f"{model.n_layer} layers × {model.n_head} heads",
        f"width {opened.d_model}",
        f"context of {model.context_length} tokens",
        f"{opened.n_parameters:,} parameters",
        training,
    ]
    if opened.departures:
        facts.append(f"differs from a Llama-style model: {', '.join(opened.departures)}")
    return PageModel(
        name=opened.name,
        step="external model" if opened.is_external else f"step {opened.step:,} of {opened.max_steps:,}",
        facts=" · ".join(facts),
        n_layer=model.n_layer,
        n_head=model.n_head,
        environment=opened.environment,
        commands=commands,
    )


def _question_content(result: QuestionResult, model: TestedModel, sentences: list[str]) -> PageQuestion:
    """Return a result with its description, its claim, the corrected p of all heads and the ids of its sentences."""
    card = claim_card(result, model)
    scores = asdict(result.heads)
    return PageQuestion(
        result=result,
        description=description(result),
        claim=card.claim,
        does_not_show=card.does_not_show,
        holdout=HEADLINE,
        ablation=ablation_code(result, model),
        heads=scores | {"p": corrected_p(result.heads)},
        sentences=sentences,
    )


# Sentences


def _sentence_content(
    opened: OpenedModel,
    text: TokenizedText,
    name: str,
    title: str,
    roles: Sequence[list[int]],
    *,
    predicts: bool = False,
) -> PageSentence:
    """Return what the page holds of a sentence that fits into the model's context.

    `name` is its id; `roles` are query, antecedents and distractors, the last two may be missing. `predicts`: the most
    probable next tokens are shown.
    """
    query, antecedents, distractors = [*roles, [], []][:3]
    next_words = []
    for token, probability in next_tokens(opened.model, text.tokens, 5) if predicts else ():
        next_words.append((opened.decode(token), probability))
    return PageSentence(
        id=name,
        group=name.split("-")[0],
        title=title,
        text=text.text,
        words=text.words,
        query=query,
        antecedents=antecedents,
        distractors=distractors,
        notes=[],
        next=next_words,
        weights=pack_weights(word_attention(opened.model, [text])[0]),
    )


def _own_sentence(opened: OpenedModel, number: int, text: str) -> PageSentence:
    """Return the user's sentence; heads are read at its pronouns and at later words that decide what those are."""
    tokenized = opened.tokenize(text)
    notes = lint(text)

    # The first word is selected on the page: one that decides comes before its pronoun.
    query: dict[int, None] = {}  # an ordered set
    for note in notes:
        for span in (note.clue, note.span):
            if span:
                query[_word_at(tokenized, span)] = None
    content = _sentence_content(opened, tokenized, f"yours-{number}", "Your sentence.", [list(query)], predicts=True)
    return replace(content, notes=[*unknown_note(opened, tokenized), *(note.note for note in notes)])


def _word_at(text: TokenizedText, span: Span) -> int:
    """Return the index in `text.words` of the word with these characters; word 0 is the start token."""
    return 1 + text.word_spans.index(span)


def _example_sentences(opened: OpenedModel, question: str) -> list[PageSentence]:
    """Return the worked example of a question; no sentence if the model cannot read all of them."""
    sentences = []
    for i, example in enumerate(SHOWCASE[question], 1):
        # One sentence without the others would show nothing.
        text = opened.tokenize(example.text)
        if _unknown_words(opened, text) or not opened.fits(text):
            return []
        words = (example.query, example.antecedent, example.distractor)
        title = "At “{}”: the antecedent is “{}”, the distractor “{}”.".format(*words)
        roles = [[text.words.index(word)] for word in words]
        predicts = example.text.endswith(example.query)
        sentences.append(_sentence_content(opened, text, f"{question}-{i}", title, roles, predicts=predicts))
    return sentences


def _median_block(opened: OpenedModel, result: QuestionResult) -> list[PageSentence]:
    """Return the four sentences of a question's median block."""
    sentences = []
    for i, shown in enumerate(result.median.sentences, 1):
        text = opened.tokenize(shown.text)
        name = f"median-{result.question}-{i}"
        title = f"Sentence {i} of 4, block {result.median.block}."
        sentences.append(_sentence_content(opened, text, name, title, _roles(text, shown)))
    return sentences


def _roles(text: TokenizedText, shown: ShownSentence) -> list[list[int]]:
    """Return the words of query, antecedents and distractors, whose first tokens the results have."""
    roles = [[text.word_of_token[shown.query]]]
    for mentions in (shown.antecedents, shown.distractors):
        roles.append([text.word_of_token[mention[0]] for mention in mentions])
    return roles


def _unknown_words(opened: OpenedModel, text: TokenizedText) -> list[str]:
    """Return the pieces of a text that the tokenizer replaces by its token for unknown words, each once."""
    words: dict[str, None] = {}  # an ordered set
    for token, (start, end) in zip(text.tokens[1:], text.spans, strict=True):
        if token == opened.unknown:
            words[text.text[start:end]] = None
    return list(words)


def unknown_note(opened: OpenedModel, text: TokenizedText) -> list[str]:
    """Return a note that names the words outside the vocabulary, if there are any."""
    words = _unknown_words(opened, text)
    return [f"Not in the model's vocabulary, so read as the unknown word: {', '.join(words)}."] if words else []


def within_size(groups: Sequence[list[PageSentence]], omissions: list[str]) -> list[PageSentence]:
    """Return the sentences for which there is room, in order; a group is selected or left out as a whole."""
    # A later group may fit where an earlier, larger one did not.
    selected: list[PageSentence] = []
    n_omitted = 0
    room = MAX_SENTENCE_CHARACTERS
    for group in groups:
        size = sum(len(sentence.weights) for sentence in group)
        if size <= room:
            room -= size
            selected += group
        else:
            n_omitted += len(group)
    if n_omitted:
        omissions.append(f"{n_omitted} sentences: the page holds {MAX_SENTENCE_CHARACTERS:,} characters of weights.")
    return selected


# Training


def training_content(metrics: Metrics, results: ProbeResults | None) -> dict[str, Any] | None:
    """Return the curves of training; None without a validation loss. `results` name heads that get curves too."""
    # A loss that is not finite is None: training diverged there.
    losses = [record for record in metrics.validation if record.loss is not None]
    if not losses:
        return None

    # Questions that every evaluation has tested
    curves = {}
    for question in DESCRIPTIONS:
        points = [point.questions[question] for point in metrics.probe if question in point.questions]
        if points and len(points) == len(metrics.probe):
            curves[question] = _head_curves(points)
    return {
        "steps": [point.step for point in metrics.probe],
        "curves": curves,
        "next_pronoun": _next_pronoun_curves(metrics.probe, results) if results else [],
        "loss": {
            "steps": [record.step for record in losses],
            "validation": [record.loss for record in losses],
            "floor": _complete([record.floor for record in losses]),
        },
    }


def _complete(values: list[float | None]) -> list[float | None] | None:
    """Return a curve, None if it lacks a value."""
    return None if None in values else values


def _head_curves(points: Sequence[QuestionPoint]) -> dict[str, Any]:
    """Return the curves of one question: scores of all heads [S][L][H]; chance level, resolved share, answers [S]."""
    return {
        "accuracy": [point.accuracy_heads for point in points],
        "pronoun_contrast": [point.pronoun_contrast_heads for point in points],
        "chance_level": [point.chance_level for point in points],
        "resolved_share": _complete([point.resolved_share for point in points]),
        "answer_accuracy": _complete([point.answer_accuracy for point in points]),
    }


def _next_pronoun_curves(probes: Sequence[ProbePoint], results: ProbeResults) -> list[dict[str, Any]]:
    """Return the share that each head exchanges [S][L][H], how often the model follows the twin [S], its margin [S]."""
    curves = []
    for result in results.next_pronoun:
        points = [point.next_pronoun[result.question] for point in probes if result.question in point.next_pronoun]
        if points and len(points) == len(probes):
            curves.append({
                "question": result.name,
                "layer": result.layer,
                "head": result.head,
                "share": [point.share_heads for point in points],
                "follows_twin": [point.follows_twin for point in points],
                "margin": [point.margin for point in points],
            })  # fmt: skip
    return curves
