"""No secret of an address is in a message about it, whatever characters it has and however a library quotes it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from ablate.base.redaction import error_text, has_password, redact_text, redact_url
from support.commands import TINY, run

SHOWN = [
    ("postgresql://ada:s3cret@db:5432/x", "postgresql://***@db:5432/x"),
    ("postgresql+psycopg://ada:s3c%40ret@db/x?sslmode=require", "postgresql+psycopg://***@db/x"),
    ("postgresql://db/x?user=ada&password=s3cret", "postgresql://db/x"),
    ("postgresql://db/x?user=ada&password=s3c@ret", "postgresql://db/x"),
    ("postgresql://ada:pw@db:5432/x?password=s3c@ret", "postgresql://***"),
    ("postgresql://ada:s3?cret@db/x", "postgresql://***"),
    ("postgresql://ada:s3cret", "postgresql://***"),
    ("postgresql://[::1]:5432/x", "postgresql://[::1]:5432/x"),
    ("mysql+pymysql://ada:s3@cr/et@db/x", "mysql+pymysql://***@db/x"),
    ("https://ada:s3cret@mlflow.example.org/base", "https://***@mlflow.example.org/base"),
    ("https://s3cret@mlflow.example.org/base", "https://***@mlflow.example.org/base"),
    ("https://mlflow.example.org?token=s3cret", "https://mlflow.example.org"),
    ("http://localhost:5000", "http://localhost:5000"),
    ("s3://me:se/cret@bucket/prefix/?region=x", "s3://***@bucket/prefix"),
    ("s3://bucket/a@b", "s3://bucket/a@b"),
    ("me:secret@bucket/prefix", "***@bucket/prefix"),
    ("sqlite:////data/a:b@c/mlflow.db?timeout=3", "sqlite:////data/a:b@c/mlflow.db"),
    ("databricks", "databricks"),
    (Path("/a/b:c@d"), "/a/b:c@d"),
]
TEMPLATES = (
    "postgresql+psycopg://ada:{}@db.example/ablate",
    "postgresql://ada:{}@127.0.0.1:5432/ablate?sslmode=require",
    "postgresql://127.0.0.1/ablate?user=ada&password={}&sslmode=require",
    "https://ada:{}@mlflow.example/base",
    "https://mlflow.example/base?token={}",
    "s3://AKIAME:{}@bucket/prefix",
    "s3://AKIAME:{}@bucket/prefix?endpoint_override=localhost",
    "s3://bucket/prefix?secret_key={}&scheme=http",
)
SECRETS = st.text(st.sampled_from("@/:%#?aZ7+_~!$'\"\\é-."), min_size=4, max_size=14)
OTHER = "0xFEEDBEEF"


@pytest.mark.parametrize(("url", "shown"), SHOWN)
def test_an_address_is_named_without_its_secrets(url: Path | str, shown: str) -> None:
    assert redact_url(url) == shown


USABLE = [
    ("postgresql+psycopg://ada:s3cret@db:5432/x?sslmode=require", "postgresql+psycopg://{}db:5432/x?sslmode=require"),
    ("postgresql://db/x?user=ada&password=s3cret&sslmode=require", "postgresql://db/x?user=ada&sslmode=require"),
    ("postgresql://ada:s3?cret@db/x", "postgresql://***"),
    ("s3://me:secret@bucket/prefix?endpoint_override=h&secret_key=k", "s3://{}bucket/prefix?endpoint_override=h"),
    ("sqlite:////data/a:b@c/mlflow.db?timeout=3", "sqlite:////data/a:b@c/mlflow.db?timeout=3"),
]


@pytest.mark.parametrize(("url", "kept"), USABLE)
def test_an_address_that_is_stored_opens_again_without_its_secrets(url: str, kept: str) -> None:
    user = urlsplit(url).username or ""
    assert redact_url(url, usable=True) == kept.format("")
    assert redact_url(url, usable=True, keep_user=True) == kept.format(f"{user}@" if user else "")
    assert redact_url(kept.format(""), usable=True) == kept.format("")


class LostError(Exception):
    """An error without a word."""


@pytest.mark.parametrize(
    ("error", "place", "first_line", "said"),
    [
        (ValueError("one\n\ttwo   three\n"), None, False, "one two three"),
        (ValueError("\n one\n\ttwo"), None, True, "one"),
        (LostError(), None, False, "LostError"),
        (LostError(" \n"), Path("/a"), True, "LostError"),
        (OSError(13, "Permission denied", "/a/b"), None, False, "[Errno 13] Permission denied: '/a/b'"),
        (OSError(13, "Permission denied", "/a/b"), Path("/a"), False, "Permission denied"),
        (OSError("no bucket at s3://me:se/cret@b/p\nat all"), "s3://me:se/cret@b/p", False,
         "no bucket at s3://***@b/p at all"),
        (RuntimeError("cannot open 's3cret@b'"), "s3://me:s3cret@b/p", False, "cannot open '***@b'"),
    ],
)  # fmt: skip
def test_an_error_is_quoted_in_one_line_without_secrets(
    error: Exception, place: Path | str | None, first_line: bool, said: str
) -> None:
    assert error_text(error, place, first_line=first_line) == said


def quoted(url: str) -> list[str]:
    """Return lines in which libraries name an address or what they take for its parts."""
    lines = [f"cannot connect to {url}\nat all", f"bad address {url!r}", f"decoded {unquote(url)}"]
    try:
        parts = urlsplit(url)
        lines.append(f"no host {parts.hostname!r}, path {parts.path!r}, options {parts.query!r} and {parts.fragment!r}")
        lines.append(f"rejected {parts.password}")
    except ValueError as error:
        lines.append(str(error))
    try:
        made = make_url(url)
        lines.append(f"no address of host '{made.host}', database {made.database}; password {made.password} is wrong")
        lines.append(repr(dict(made.query)))
    except (ArgumentError, ValueError) as error:
        lines.append(str(error))
    return lines


@pytest.mark.services
@given(template=st.sampled_from(TEMPLATES), secret=SECRETS, encoded=st.booleans())
@settings(max_examples=400, deadline=None)
@example(template=TEMPLATES[0], secret="pass@word/four", encoded=False)
@example(template=TEMPLATES[5], secret="wJalr/XUtn@FEMI", encoded=False)
@example(template=TEMPLATES[1], secret="ab?c@de#fgh", encoded=False)
@example(template=TEMPLATES[1], secret="p%zz%40/@", encoded=True)
@example(template=TEMPLATES[0], secret="/2345@", encoded=False)
def test_no_secret_survives_in_a_message(template: str, secret: str, encoded: bool) -> None:
    url, harmless = (template.format(quote(text, safe="") if encoded else text) for text in (secret, OTHER))
    assert has_password(url) or re.match("[0-9]{1,5}/", secret), "but for what looks like a port"
    for line, other in zip([redact_url(url), *quoted(url)], [redact_url(harmless), *quoted(harmless)], strict=False):
        said = redact_text(line, url)
        assert "\n" not in said
        for form in {secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1]}:
            assume(form not in redact_text(other, harmless))  # else it is a word of the line and no secret
            assert form not in said


NASTY = ["pa@ss/word", "1234/word@x", "pa:ss?wo#rd", "%zz@word", "a@bcde@fghi", "wJalr/XUtn@FEMI"]


def seen_of(secret: str, text: str) -> list[str]:
    """Return the secret and those of its parts of four or more characters that `text` holds."""
    text = text.replace("password", "").replace("percent", "")
    return [part for part in [secret, *re.split("[@/:?#%]", secret)] if len(part) >= 4 and part in text]


@pytest.mark.parametrize("secret", NASTY)
def test_the_doctor_shows_no_part_of_a_secret(secret: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The real libraries take the addresses apart: SQLAlchemy and psycopg, pyarrow, MLflow and requests."""
    code, out, err = run(
        capfd, "doctor", "--runs-dir", str(tmp_path),
        "--storage", f"postgresql+psycopg://ada:{secret}@127.0.0.1:1/ablate",
        "--store", f"s3://AKIAME:{secret}@bucket/prefix?endpoint_override=127.0.0.1:1&scheme=http",
        "--tracking-uri", f"http://ada:{secret}@127.0.0.1:1",
    )  # fmt: skip
    assert code == 2
    assert (out.count("FAULT"), out.count("WARN")) == (2, 1)  # what is away is said without its password
    assert seen_of(secret, out + err) == []


