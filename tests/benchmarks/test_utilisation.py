"""The share of the ceiling is that of steps really taken, and its worst repeat is judged."""

import pytest
import torch

from benchmarks import utilisation


def test_the_worst_repeat_decides() -> None:
    row = utilisation.judged([55.0, 61.0], [2e11, 2.2e11], "bfloat16")
    assert row.met and not row.aim_met and "GFLOP/s" in row.note
    assert not utilisation.judged([39.9, 61.0], [2e11, 2.2e11], "bfloat16").met
    assert utilisation.judged([60.0, 61.0], [2e11, 2.2e11], "bfloat16").aim_met


def test_the_share_is_the_steps_flops_over_the_higher_ceiling_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, ceilings = torch.get_num_threads(), iter([4e11, 5e11])
    monkeypatch.setattr(utilisation, "matmul_ceiling", lambda device, bfloat16: next(ceilings))
    monkeypatch.setattr(utilisation, "made", lambda: (None, 1e6))
    monkeypatch.setattr(utilisation, "stepped", lambda training, n_steps: n_steps / 50)
    try:
        (row,) = utilisation.rows({"quick": "true"})
    finally:
        torch.set_num_threads(threads)
    assert row.ours == [pytest.approx(100 * 50 * utilisation._TOKENS * 1e6 / 5e11)]
