"""What a run adds to as it goes."""

import os
from pathlib import Path

import pytest

from training.checkpoint import Stream


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("bring", ["flush", "sync", "close"])
def test_what_cannot_be_written_names_the_file(bring: str) -> None:
    stream = Stream(Path("/dev/full"))
    stream.write(b"a line\n")
    with pytest.raises(OSError, match=r"No space left on device for 7 bytes \([\d,]+ are free\): '/dev/full'"):
        getattr(stream, bring)()
    if bring != "close":
        with pytest.raises(OSError, match="/dev/full"):
            stream.close()


def test_what_was_there_stays_and_is_added_to(tmp_path: Path) -> None:
    for number in range(2):
        stream = Stream(tmp_path / "file")
        assert stream.is_empty is (number == 0)
        stream.write(b"%d" % number)
        stream.sync()
        assert (tmp_path / "file").read_bytes() == b"01"[: number + 1]
        stream.close()
