"""Export a trained run for transformers: `python -m model.export run=DIR to=hf`."""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer

from data.errors import printable
from data.tokenizer import end_id
from model.hf import check_is_llama, export_transformers
from model.transformer import Transformer, n_parameters


class Format(StrEnum):
    """Formats of an export."""

    hf = "hf"  # a folder for from_pretrained of transformers


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSettings:
    """Write a trained model in another format.

    python -m model.export to=hf [NAME=VALUE ...]

    to   hf: a folder for transformers, TransformerLens, lm-eval
    run  directory of the run (default: the newest)
    out  new folder (default: export/hf in the run)
    """

    to: Format
    run: str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if transformers is missing."""
        if find_spec("transformers") is None:
            raise ValueError(f"to={self.to}: needs transformers; pip install '.[export]'")


def model_card(model: Transformer, training: str, claims: str | None) -> str:
    """Returns README.md of an exported model; `training` names data and steps, `claims` is Markdown from the probe."""
    config = model.config
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [antecedent]
---

# A Llama of {n_parameters(model):,} parameters, trained by Antecedent

{config.n_layer} layers of {config.n_head} heads, width {config.d_model}, context {config.context_length}, vocabulary
{model.vocab_size:,}. Training: {training}. The model was trained with a beginning-of-text token before every text; the
tokenizer does not add it.

## Which heads resolve pronouns

{claims or "Not probed: nothing is claimed about any head."}
"""


def read_claims(run: Path, step: int) -> str | None:
    """Returns claims.md of the run's probe, or None if there is no probe of the checkpoint of this `step`."""
    try:
        probed_step = json.loads((run / "probe" / "probe.json").read_text())["model"]["step"]
        return (run / "probe" / "claims.md").read_text().strip() if probed_step == step else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def main(arguments: Sequence[str]) -> None:
    """Exports a run; everything is written to a temporary folder and renamed."""
    # A command line needs training and probe, which are above the package `model`.
    from antecedent_lab.opened import open_run
    from training.command_line import one_line_errors
    from training.run_dir import find_run
    from training.settings import settings_from_arguments

    with one_line_errors():
        settings = settings_from_arguments(ExportSettings, arguments)
        run = find_run(settings.run)
        out = Path(settings.out or run / "export" / settings.to)
        if out.exists() or out.is_symlink():
            raise FileExistsError(f"out={out}: already exists; choose another name")
        opened = open_run(run, torch.device("cpu"))
        check_is_llama(opened.transformer.config)
        tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export.", dir=out.parent) as temporary:
            path = Path(temporary, "export")
            training = f"data={opened.settings.data.source}, step {opened.step}"
            card = model_card(opened.transformer, training, read_claims(run, opened.step))
            export_transformers(opened.transformer, path, end_id(tokenizer), tokenizer)
            (path / "README.md").write_text(card, encoding="utf-8")
            path.rename(out)
        print(printable(f"wrote {out}"))


if __name__ == "__main__":
    main(sys.argv[1:])
