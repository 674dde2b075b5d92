"""The probe from Python: `probe_model` returns what eval.py prints and writes, for any model (docs/usage.md)."""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch

from antecedent_lab.arrays import head_test  # noqa: F401 (a public name)
from antecedent_lab.eval_settings import Machine
from antecedent_lab.notebook import Html, sentence_view
from antecedent_lab.progress import stages
from antecedent_lab.sources import source_of
from extras.compare.difference import difference
from extras.others.loading import module_of, open_external, open_loaded
from extras.others.own_model import OwnModel  # noqa: F401 (a public name)
from extras.page.content import page_content
from extras.page.live import read_history
from extras.page.page import page
from extras.page.train.saved import run_of
from extras.page.train.stories import training_of
from extras.paper.paper import FIGURES, figures_svg, table_csv, table_tex
from model.edits import cut_link, exchange_links, remove_head  # noqa: F401 (public names)
from model.observe import HeadEdit, only_layers  # noqa: F401 (HeadEdit is a public name)
from probe.claim import claim_of
from probe.config import ProbeConfig
from probe.elsewhere import elsewhere
from probe.opened_model import BATCH_TOKENS, OpenedModel
from probe.opened_run import open_run
from probe.questions import QUESTIONS
from probe.results import Estimate, Finding, ProbeResults, TestedModel
from probe.saved import PAGE, read_metrics
from probe.source import Source, check_items
from probe.study import askable, study
from probe.tables import claims_markdown, origin_line, summary_lines
from settings.errors import UserError
from settings.files import now, write_files
from settings.train import Device, Precision, compose_settings, to_settings
from settings.typed_json import json_text
from training.device import choose_device
from training.metrics import load_metrics  # noqa: F401 (a public name)
from training.run_dir import environment

LARGE_MODEL = 50_000_000  # parameters; every pass of such a model is slow on a CPU
MAX_UNTRAINED_LARGE = 2  # models, so that a study takes minutes
LINE_LENGTH = 110  # sentences on a terminal are wrapped at this many characters


@dataclass(frozen=True, repr=False)
class ProbedModel:
    """The results of the probe for a model."""

    opened: OpenedModel
    results: ProbeResults  # the content of probe.json (docs/probe.md)
    cache_dir: str  # with the stories of the run, for its page

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """The finding of each question, by its name."""
        return {finding.question: finding for finding in self.results.findings}

    def table(self) -> list[dict[str, Any]]:
        """Return one row per question, for `pandas.DataFrame`: every value, and the ends of its interval."""
        rows = []
        for finding in self.results.findings:
            judged = finding.judged
            row: dict[str, Any] = {
                "question": finding.question,
                "layer": finding.place.layer,
                "head": finding.place.head,
                "verdict": finding.verdict,
                "level": judged.level,
                "unit": finding.unit,
                "n": finding.n,
            }
            for name, estimate in judged.values.items():
                row[name] = estimate.value
                if estimate.low is not None:
                    row |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
            rows.append(row | {"claim": claim_of(finding, self.results.model)})
        return rows

    def lines(self, *, verbose: bool = False) -> list[str]:
        """Return the lines that eval.py prints."""
        lines = summary_lines(self.results, verbose)
        if verbose:
            lines.append("")
            for line in claims_markdown(self.results, verbose).splitlines():
                lines += [line] if line.startswith("|") else wrap(line, LINE_LENGTH) or [""]
        if verbose or not self.results.findings:
            lines += [f"not tested: {problem}" for problem in self.results.missing]
        return lines + [f"note: {warning}" for warning in self.results.warnings]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__  # for a console

    def page(self, texts: Sequence[str] = (), *, live: bool | None = None) -> str:
        """Return the report as HTML; arguments as `save`."""
        training = training_of(self.opened, self.cache_dir)
        history = read_history(self.opened)
        return page(page_content(self.opened, self.results, history, texts, live=live, training=training))

    def _repr_html_(self) -> str:
        """Return the report in a frame, which a notebook shows; its script cannot reach the notebook."""
        return Html(self.page())._repr_html_()

    def save(
        self, folder: str | Path, texts: Sequence[str] = (), *, live: bool | None = None, figures: bool = False
    ) -> Path:
        """Write probe.json, the report and the other files of eval.py to `folder`, all or none; return the report.

        `texts` are sentences that the report also shows; the model reads them now. `live`: whether the report has the
        model itself, to type sentences into (None: if it has at most a million weights). `figures`: also write
        figures/*.svg; without it those of earlier results are deleted.
        """
        # All files are made before the first is written.
        results = self.results
        files = {
            "probe.json": json_text(results),
            "claims.md": f"{origin_line(results.environment)}\n\n{claims_markdown(results)}",
            "table.csv": table_csv(results),
            "table.tex": table_tex(results),
            PAGE: self.page(texts, live=live),
        }
        if figures:
            files |= figures_svg(results, read_metrics(self.opened))
        write_files(Path(folder), files, "probe.json")
        for name in {*FIGURES} - files.keys():
            Path(folder, name).unlink(missing_ok=True)
        return Path(folder, PAGE)