@pytest.mark.parametrize("secret", NASTY)
def test_a_refused_address_is_one_line_that_says_how_to_write_it(
    secret: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    search = ["search", str(tmp_path / "tiny.yaml"), "--runs-dir", str(tmp_path / "runs"), "--executor", "local"]
    asked = {
        "--store": f"s3://AKIAME:{secret}@bucket/prefix",
        "--storage": f"postgresql+psycopg://ada:{secret}@127.0.0.1:1/ablate",
    }
    for option, url in asked.items():
        code, _, err = run(capfd, *search, option, url)
        assert code in (1, 2, 75)
        assert len(err.splitlines()) == 1
        assert seen_of(secret, err) == []
        assert option == "--storage" or "percent-encoded" in err


@pytest.mark.parametrize(
    ("option", "url", "variable"),
    [
        ("--storage", "postgresql+psycopg://ada:tr0ub4dor@db/ablate", "ABLATE_STORAGE"),
        ("--store", "s3://AKIAME:wJalr/tr0ub4dor@bucket/prefix", "ABLATE_STORE"),
        ("--tracking-uri", "https://ada:tr0ub4dor@mlflow.example", "MLFLOW_TRACKING_URI"),
    ],
)
@pytest.mark.parametrize("sign", [" ", "="])
def test_a_password_never_gets_into_the_job_table_of_a_cluster_that_is_joined(
    option: str, url: str, variable: str, sign: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Ray keeps a driver's command line for all who may use the cluster."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    search = ["search", str(tmp_path / "tiny.yaml"), "--runs-dir", str(tmp_path / "runs"), "--address", "127.0.0.1:1"]
    code, _, err = run(capfd, *search, "--gpus", "0", *f"{option}{sign}{url}".split())
    assert code == 2
    told = f"ablate: {option} holds a password, which everybody could read in Ray's job table. Set {variable}"
    assert err == f"{told} instead.\n"
    assert not (tmp_path / "runs").exists()


def test_what_is_no_secret_is_quoted_as_it_is() -> None:
    assert redact_text("unable to open /a/mlflow.db", "sqlite:////a/mlflow.db") == "unable to open /a/mlflow.db"
    assert redact_text("no bucket\nthere", "s3://bucket/prefix?region=there") == "no bucket there"
    assert redact_text("db:5432 is down", "postgresql://ada:s3cret@db:5432/x") == "db:5432 is down"


@pytest.mark.parametrize("word", ["x" * 250_000, "?" + "pass" * 60_000, "&" * 250_000, "a." * 125_000])
def test_a_long_word_is_looked_through_once(word: str) -> None:
    """With an unbounded pattern the first two of these take minutes, and the test's time limit ends them."""
    assert not has_password(word)
    assert has_password(f"{word}?password=hunter2")
