"""Checkpoints: whole or not there, whatever happens while they are written and to what was written."""

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.reliability import faults
from tests.reliability.counts import counted
from tests.reliability.doors import Ended
from tests.reliability.runs import EVERY, STEPS, differences, digest, saved_step
from training.checkpoint import load_checkpoint, read_manifest

Figure = Callable[[str, str, str, bool], None]
Resume = Callable[..., Ended]
N_FLIPS, N_TRUNCATIONS = 200, 20


def points(broken: Callable[[str], Path], resume: Resume, folder: Path) -> list[str]:
    """Return what a run that is resumed once more, and saves once, does to the files of its checkpoints."""
    log = folder / "points"
    assert resume(broken("counted"), before=partial(faults.leave_at, -1, log)).status == 0
    return log.read_text().splitlines()


def test_a_file_is_on_the_disk_before_it_takes_its_name_and_its_name_before_anything_is_deleted(
    broken: Callable[[str], Path], resume: Resume, tmp_path: Path
) -> None:
    done = points(broken, resume, tmp_path)
    verbs = [line.split()[0] for line in done]
    renames = [i for i, verb in enumerate(verbs) if verb == "rename"]
    assert len(renames) >= 2  # a checkpoint, and what names it
    for i in renames:
        assert verbs[i - 4 : i] == ["create", "write", "write", "sync"] and done[i + 1] == "sync folder"
        assert done[i - 4].split()[1] != done[i].split()[1]  # it is made beside
    assert done[renames[-1]].startswith("rename manifest")
    saved = next(i for i in renames if done[i].endswith(f"step_{STEPS:08}.pt"))
    assert all(i > renames[-1] for i, line in enumerate(done) if i > saved and line.startswith("unlink step_"))


@pytest.mark.slow
def test_a_process_that_leaves_at_any_point_of_saving_goes_on_exactly(
    unbroken: Path, broken: Callable[[str], Path], resume: Resume, tmp_path: Path, full: bool, figure: Figure
) -> None:
    done = points(broken, resume, tmp_path)
    chosen = range(len(done)) if full else sorted(random.Random(0).sample(range(len(done)), 4))
    exact = 0
    for point in chosen:
        run = broken(str(point))
        left = resume(run, before=partial(faults.leave_at, point, tmp_path / "log"))
        assert left.status == faults.LEFT, (done[point], left.err)
        assert saved_step(run) in (STEPS - EVERY, STEPS)
        ended = resume(run)
        assert ended.status == 0, (done[point], ended.err)
        found = differences(run, unbroken)
        assert not found, (done[point], found)
        exact += not found
        shutil.rmtree(run)
    figure(
        f"os._exit at {'every point' if full else 'points drawn from those'} inside saving",
        f"{counted(len(chosen), len(done))} points, all resume bit for bit; 6 points or more there are",
        f"{exact} of {len(chosen)} resume bit for bit; {len(done)} points there are: files made, half written, synced, "
        "renamed…",
        exact == len(chosen) and len(done) >= 6,
    )


def harm(content: bytes, lot: random.Random, *, flip: bool) -> bytes:
    """Return the content with one bit flipped, or cut off somewhere."""
    if not flip:
        return content[: lot.randrange(len(content))]
    place = lot.randrange(8 * len(content))
    harmed = bytearray(content)
    harmed[place // 8] ^= 1 << place % 8
    return bytes(harmed)


def test_a_flipped_bit_or_a_cut_is_found_out_and_the_newest_whole_checkpoint_is_loaded(
    unbroken: Path, tmp_path: Path, figure: Figure
) -> None:
    """Half of all in the newest checkpoint, the rest over the one before, the best and the manifest.

    A checkpoint is read only where no better one is whole, so the newest is cut as well where the one before is harmed,
    and the best is asked for where it is.
    """
    folder, lot = Path(shutil.copytree(unbroken / "checkpoints", tmp_path / "checkpoints")), random.Random(0)
    entries = read_manifest(folder)
    oldest, before, newest = (folder / one["file"] for one in entries)
    assert entries[0]["best"] and not entries[-1]["best"]  # a run whose best is neither of the newest two
    whole = {one["step"]: digest(load_alone(folder, one, tmp_path / "alone")) for one in entries}
    first, second, last = (one["step"] for one in entries)
    manifest = folder / "manifest.json"
    files = {
        newest: (False, second),
        before: (False, first),
        oldest: (True, last),
        manifest: (False, last),
    }
    detected = fell_back = 0
    for i in range(N_FLIPS + N_TRUNCATIONS):
        path = newest if i % 2 else (before, oldest, manifest)[i // 2 % 3]
        best, expected = files[path]
        kept = {one: one.read_bytes() for one in (path, newest)}
        if path == before:
            newest.write_bytes(kept[newest][:1000])
        path.write_bytes(harm(kept[path], lot, flip=i < N_FLIPS))
        state, said = load_checkpoint(folder, best=best)
        detected += any(str(path) in line and "damaged" in line for line in said)
        fell_back += state["step"] == expected and digest(state) == whole[expected]
        for one, content in kept.items():
            one.write_bytes(content)
    total = N_FLIPS + N_TRUNCATIONS
    figure(
        f"{N_FLIPS} random bit flips and {N_TRUNCATIONS} truncations of checkpoint files, the manifest's included",
        f"{total}/{total} detected, {total}/{total} fall back",
        f"{detected}/{total} detected, {fell_back}/{total} fall back to the newest state that is whole, bit for bit",
        detected == fell_back == total,
    )


def load_alone(folder: Path, entry: dict, alone: Path) -> dict:
    """Return the state of one entry, by removing all newer ones from a copy."""
    shutil.rmtree(alone, ignore_errors=True)
    shutil.copytree(folder, alone)
    for one in read_manifest(folder):
        if one["step"] > entry["step"]:
            (alone / one["file"]).unlink()
    return load_checkpoint(alone)[0]


def test_harm_to_the_manifests_copy_alone_changes_nothing_and_to_both_is_one_error(
    unbroken: Path, tmp_path: Path
) -> None:
    folder, lot = Path(shutil.copytree(unbroken / "checkpoints", tmp_path / "checkpoints")), random.Random(1)
    copy, manifest, newest = folder / "manifest_copy.json", folder / "manifest.json", digest(load_checkpoint(folder)[0])
    kept = copy.read_bytes()
    for i in range(20):
        copy.write_bytes(harm(kept, lot, flip=i % 2 == 0))
        assert digest(load_checkpoint(folder)[0]) == newest
    manifest.write_bytes(harm(kept, lot, flip=True))
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(folder)
