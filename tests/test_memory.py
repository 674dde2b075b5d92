"""What does not fit the machine is refused in one line, before it is tried; what fits is not."""

from dataclasses import replace

import pytest
from hydra import compose, initialize_config_dir

from model.transformer import Transformer, n_parameters
from tests.test_configs import CHOICES, CONFIGS, NEED_PATH
from training.memory import check_data_memory, check_model_memory, check_training_memory, machine_memory, want_of_memory
from training.settings import TrainSettings, typed_train

GROUPS = [choice for choice in CHOICES if choice.startswith(("model=", "variant="))]


def train(*overrides: str) -> TrainSettings:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return typed_train(compose("train", [*overrides]))


@pytest.mark.parametrize("choice", GROUPS)
def test_parameters_are_counted_as_they_are_built(choice: str) -> None:
    config = train(choice).model
    if "base" not in choice:  # 27 M
        assert config.n_parameters(307) == n_parameters(Transformer(config, 307, seed=0))


def test_what_the_shipped_files_ask_for_is_not_refused() -> None:
    needs = {"data=hub": ["data.name=own/name"]} | {one: ["data.path=x.txt"] for one in NEED_PATH}
    for choice in CHOICES:
        settings = train(choice, *needs.get(choice, []))
        check_data_memory(settings)
        check_model_memory(settings.model, 4096)
        check_training_memory(settings, 4096, 10**7, on_cpu=True)


@pytest.mark.parametrize(
    "overrides, most",
    [
        (["model.d_model=1000000"], "gradients and optimizer"),
        (["model.n_layer=1000000000"], "weights"),
        (["model.context_length=1000000000000"], "activations"),
        (["tokens_per_batch=1000000000000", "data=text", "data.path=x"], "logits"),
        (["gradient_accumulation_steps=1000000000000"], "batches"),
    ],
)
def test_what_a_step_needs_beyond_the_machine_is_said_with_its_numbers(overrides: list[str], most: str) -> None:
    with pytest.raises(ValueError, match=r"needs at least [\d,.]+ GB of memory .* this machine has") as error:
        check_training_memory(train(*overrides), 50_000, 10**6, on_cpu=True)
    assert f"GB for {most}" in str(error.value) and "\n" not in str(error.value)


def test_stories_are_no_more_than_one_epoch_a_batch() -> None:
    check_training_memory(train("tokens_per_batch=1000000000000"), 400, 10**5, on_cpu=True)


def test_the_memory_of_a_gpu_speaks_for_itself() -> None:
    settings = train("tokens_per_batch=100000000", "data=text", "data.path=x")
    check_training_memory(settings, 4096, 10**6, on_cpu=False)
    with pytest.raises(ValueError, match="activations"):
        check_training_memory(settings, 4096, 10**6, on_cpu=True)


@pytest.mark.parametrize("name", ["n_train_stories", "n_validation_stories", "n_test_pairs"])
def test_more_stories_than_the_machine_holds_are_refused(name: str) -> None:
    settings = train()
    with pytest.raises(ValueError, match="GB for stories"):
        check_data_memory(replace(settings, data=replace(settings.data, **{name: 10**12})))


def test_a_want_of_memory_is_told_from_other_errors_by_its_words() -> None:
    import numpy as np
    import torch

    for make in (lambda: torch.zeros(10**15), lambda: np.zeros(10**16)):
        with pytest.raises((RuntimeError, MemoryError)) as error:
            make()
        said = want_of_memory(error.value)
        assert said and "too little memory" in said and "\n" not in said and ("GB" in said or "PiB" in said)
    assert want_of_memory(MemoryError("half of it")) == "half of it"
    assert want_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert machine_memory() > 10**8