def open_model(
    model: Any,
    *,
    stories: bool = False,
    tokenizer: Any = None,
    out: str | None = None,
    checkpoint: str | int = "best",
    device: object = Device.auto,  # or its name, or a torch.device
    threads: int | None = None,
    setting: str = "model",
) -> OpenedModel:
    """Open a run of train.py, a model of transformers or a model of your own.

    `model` is the directory of a run, a .safetensors that a page has saved, which becomes one, a folder written by
    save_pretrained, a name on the hub, a loaded model of transformers in float32, which is switched to our
    attention, or an object with the passes of `ObservableModel`, such as an `OwnModel`. `tokenizer`: a file, folder
    or hub name (docs/usage.md), or a loaded one of transformers or tokenizers; if None, that of the model's folder.
    `stories`: test a model that is no run on the stories, not on the next pronoun in English text. `out`: the
    folder of eval.py's results. `checkpoint` of a run: "best", "last" or the step of one that was kept. `setting`
    is the name of `model` in messages. A loaded model stays on its device. Raises UserError or OSError with one
    line.
    """
    machine = to_settings(Machine, {"device": getattr(device, "type", device), "threads": threads})
    is_loaded = not isinstance(model, str | Path)
    if not is_loaded and Path(model).suffix.lower() == ".safetensors":
        model = run_of(Path(model))
    is_run = not is_loaded and (Path(model) / "checkpoints").is_dir()
    named = f"{setting}={model if not is_loaded else type(model).__name__}"
    if is_run and (stories or tokenizer is not None or out is not None):
        raise UserError(f"{named}: is a run of train.py, which has its own sentences, tokenizer and folder")
    if setting == "run" and not is_run:
        raise UserError(f"{named}: is no run of train.py, which has a folder checkpoints")
    if checkpoint != "best" and not is_run:
        raise UserError(f"checkpoint={checkpoint}: only for a run of train.py")

    torch_device = choose_device(machine.device, Precision.float32, machine.threads).device
    data = compose_settings().data if stories else None
    if is_run:
        opened = open_run(Path(model), torch_device, str(checkpoint))
    elif is_loaded:
        opened = open_loaded(model, out, data, tokenizer)
    else:
        opened = open_external(str(model), out, data, torch_device, tokenizer, setting)
    return replace(opened, view=sentence_view)


def probe_model(
    model: Any, *, path: str | None = None, items: str | None = None, cache_dir: str = ".cache", **settings: Any
) -> ProbedModel:
    """Test every head of a model, with baselines, corrected statistics and causal tests; write no results.

    `model` is what `open_model` returns or takes. `path` names English text (docs/english.md); a run on text uses its
    validation text. `items` is a file with a question of the user's own (docs/probe.md). `settings` are those of the
    group probe in configs/eval/eval.yaml, for example `n_untrained=10`. Raises UserError or OSError with one line.
    """
    if items and path:
        raise UserError(f"path={path}: cannot be combined with items=")
    config = to_settings(ProbeConfig, settings, "probe.")
    opened = _opened(model)
    source = source_of(opened, config, cache_dir, path, items)
    return probe_source(opened, source, affordable(config, opened), cache_dir)


def _opened(model: Any) -> OpenedModel:
    return model if isinstance(model, OpenedModel) else open_model(model)


def probe_source(opened: OpenedModel, source: Source, config: ProbeConfig, cache_dir: str) -> ProbedModel:
    """Test the heads of an opened model on the questions of a source; UserError if the user's text allows none."""
    log = print if opened.n_parameters > LARGE_MODEL else None
    with stages(f"testing {source.name or 'heads'}", log) as show:
        studied = study(
            opened.model,
            opened.untrained,
            source.items,
            source.questions,
            config,
            source.documents,
            show,
            opened.decode,
        )
    if source.name and not studied.findings:
        raise UserError(f"too little to test: {'; '.join(studied.missing)}")

    warnings = [*opened.began, *source.warnings]
    if _is_slow(opened):
        warnings.append(f"Untrained models, on a CPU with a model of this size: at most {MAX_UNTRAINED_LARGE}.")
    findings = []
    with stages("examples, and what heads do elsewhere", log) as show:
        for number, finding in enumerate(studied.findings):
            show(finding.question, number / len(studied.findings))
            findings.append(_seen_elsewhere(opened, _with_examples(opened, finding), source, config))
    studied = replace(studied, findings=findings)
    return ProbedModel(opened, _results(opened, source, config, warnings=warnings, **vars(studied)), cache_dir)


