"""Removes secrets from addresses in messages, and from quoted texts about these addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"
SHORTEST_PART = 4  # characters; shorter parts reveal little, and hiding them would make a message unreadable
LOCAL = re.compile(r"/|(?:sqlite(?:\+pysqlite)?|file):///", re.I)
SCHEME = re.compile(r"[a-z][\w+.-]{0,40}://", re.I)  # bounded, so that time is not quadratic in a word's length
DELIMITERS = re.compile(r"[@/:?#%&=;]")
SECRET_NAME = r"[\w.-]{0,80}(?:pass|pwd|secret|token|credential|signature|access_?key|api_?key)[\w.-]{0,80}"
SECRET_OPTION = re.compile(rf"[?&;]{SECRET_NAME}=([^&;\s]+)", re.I)
HOST_AND_PORT = re.compile(r"(?:\[[^]]*\]|[^:/?#]*)(?::[0-9]*)?(?=[/?#]|$)")
SERVER_WITH_PORT = re.compile(r"https?://[^/\s:@]*:[0-9]{1,5}/", re.I)
ADVICE = "write @ : / ? # % in a password percent-encoded: %40 %3A %2F %3F %23 %25"


def redact_url(place: Path | str, *, usable: bool = False, keep_user: bool = False) -> str:
    """Return `place` as a message may name it: scheme, host and path, without user, password and options.

    With `usable`, return it in a form that can be stored and opened again: with its options, without password, keys and
    tokens, and with the user only if `keep_user`. If password and host cannot be distinguished, only the scheme is
    kept. Folders and files on this machine hold no secrets and are named in full.
    """
    if isinstance(place, Path):
        return str(place)
    if LOCAL.match(place):
        return place if usable else place.partition("?")[0]
    scheme, rest = _split(place)
    userinfo, address = _divide(rest)
    if re.search(r"[?#]", userinfo) or (scheme and not HOST_AND_PORT.match(address)):
        return scheme + HIDDEN
    if not usable:
        named = re.split(r"[?#]", address, maxsplit=1)[0]
        return f"{scheme}{HIDDEN + '@' if userinfo else ''}{named}".rstrip("/")
    named, _, query = address.partition("?")
    options = [option for option in query.split("&") if option and not SECRET_OPTION.match(f"?{option}")]
    user = userinfo.partition(":")[0] if keep_user else ""
    return f"{scheme}{user + '@' if user else ''}{named}{'?' if options else ''}{'&'.join(options)}"


def redact_text(text: str, place: Path | str) -> str:
    """Return `text` in one line, with the secrets of `place` replaced in every form that libraries quote.

    Parts of a secret between two delimiters are replaced too: a library that ends a password at its `@` or `/` names
    the rest as host or path.
    """
    text = " ".join(text.split())
    if isinstance(place, Path):
        return text
    text = text.replace(place, redact_url(place))
    forms = {form for secret in _secrets(place) for form in _forms(secret)}
    if not forms:
        return text
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.sub("|".join(map(re.escape, longest_first)), HIDDEN, text, flags=re.I)


def error_text(error: BaseException, place: Path | str | None = None, *, first_line: bool = False) -> str:
    """Return the message of `error` in one line, or the name of its type if the message is empty.

    `place` is the address that the surrounding message names. Of an OSError only the reason is then quoted, and secrets
    of `place` are replaced. `first_line` keeps only the first line of a longer message, such as Ray's and pydantic's.
    """
    said = (getattr(error, "strerror", None) if place is not None else None) or str(error)
    if first_line:
        said = next(iter(said.strip().splitlines()), "")
    return redact_text(said, place or Path()) or type(error).__name__


def has_password(text: str) -> bool:
    """Return whether a word of `text` is or holds a URL with a password, a secret or a token.

    The path of a server with a port, such as `http://HOST:5000/of/ada@example.org`, does not count as one.
    """
    return any(map(_word_has_password, text.split()))


def _word_has_password(word: str) -> bool:
    if SECRET_OPTION.search(word):
        return True
    urls = [url for url in SCHEME.finditer(word) if not SERVER_WITH_PORT.match(word, url.start())]
    return any(_divide(word[url.end() :])[0].partition(":")[2] for url in urls)


def _split(url: str) -> tuple[str, str]:
    """Return the scheme with `://`, which may be missing, and the rest."""
    scheme = SCHEME.match(url)
    return (url[: scheme.end()], url[scheme.end() :]) if scheme else ("", url)


def _divide(rest: str) -> tuple[str, str]:
    """Return what may be user and password, up to the last `@`, and the address after it.

    Without a colon, `bucket/a@b` is a path.
    """
    before, _, after = rest.rpartition("@")
    return (before, after) if ":" in before or (before and "/" not in before) else ("", rest)


def _secrets(url: str) -> Iterator[str]:
    """Yield whole secrets; with several `@`, each of them may end the password."""
    if LOCAL.match(url):
        return
    _, rest = _split(url)
    userinfo, address = _divide(rest)
    _, colon, password = f"{userinfo}@".partition(":")
    if colon:
        yield from (password[: at.start()] for at in re.finditer("@", password))
        yield userinfo
    elif not HOST_AND_PORT.match(address):  # user:password without a host
        yield address.partition(":")[2]
    yield from (option.group(1) for option in SECRET_OPTION.finditer(url))


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret and its long parts as they are, decoded, encoded, and as Python quotes them."""
    for meant in {secret, unquote(secret), unquote_plus(secret)}:
        for part in {meant, *_parts(meant)} - {""}:
            yield from (part, quote(part), quote(part, safe=""), quote_plus(part), repr(part)[1:-1])


def _parts(secret: str) -> Iterator[str]:
    cuts = [cut.start() for cut in DELIMITERS.finditer(secret)]
    for start in (-1, *cuts):
        for end in (*cuts, len(secret)):
            if end - start > SHORTEST_PART:
                yield secret[start + 1 : end]
