"""Folders of whole files: one contract on a disk and on an S3 server, and one clear error where there is no folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pytest
import torch
from sqlalchemy.engine import make_url

from ablate.base.cache import cached_bytes, open_private
from ablate.base.errors import CheckpointDownError, CheckpointError, RequestError
from ablate.base.files import (
    DiskFolder,
    Place,
    below,
    copy_into,
    open_folder,
    refuse_links,
    require_writable,
    sqlite_file,
    sqlite_url,
)
from ablate.core.trial import Report
from ablate.engine.training import checkpoint, predictor, train
from support.paths import TESTS
from support.s3 import S3Server
from support.small_training import numbers, one_thread, trial

__all__ = ["one_thread"]

PLACES = ["path", "file URL", "path as text", "s3"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        found: str = request.getfixturevalue("s3_store")
        return found
    folder = tmp_path / "a folder" / "that is not there"
    return {"path": folder, "file URL": folder.as_uri(), "path as text": str(folder)}[request.param]


def test_a_folder_gives_back_what_was_written_last(place: Place) -> None:
    folder = open_folder(place)
    assert folder.names() == []
    contents = {"b": b"", "a.safetensors": os.urandom(1000), "c": os.urandom(12 * 2**20)}
    for name, content in contents.items():
        folder.write(name, content)
    folder.write("b", b"again")
    assert open_folder(place).names() == ["a.safetensors", "b", "c"]
    assert {name: open_folder(place).read(name) for name in folder.names()} == contents | {"b": b"again"}
    folder.remove("b")
    folder.remove("b")
    folder.sweep(lambda name: True)
    assert folder.names() == ["a.safetensors", "c"]
    with pytest.raises(FileNotFoundError, match="b"):
        folder.read("b")


def test_a_folder_is_flat_and_those_below_it_are_others(place: Place) -> None:
    under = below(place, "checkpoints", "a b%20c#?d")
    open_folder(under).write("deep", b"1")
    assert open_folder(place).names() == open_folder(below(place, "checkpoints")).names() == []
    assert open_folder(below(below(place, "checkpoints"), "a b%20c#?d")).names() == ["deep"]
    open_folder(under).remove("deep")
    assert open_folder(under).names() == []


def test_what_killed_writers_left_is_not_seen_and_is_removed_by_name(tmp_path: Path) -> None:
    fragments = ["a.safetensors.4711.tmp", "a.safetensors.12.tmp", "b.4711.tmp"]
    for name in [*fragments, "a.safetensors"]:
        (tmp_path / name).write_bytes(b"half")
    folder = DiskFolder(tmp_path)
    assert folder.names() == ["a.safetensors"]
    folder.sweep(lambda name: name == "a.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.4711.tmp"]
    DiskFolder(tmp_path / "nowhere").sweep(lambda name: True)


def test_a_reader_sees_all_of_a_file_or_none(place: Place) -> None:
    folder = open_folder(place)
    folder.write("file", b"0" * 10**6)
    ended = threading.Event()
    seen: set[tuple[int, frozenset[int]]] = set()

    def read() -> None:
        while not ended.is_set():
            content = open_folder(place).read("file")
            seen.add((len(content), frozenset(content)))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(20):
            folder.write("file", b"%d" % (n % 10) * 10**6)
    finally:
        ended.set()
        reader.join()
    assert {length for length, _ in seen} == {10**6}
    assert all(len(values) == 1 for _, values in seen)


def test_folders_are_copied_with_all_that_is_in_them(place: Place, tmp_path: Path) -> None:
    (tmp_path / "report" / "figures").mkdir(parents=True)
    (tmp_path / "report" / "index.html").write_text("page")
    (tmp_path / "report" / "figures" / "one.png").write_bytes(b"png")
    (tmp_path / "trials.parquet").write_bytes(b"table")
    copy_into(place, [tmp_path / "report", tmp_path / "trials.parquet"])
    assert open_folder(place).names() == ["trials.parquet"]
    assert open_folder(below(place, "report")).read("index.html") == b"page"
    assert open_folder(below(place, "report", "figures")).read("one.png") == b"png"


def test_a_place_that_can_be_written_is_left_as_it_was(place: Place) -> None:
    require_writable(place)
    assert open_folder(place).names() == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("bucket/prefix", "URI has empty scheme: 'bucket/prefix'"),
        ("", "URI has empty scheme: ''"),
        ("s4://bucket/prefix", "Unrecognized filesystem type in URI: s4://bucket/prefix"),
        ("s3://", "it names no bucket"),
        ("s3:/bucket", "Missing bucket name in S3 URI"),
        ("s3://bucket/prefix?color=red", "Unexpected query parameter in S3 URI: 'color'"),
        ("s5://me:secret@bucket/prefix", "Unrecognized filesystem type in URI: s5://***@bucket/prefix"),
        ("file://relative", "File URI cannot be relative: 'file://relative'"),
    ],
)
def test_what_is_no_url_of_a_store_is_refused_in_one_line(url: str, reason: str) -> None:
    rule = f"not the URL of an object store, s3://bucket/prefix ({reason})"
    for asked in (open_folder, require_writable):
        with pytest.raises(RequestError, match=re.escape(rule)) as caught:
            asked(url)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)


NO_BUCKET = r"cannot write checkpoint s3://nowhere/trial/epoch-000001-attempt-001.safetensors: .*NO_SUCH_BUCKET.*"
ADVICE = (
    r"; see that the store answers, has the bucket and lets you in and run the same command again: nothing that was"
    r" committed is lost$"
)


def test_a_bucket_that_is_not_there_is_said_once(s3_server: S3Server) -> None:
    place = s3_server.url("trial", bucket="nowhere")
    with pytest.raises(RequestError, match=r"^s3://nowhere/trial: cannot be written \(.*NO_SUCH_BUCKET.*\)$"):
        require_writable(place)
    with pytest.raises(CheckpointDownError, match=f"^{NO_BUCKET}{ADVICE}"):
        next(train(trial(), checkpoints=place))
    with pytest.raises(CheckpointError, match=r"no whole checkpoint of s/stripes/0 in s3://nowhere/trial$"):
        predictor(trial(), place)


@pytest.mark.services
def test_a_server_that_is_gone_ends_no_trial_and_the_same_trial_goes_on_when_it_is_back(
    s3_server: S3Server, s3_store: str
) -> None:
    whole = list(train(trial()))
    reports = train(trial(), checkpoints=s3_store)
    began = list(islice(reports, 2))
    down = pytest.raises(CheckpointDownError, match=rf"^cannot write checkpoint .*NETWORK_CONNECTION.*{ADVICE}")
    with s3_server.away(), down:
        next(reports)
    went_on = list(train(trial(), checkpoints=s3_store, attempt=2))
    assert [(r.epoch, r.metrics) for r in [*began, *went_on[1:]]] == [(r.epoch, r.metrics) for r in whole]


TRAIN = """
import sys, torch
torch.set_num_threads(1)
from support.small_training import trial
from ablate.engine.training import train
for report in train(trial(), checkpoints=sys.argv[1], attempt=1):
    print(report.epoch, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.services
def test_a_trial_on_a_store_whose_process_is_killed_goes_on_bit_for_bit(s3_store: str, tmp_path: Path) -> None:
    whole = list(train(trial(), checkpoints=tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, s3_store], cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "2\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    went_on = list(train(trial(), checkpoints=s3_store, attempt=2))
    assert [(r.epoch, r.metrics) for r in went_on] == [(r.epoch, r.metrics) for r in whole[1:]]
    names = open_folder(s3_store).names()
    assert names == ["epoch-000003-attempt-002.safetensors", "epoch-000004-attempt-002.safetensors"]
    assert same_weights(checkpoint.newest(s3_store, trial()), checkpoint.newest(tmp_path, trial()))
    found, expected = (predictor(trial(), place, 1).state_dict() for place in (s3_store, tmp_path))
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def same_weights(one: checkpoint.Checkpoint | None, other: checkpoint.Checkpoint | None) -> bool:
    assert one is not None
    assert other is not None
    assert one.tensors.keys() == other.tensors.keys()
    return all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def test_a_damaged_object_gives_way_to_the_one_before(s3_store: str, caplog: pytest.LogCaptureFixture) -> None:
    whole: list[Report] = list(islice(train(trial(), checkpoints=s3_store), 3))
    folder = open_folder(s3_store)
    name = "epoch-000003-attempt-001.safetensors"
    folder.write(name, folder.read(name)[:-1])
    assert numbers(list(islice(train(trial(), checkpoints=s3_store), 2))) == numbers(whole[1:])
    assert f"/{name}: " in caplog.text
    assert "falling back to epoch-000002-attempt-001.safetensors" in caplog.text


@pytest.mark.services
def test_what_runs_on_a_disk_does_without_pyarrow(tmp_path: Path) -> None:
    code = TRAIN.replace("sys.argv[1]", "__import__('pathlib').Path(sys.argv[1])") + "print('pyarrow' in sys.modules)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=TESTS, input="\n" * 4, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["1", "2", "3", "4", "False"]
    assert len(DiskFolder(tmp_path).names()) == 2


class TestCache:
    @pytest.fixture
    def made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return []

    def cached(self, made: list[str], text: str = "é = 1\r\n") -> str:
        def make() -> bytes:
            made.append(text)
            return text.encode()

        return cached_bytes("pages", "script-1.js", make).decode()

    def test_a_text_is_made_once(self, made: list[str], tmp_path: Path) -> None:
        assert [self.cached(made) for _ in range(3)] == ["é = 1\r\n"] * 3
        assert len(made) == 1
        assert DiskFolder(tmp_path / "cache" / "ablate" / "pages").names() == ["script-1.js"]

    @pytest.mark.parametrize("damage", [b"", b"no digest", b"\xff\xfe", b"0" * 64 + b"\nalert(1)"])
    def test_a_damaged_text_is_made_again(self, damage: bytes, made: list[str], tmp_path: Path) -> None:
        self.cached(made)
        path = tmp_path / "cache" / "ablate" / "pages" / "script-1.js"
        whole = path.read_bytes()
        path.write_bytes(damage or whole[:-1])
        assert self.cached(made) == "é = 1\r\n"
        assert len(made) == 2
        assert path.read_bytes() == whole

    def test_without_a_cache_it_is_made_each_time(self, made: list[str], tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("a file where the folder should be")
        assert [self.cached(made) for _ in range(2)] == ["é = 1\r\n"] * 2
        assert len(made) == 2

    def test_a_link_is_replaced_and_not_followed(self, made: list[str], tmp_path: Path) -> None:
        self.cached(made)
        path = tmp_path / "cache" / "ablate" / "pages" / "script-1.js"
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert self.cached(made) == "é = 1\r\n"
        assert len(made) == 2
        assert not path.is_symlink()

    @pytest.mark.parametrize("change", ["owner", "owner of the file", "mode", "mode of the file", "link", "other name"])
    def test_what_another_user_may_have_written_is_made_again(
        self, change: str, made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another user's script was put into the page: its file was read wherever it was whole."""
        self.cached(made)
        folder = tmp_path / "cache" / "ablate" / "pages"
        path = folder / "script-1.js"
        path.write_bytes(sha256(b"evil").hexdigest().encode() + b"\nevil")
        if change.startswith("owner"):
            place, real = (path if change.endswith("file") else folder).stat(), os.fstat
            alien = os.stat_result((*place[:4], place.st_uid + 1, *place[5:10]))
            monkeypatch.setattr(os, "fstat", lambda fd: alien if real(fd).st_ino == place.st_ino else real(fd))
        elif change.startswith("mode"):
            (path if change.endswith("file") else folder).chmod(0o777)
        elif change == "link":
            folder.rename(tmp_path / "theirs")
            folder.symlink_to(tmp_path / "theirs")
        else:
            os.link(path, tmp_path / "theirs.js")
        assert self.cached(made) == "é = 1\r\n"
        assert len(made) == 2

    @pytest.mark.parametrize("content", [b"", b"\n", b"\x7fELF\x00\n\xff\r\n\xfe"])
    def test_bytes_are_kept_as_they_are_and_made_again_if_damaged(
        self, content: bytes, made: list[str], tmp_path: Path
    ) -> None:
        def make() -> bytes:
            made.append("made")
            return content

        assert [cached_bytes("pages", "library.so", make) for _ in range(3)] == [content] * 3
        assert len(made) == 1
        path = tmp_path / "cache" / "ablate" / "pages" / "library.so"
        path.write_bytes(path.read_bytes() + b"\0")
        assert [cached_bytes("pages", "library.so", make) for _ in range(2)] == [content] * 2
        assert len(made) == 2


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/data/000001/seed-0",
        "checkpoints/data/seed-0",
        "checkpoints/seed-0/000001/x",
        "models",
        "code",
        "code/m",
    ],
)
def test_a_link_out_of_a_study_is_refused(name: str, tmp_path: Path) -> None:
    place = tmp_path / "home" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path)
    with pytest.raises(RequestError, match="is a symbolic link"):
        refuse_links(tmp_path / "home")


def test_links_of_a_users_code_stay_in_its_seeds_folder(tmp_path: Path) -> None:
    """Training libraries write links such as `latest` beside their checkpoints."""
    folder = tmp_path / "checkpoints" / "data" / "000001" / "seed-0" / "run"
    folder.mkdir(parents=True)
    (folder / "latest").symlink_to("step-10")
    refuse_links(tmp_path)


@pytest.mark.parametrize("name", ["a?b", "50%20x", "p#q", "a b", "größe", "a&b=c", "x%3Fy", "ü%25?#'\"", "exp[red]"])
def test_the_url_of_a_database_is_that_of_its_file_whatever_the_name(name: str, tmp_path: Path) -> None:
    file = tmp_path / name / "ledger.sqlite"
    assert sqlite_file(sqlite_url(file)) == file
    assert Path(str(make_url(sqlite_url(file)).database)) == file


def test_the_url_of_a_database_is_the_inverse_for_every_printable_character() -> None:
    text = "".join(map(chr, range(32, 127))) + "äß漢"
    assert sqlite_file(sqlite_url(Path("/tmp", text))) == Path("/tmp", text)


def test_a_private_folder_stays_the_one_that_was_opened(tmp_path: Path) -> None:
    folder, theirs = tmp_path / "cache" / "pages", tmp_path / "theirs"
    theirs.mkdir(mode=0o777)
    with open_private(folder) as place:
        folder.rename(tmp_path / "moved")
        theirs.rename(folder)
        DiskFolder(place).write("script.js", b"own")
    assert (tmp_path / "moved" / "script.js").read_bytes() == b"own"
    assert not any(folder.iterdir())


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_folder_that_others_may_change_is_not_private(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "pages"
    if kind == "a file":
        folder.write_text("")
    elif kind == "a link":
        (tmp_path / "own").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "own")
    else:
        folder.mkdir()
        folder.chmod(0o750)
    with pytest.raises(OSError, match="pages"), open_private(folder):
        pass