def compare_models(
    before: Any, after: Any, *, items: str | None = None, cache_dir: str = ".cache", **settings: Any
) -> ProbeResults:
    """Compare two models of one shape and tokenizer, item by item, with paired tests; the result has `changes`.

    The items are those that `probe_model` would test `after` on; arguments are as there. Raises UserError for models of
    other shapes or tokens, or unread items.
    """
    before = _opened(before)
    after = _opened(after)
    _check_comparable(before, after)
    config = affordable(to_settings(ProbeConfig, settings, "probe."), after)
    source = source_of(after, config, cache_dir, None, items)
    questions, missing = askable(source.questions, source.items)
    if not questions:
        raise UserError(f"no question can be asked: {'; '.join(missing)}")
    check_items(before, source.items)
    for pair in source.items.pairs:
        for text, cell in zip(pair.texts, pair.cells, strict=True):
            if before.encode(text)[: len(cell.tokens)] != cell.tokens:
                problem = f"reads the sentences as other tokens than {after.source}"
                raise UserError(f"before={before.source}: {problem}; items are compared one by one")

    changes = []
    with stages("two models", print if after.n_parameters > LARGE_MODEL else None) as show:
        for number, question in enumerate(questions):
            show(question.name, number / len(questions))
            changes += difference(before.model, after.model, source.items, question, config)
    facts = {"before": _tested(before), "warnings": source.warnings, "missing": missing, "changes": changes}
    return _results(after, source, config, **facts)


def _results(opened: OpenedModel, source: Source, config: ProbeConfig, **found: Any) -> ProbeResults:
    """Return the content of a file of results, with what they are made with now; `found` are further fields."""
    made_with = environment(opened.model.device.type, torch.get_num_threads())
    made_with |= {"date": now(), "command": shlex.join(sys.orig_argv)}
    results = ProbeResults(model=_tested(opened), settings=config, data=source.data, environment=made_with, **found)
    return results.rounded()


def _tested(opened: OpenedModel) -> TestedModel:
    trained_on = opened.settings.data.source if opened.settings else None
    return TestedModel(opened.source, opened.step, trained_on, dict(opened.shape))


def affordable(config: ProbeConfig, opened: OpenedModel) -> ProbeConfig:
    """Return the settings of the probe, for a large model on a CPU with limits: it would take hours."""
    if not _is_slow(opened):
        return config
    return replace(
        config,
        tokens_per_batch=min(config.tokens_per_batch, BATCH_TOKENS),
        n_untrained=min(config.n_untrained, MAX_UNTRAINED_LARGE),
    )


def _is_slow(opened: OpenedModel) -> bool:
    return opened.n_parameters > LARGE_MODEL and opened.model.device.type == "cpu"


def _with_examples(opened: OpenedModel, finding: Finding) -> Finding:
    """Return a finding with its worked examples, measured at the head that was chosen for it."""
    question = QUESTIONS.get(finding.question)
    if question is None or finding.file is not None:
        return finding
    examples = [opened.measure_example(example, finding.place) for example in question.examples]
    return replace(finding, examples=[*examples, *finding.examples])


def _seen_elsewhere(opened: OpenedModel, finding: Finding, source: Source, config: ProbeConfig) -> Finding:
    """Return a finding with what its judged heads do in running text."""
    seen = elsewhere(opened.model, source.running, finding, config.tokens_per_batch, opened.decode_all)
    if seen is not None:
        finding.judged.values["link_share"] = Estimate(seen.n_link / seen.n_strong)
    return replace(finding, elsewhere=seen)


def _check_comparable(before: OpenedModel, after: OpenedModel) -> None:
    models = (before.model, after.model)
    old, new = (f"{model.n_layer} layers of {model.n_head} heads{only_layers(model)}" for model in models)
    if old != new:
        raise UserError(f"before={before.source}: has {old}, {after.source} has {new}; heads are compared one by one")
    weights = weights_of(before)
    if weights and weights == weights_of(after):
        raise UserError(f"before={before.source}: has the weights of {after.source}, so that nothing can differ")


def weights_of(opened: OpenedModel) -> Counter[str]:
    """Return a checksum of each matrix of a model in float32, whatever their order; empty if they are not known."""
    module: Any = module_of(opened.model)
    if module is None:
        return Counter()
    return Counter(sha256(weight.detach().cpu().numpy().tobytes()).hexdigest() for weight in module.parameters())
