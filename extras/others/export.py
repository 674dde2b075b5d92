"""Export a trained run for transformers: `antecedent-lab export run=DIR`, in a checkout `python -m antecedent_lab`."""

import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from extras.others.llama import check_is_llama, export_transformers
from probe.opened_run import open_run
from probe.saved import read_results
from probe.tables import claims_markdown
from settings.command_line import one_line_errors
from settings.errors import UserError, extra, printable
from settings.train import settings_from_arguments
from training.run_dir import find_run


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Write a trained model as a folder for transformers, TransformerLens and lm-eval.

    antecedent-lab export [NAME=VALUE ...]

    run         directory of the run (default: the newest)
    checkpoint  best (default), last, or the step of one that was kept
    out         new folder (default: export/hf in the run)
    """

    run: str | None = None
    checkpoint: str = "best"
    out: str | None = None

    def __post_init__(self) -> None:
        if find_spec("transformers") is None:
            raise UserError(f"export: needs transformers; pip install {extra('export')}")


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
            path.rename(out)
        print(printable(f"wrote {out}"))
