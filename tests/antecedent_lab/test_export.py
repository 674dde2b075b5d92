"""antecedent_lab/export.py: the command, its card and its refusals."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from antecedent_lab.export import ExportSettings
from data.tokenizer import END
from tests.program import Result, run_program

transformers = pytest.importorskip("transformers")


def export(*arguments: str, cwd: Path = Path()) -> Result:
    return run_program("antecedent_lab/__main__.py", "export", *arguments, cwd=cwd.resolve())


def test_an_exported_run_opens_in_transformers_with_the_same_weights_and_tokens_and_a_card(run: Path) -> None:
    assert export(f"run={run}").status == 0
    folder = run / "export" / "hf"
    llama = transformers.AutoModelForCausalLM.from_pretrained(folder)
    [checkpoint] = [torch.load(path, weights_only=True) for path in (run / "checkpoints").glob("*4.pt")]
    torch.testing.assert_close(llama.get_output_embeddings().weight, checkpoint["model"]["token_embedding.weight"])
    exported, text = transformers.AutoTokenizer.from_pretrained(folder), "The cat sat. It purred"
    assert exported(text)["input_ids"] == Tokenizer.from_file(str(run / "tokenizer.json")).encode(text).ids
    assert exported.bos_token == exported.eos_token == exported.pad_token == END
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers")
    assert "1 layers of 2 heads" in card and "data=stories, step 4" in card and "Not probed" in card


@pytest.mark.parametrize("argument", ["outt=a", "run=nowhere", "out=run/config.json", "out=run/config.json/new"])
def test_an_export_that_is_not_possible_is_one_line_and_writes_nothing(run: Path, argument: str) -> None:
    before = set(run.parent.rglob("*"))
    named = argument.replace("out=run/config.json/new", "run/config.json")  # the file that is in the way
    assert named in export("run=run", argument, cwd=run.parent).error
    assert before == set(run.parent.rglob("*"))


def test_help_lists_every_setting() -> None:
    result = export("--help")
    assert result.status == 0
    assert ExportSettings.__dataclass_fields__.keys() <= set(result.out.split())
