"""What a trial prints: the newest of it is kept in its folder, whoever wrote it and however it ends."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ablate.functions.output import KEPT_BYTES, OUTPUT, Output, read_output, seed_folder


def test_the_newest_output_is_kept_across_attempts(tmp_path: Path) -> None:
    whole = bytearray()
    for attempt in range(3):
        log = Output(tmp_path / "t")
        for line in range(60_000):
            text = b"attempt %d line %d\n" % (attempt, line)
            whole += text
            log.write(text)
        log.close()
    assert (tmp_path / "t" / OUTPUT).read_bytes() == whole[-KEPT_BYTES:]


def test_the_file_is_the_output_itself(tmp_path: Path) -> None:
    output = Output(tmp_path)
    for line in ("begun\n", "more\n"):
        subprocess.run(["printf", line], stdout=output.descriptor, check=True)
        assert (tmp_path / OUTPUT).read_text().endswith(line)
    output.close()
    assert read_output(tmp_path) == "begun\nmore\n"


def test_whoever_waits_keeps_the_newest_megabyte_while_others_print(tmp_path: Path) -> None:
    output, count = Output(tmp_path), 400_000
    code = f"for n in range({count}): print('line', n, flush=n % 1000 == 0)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=output.descriptor) as process:
        while process.poll() is None:
            output.trim()
    output.close()
    lines = (tmp_path / OUTPUT).read_text().splitlines()
    assert (tmp_path / OUTPUT).stat().st_size <= KEPT_BYTES
    assert lines[-1] == f"line {count - 1}"


def test_threads_lose_nothing(tmp_path: Path) -> None:
    log = Output(tmp_path)

    def work(mark: int) -> None:
        for _ in range(1000):
            log.write(b"%d" % mark * 9 + b"\n")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    lines = read_output(tmp_path).split()
    assert sorted(lines) == sorted(str(n) * 9 for n in range(4) for _ in range(1000))


def test_a_place_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "ablate"):
        log = Output(tmp_path / "file" / "below")
        for _ in range(3):
            log.write(b"x\n")
            log.trim()
        log.close()
    assert len(caplog.records) == 1
    assert "output cannot be" in caplog.text


def test_what_is_shown_cannot_control_a_terminal(tmp_path: Path) -> None:
    log = Output(tmp_path)
    log.write("a\rb\x1b[31mred\x1b[0m größe\x07\n10%\r50%\r100%\r\n\xa9 \x1b]0;title\x07x".encode() + b"\xff\x9b")
    log.close()
    assert read_output(tmp_path) == "bred größe\\x07\n100%\n\xa9 x\ufffd\ufffd"


def test_nothing_is_kept_of_a_silent_trial(tmp_path: Path) -> None:
    Output(tmp_path / "t").close()
    assert read_output(tmp_path / "t") == ""


def test_each_seed_has_a_folder_that_stays(tmp_path: Path) -> None:
    place = tmp_path / "000003"
    assert seed_folder(place, 7) == seed_folder(f"file://{place}", 7) == place / "seed-7"
    assert seed_folder(place, 8) != seed_folder(place, 7)


def test_without_a_disk_a_seed_has_a_folder_of_this_process() -> None:
    store = "s3://bucket/study/checkpoints/data/000003"
    folder = seed_folder(store, 7)
    assert folder.is_dir()
    assert folder == seed_folder(store, 7)
    others = (seed_folder(store, 8), seed_folder(f"{store}4", 7), seed_folder(None, 7), seed_folder(None, 7))
    assert len({folder, *others}) == 5


def test_a_bar_that_was_wiped_is_no_output(tmp_path: Path) -> None:
    log = Output(tmp_path)
    log.write(b"\r  0%|  | 0/3\r100%|##| 3/3\r            \r\n \n")
    log.close()
    assert read_output(tmp_path) == ""
