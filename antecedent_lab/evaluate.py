"""What eval.py does: choose the mode that the settings select, open the model, and call it."""

from dataclasses import replace
from pathlib import Path

import torch

from antecedent_lab.commands import ask_own_question, look_at_sentence, print_loss, probe_heads, test_on_text
from antecedent_lab.eval_settings import STORIES, EvalSettings
from antecedent_lab.opened import load_data, open_external, open_run
from antecedent_lab.saved import PAGE, read_metrics, show_page
from antecedent_lab.sweeps import compare_seeds, compare_variants
from antecedent_lab.two_models import print_comparison
from data.errors import UserError, printable
from data.own_items import load_own_question
from probe.config import ProbeConfig
from probe.opened_model import OpenedModel, OpenedRun
from training.device import choose_device
from training.run_dir import find_run
from training.settings import Precision, compose_settings


def evaluate(settings: EvalSettings, probe: ProbeConfig) -> None:
    """Run the mode that the settings select."""
    if settings.runs is not None:
        compare_seeds(settings, probe)
    elif settings.compare is not None:
        compare_variants(settings, probe, compose_settings())
    else:
        _evaluate_model(_open(settings), settings, probe)


def _open(settings: EvalSettings) -> OpenedModel:
    """Open the model that the settings name, and print its name, step and device."""
    device = choose_device(settings.device, Precision.float32, settings.threads)
    opened: OpenedModel
    if settings.model is not None:
        opened = _open_external(settings.model, settings, device.device)
        line = f"model {opened.source} ({opened.model_type}); results in {opened.folder}"
    else:
        opened = open_run(find_run(settings.run), device.device)
        line = f"run {opened.folder}, best checkpoint: step {opened.step} of {opened.max_steps}"
    print(printable(f"{line}; {device.description}"), flush=True)
    return opened


def _open_external(name: str, settings: EvalSettings, device: torch.device) -> OpenedModel:
    stories = compose_settings().data if settings.items == STORIES else None
    return open_external(name, settings.out, stories, device, settings.tokenizer)


def _open_before(name: str, settings: EvalSettings, device: torch.device) -> OpenedModel:
    """Open the model of before=, a run of train.py or an external model, and print its name."""
    opened: OpenedModel
    if (Path(name) / "checkpoints").is_dir():
        opened = open_run(Path(name), device)
    else:
        try:
            opened = _open_external(name, replace(settings, out=None), device)
        except UserError as error:
            raise UserError(str(error).replace("model=", "before=", 1)) from None
    print(printable(f"compared with {opened.source}"), flush=True)
    return opened


def _evaluate_model(opened: OpenedModel, settings: EvalSettings, probe: ProbeConfig) -> None:
    """Show a sentence, or test the heads; for a non-causal model only measure the loss."""
    if isinstance(opened, OpenedRun) and not opened.is_causal:
        if settings.text or settings.path:
            raise UserError("run=: with model.mask=none a word sees the next one, so only the loss can be measured")
        print_loss(opened, load_data(opened, settings.cache_dir), read_metrics(opened), probe)
        return
    if settings.before is not None:
        before = _open_before(settings.before, settings, opened.model.device)
        own = load_own_question(Path(str(settings.items))) if settings.has_own_items else None
        print_comparison(before, opened, own, probe, settings.cache_dir, all_rows=settings.verbose)
        return
    if settings.has_own_items:
        ask_own_question(opened, str(settings.items), settings, probe)
        return
    if settings.path is not None:
        test_on_text(opened, settings.path, probe)
        return
    if settings.text is not None:
        has_page = look_at_sentence(opened, settings.text, settings.live, all_heads=settings.verbose)
    else:
        has_page = probe_heads(opened, settings, probe)
    if has_page:
        show_page(
            opened.folder / "probe" / PAGE,
            in_browser=settings.open,
            sentence="yours-1" if settings.text is not None else "",
        )
