"""Export a trained run for transformers: `antecedent-lab export run=DIR`, in a checkout `python -m antecedent_lab`."""

import math
import re
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from data.text import SHIPPED_TRAINING_TEXT
from extras.others.llama import check_is_llama, export_transformers
from probe.opened_run import open_run
from probe.results import ProbeResults
from probe.saved import read_results
from probe.tables import claims_markdown
from settings.command_line import one_line_errors
from settings.data import HubConfig, TextConfig
from settings.errors import UserError, extra, one_line, printable
from settings.train import CONFIGS, TrainSettings, settings_from_arguments
from training.run_dir import find_run


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Write a trained model as a folder for transformers, TransformerLens and lm-eval.

    antecedent-lab export [NAME=VALUE ...]

    run         directory of the run (default: the newest)
    checkpoint  best (default), last, or the step of one that was kept
    out         new folder (default: export/hf in the run)
    push        also upload it to the Hugging Face hub, as OWNER/NAME (first: hf auth login)
    """

    run: str | None = None
    checkpoint: str = "best"
    out: str | None = None
    push: str | None = None

    def __post_init__(self) -> None:
        if find_spec("transformers") is None:
            raise UserError(f"export: needs transformers; pip install {extra('export')}")
        if self.push is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", self.push):
            raise UserError(f"push={self.push}: must be OWNER/NAME")


def command() -> None:
    """Export a run; everything is written to a temporary folder and renamed."""
    with one_line_errors():
        settings = settings_from_arguments(ExportSettings, sys.argv[1:])
        run = find_run(settings.run)
        out = Path(settings.out or run / "export" / "hf")
        if out.exists() or out.is_symlink():
            raise FileExistsError(f"out={out}: already exists; choose another name")
        opened = open_run(run, torch.device("cpu"), settings.checkpoint)
        assert opened.settings and opened.transformer is not None  # those of a run
        check_is_llama(opened.settings.model)
        results, _ = read_results(opened)
        claims = claims_markdown(results) if results else ""
        template = Path(__file__).with_name("model_card.txt").read_text(encoding="utf-8")
        card = template.format(
            facts=card_facts(opened.name, opened.settings, results),
            n_weights=opened.n_parameters,
            model=opened.transformer,
            training=f"data={opened.settings.data.source}, step {opened.step}",
            claims=claims.strip() or "Not probed: nothing is claimed about any head.",
        )

        # A reader never sees half an export.
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export.", dir=out.parent) as temporary:
            path = Path(temporary, "export")
            export_transformers(opened.transformer, path, opened.bos_id, opened.tokenizer)
            (path / "README.md").write_text(card, encoding="utf-8")
            if settings.push:  # before the folder has its name, so that the same command can be tried again
                print(printable(f"pushed {upload(path, settings.push)}"))
            path.rename(out)
        print(printable(f"wrote {out}"))


def card_facts(name: str, settings: TrainSettings, results: ProbeResults | None) -> str:
    """Return the YAML that the hub reads from a card: what is known of the training texts, and a test's results."""
    from huggingface_hub import EvalResult, ModelCardData

    # Only the stories are ours, and only of a model that began with them is the licence known.
    data = settings.data
    facts: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["antecedent"]}
    if data.source == "stories":
        facts["language"] = "en"
        if settings.run.init is None:
            facts["license"] = "apache-2.0"
    elif isinstance(data, TextConfig) and CONFIGS.parent / data.path == SHIPPED_TRAINING_TEXT:
        facts |= {"language": "en", "datasets": "roneneldan/TinyStories"}
    elif isinstance(data, HubConfig) and not Path(data.name).is_dir():
        facts["datasets"] = data.name

    # Of the judged head, or set of heads, of each question
    scores = []
    for finding in results.findings if results else ():
        score = partial(
            EvalResult, "text-generation", "antecedent", finding.description, dataset_config=finding.question
        )
        for metric in ("accuracy", "swap"):
            if not math.isnan(value := finding.judged.value(metric)):
                scores.append(score(metric, value))
        scores.append(score("verdict", finding.verdict))
    if scores:
        facts |= {"model_name": name, "eval_results": scores}
    return ModelCardData(**facts).to_yaml()


def upload(folder: Path, name: str) -> str:
    """Upload an export to the hub as OWNER/NAME and return its address; UserError if the hub does not take it."""
    from huggingface_hub import HfApi

    try:
        address = HfApi().create_repo(name, exist_ok=True)
        HfApi().upload_folder(repo_id=name, folder_path=folder)
    except Exception as error:  # no network, no token: the type depends on the HTTP library
        raise UserError(f"push={name}: not uploaded ({one_line(error)})") from None
    return str(address)
