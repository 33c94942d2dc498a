"""Options of the command line change the study; the text that is kept describes the changed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.base.errors import RequestError, StudyFileError
from ablate.driver.requests import typed_settings
from ablate.study import difference, load_study, parse_study, read_study
from ablate.study.yaml_text import assignments, flow_yaml, read_scalar, read_yaml, write_yaml
from support.paths import REPOSITORY

FILES = sorted((REPOSITORY / "search_spaces").rglob("*.yaml"))
BLOCK = "study: s\nseed: 3 # kept\ndatasets: {digits: {patch: 2}, copy: }\nbudget: {trials: 5}\n"
FLOW = "{study: s, seed: 3, datasets: {digits: {patch: 2}, copy: }, budget: {trials: 5}}"
SCALARS = st.none() | st.booleans() | st.integers(-(10**98), 10**98) | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.sampled_from(["no", "1e-3", "0x1f", "~", "null", "2001-01-01", "1_000", ".5", "a: b", "- a", "#", "é\n"])
LONG = st.text("a \n\t'\"\\", min_size=120, max_size=140)
TEXTS = WORDS | LONG | st.text(max_size=30) | st.from_regex(r"[-+.0-9_eExXinfa]{1,8}", fullmatch=True)
VALUES = st.recursive(
    SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def appended(file: Path, **options: Any) -> str:
    """Return the text that stood in the ledger before: that of the file with the options behind it."""
    return file.read_text().rstrip("\n") + "\n" + "".join(f"{key}: {json.dumps(v)}\n" for key, v in options.items())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_study_with_options_is_the_one_that_its_text_describes_and_that_was_kept_before(file: Path) -> None:
    plain = load_study(file)
    labels = list(plain.datasets)
    for options in ({"scale": 0.25}, {"only": labels[:1]}, {"scale": 0.5, "only": labels}):
        study, text = read_study(file, **options)
        before = appended(file, **options)
        assert study == parse_study(text, known_good=True) == parse_study(before, known_good=True)
        assert study.fingerprint() == parse_study(before, known_good=True).fingerprint()
        assert study.model_fields_set == plain.model_fields_set | options.keys()
        assert (study.name, study.labels) == (parse_study(before, known_good=True).name, study.labels)
        assert difference(before, text) == []


@pytest.mark.parametrize("text", [BLOCK, FLOW], ids=["block", "flow"])
def test_the_style_of_the_file_does_not_matter(text: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    study, kept = read_study(file, scale=0.5, only=["copy"], deterministic=True)
    assert (study.scale, study.labels, study.deterministic) == (0.5, ("copy",), 8)
    assert parse_study(kept).fingerprint() == study.fingerprint()
    assert read_study(file) == (parse_study(text), text)


@pytest.mark.parametrize("own", ["scale: 0.5\n", '"scale": 0.5\n', "? scale\n: 0.5\n"])
def test_an_option_that_the_file_says_itself_is_refused(own: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(BLOCK + own)
    with pytest.raises(StudyFileError, match="says `scale:` itself; leave the option out, or take the key out"):
        read_study(file, scale=0.25)


def test_a_key_inside_a_text_is_not_the_studys(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(BLOCK + 'sampler: {options: {note: "a\n\nscale: 1\n"}}\n')
    assert read_study(file, scale=0.5)[0].scale == 0.5


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"scale": 3.0}, "f.yaml: scale = 3.0: Input should be less than or equal to 1"),
        ({"only": ["digit"]}, "f.yaml: only = 'digit': this name is not known here. Did you mean 'digits'?"),
    ],
)
def test_a_bad_option_is_a_fault_of_the_study(options: dict[str, Any], rule: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(BLOCK)
    with pytest.raises(StudyFileError) as caught:
        read_study(file, **options)
    assert str(caught.value).startswith(str(tmp_path / rule))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(TEXTS, VALUES, min_size=1))
def test_what_is_written_is_read_again(data: dict[str, Any]) -> None:
    for value, text in ((data, write_yaml(data)), ({"a": data}, flow_yaml("a", data))):
        assert json.dumps(read_yaml(text, "f")[0]) == json.dumps(value), "of one type too"


@settings(deadline=None, max_examples=60)
@given(TEXTS)
def test_a_quoted_word_is_text_and_a_bare_one_is_what_a_file_says(word: str) -> None:
    assert read_scalar(flow_yaml("a", word).removeprefix("a: ")) == word
    value = read_scalar(word)
    if not isinstance(value, str):
        assert json.dumps(read_yaml(f"a: {word}", "f")[0]["a"]) == json.dumps(value)


def test_a_setting_that_is_written_is_read_as_what_it_was() -> None:
    values = {"a.b": True, "c": "x y", "d": 0.5, "e": None, "f": "true", "g": "1", "h": 1, "i": '"1"', "j": "1e3"}
    words = assignments(values)
    assert words[:4] == ["a.b=true", "c=x y", "d=0.5", "e=null"]
    assert typed_settings(words) == values
    with pytest.raises(RequestError, match=r"^a\.b is given twice: leave one of them out$"):
        typed_settings([*words, "a.b=true"])


OWN = """\
study: s
trainable: mine:train
config: {lr: {float: [0.1, 1.0]}, width: 8}
objectives: [{metric: val_loss, direction: minimize}]
"""


@pytest.mark.parametrize(
    ("words", "edited"),
    [
        (["lr=0.5"], OWN.replace("{float: [0.1, 1.0]}", "0.5")),
        (["config.lr=0.5", "width=16"], OWN.replace("{float: [0.1, 1.0]}, width: 8", "0.5, width: 16")),
        (["study=other", "seed=3"], OWN.replace("study: s", "study: other\nseed: 3")),
        (["budget.trials=7"], OWN + "budget: {trials: 7}\n"),
        (["epochs=4"], OWN + "epochs: 4\n"),
        (["width={choices: [8, 16]}"], OWN.replace("width: 8", "width: {choices: [8, 16]}")),
        (["config.new=yes"], OWN.replace("width: 8", "width: 8, new: 'yes'")),
    ],
)  # fmt: skip
def test_a_value_that_is_set_is_one_that_was_typed_into_the_file(words: list[str], edited: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(OWN)
    study, kept = read_study(file, changes=typed_settings(words))
    assert study == parse_study(edited)
    assert parse_study(kept, known_good=True).fingerprint() == study.fingerprint()


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("lrr=1", "--set lrr: there is no such setting. Did you mean 'lr'?"),
        ("width={choices: [8", "--set width"),
        ("study.x=1", "--set study.x: study is 's', so no setting is below it"),
        ("epochs=many", "f.yaml with --set: epochs = 'many': Input should be a valid integer"),
        ("modl.width=3", "f.yaml with --set: modl: this key is not known"),
    ],
)
def test_what_cannot_be_set_is_named(word: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(OWN)
    with pytest.raises(StudyFileError) as error:
        load_study(tmp_path / "f.yaml", changes=typed_settings([word]))
    assert says in str(error.value)


def test_a_value_that_is_set_twice_under_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(OWN)
    with pytest.raises(StudyFileError, match=r"--set config.lr: config.lr is given twice"):
        load_study(tmp_path / "f.yaml", changes=typed_settings(["lr=1", "config.lr=2"]))
