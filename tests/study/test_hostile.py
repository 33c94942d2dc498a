"""Study files that nobody would write on purpose: each is refused in plain words, whatever it holds."""

from __future__ import annotations

import cProfile
import re
import resource
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ablate.base.errors import StudyFileError
from ablate.study import Study, shape_faults
from ablate.study.file import SIZE_LIMIT_BYTES, parse_study
from ablate.study.ranges import RANGE_KEYS
from support.commands import TINY, run

BASE = "study: s\ndatasets: [digits]\n"


@pytest.mark.parametrize(
    "value",
    [
        "!!int abc",
        "!!int 0x1F",
        '!!int "1\\n"',
        "!!float one",
        "!!bool maybe",
        "!!null full",
        "!!timestamp soon",
        "!!timestamp 2026-01-01",
        "!!binary ÄÖÜ",
        "!!binary aGVsbG8=",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!!pairs [a: 1]",
        "!!python/object:os.system x",
        "!mine 3",
        "!!int [1]",
        "!!seq 3",
        "!!map 3",
    ],
)
def test_a_tag_with_a_bad_value_is_a_fault_with_its_line(
    value: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tagged.yaml"
    path.write_text(f"{TINY}seed: {value}\n", encoding="utf-8")
    code, _, err = run(capfd, "plan", str(path), "--no-time")
    assert code == 2, err
    assert "tagged.yaml:8: seed" in err
    assert err.count("\n") == 1


def test_a_bad_tag_of_a_key_is_a_fault_too() -> None:
    with pytest.raises(StudyFileError, match=r"s:3: .*tag"):
        parse_study(f"{BASE}!!int abc: 3\n", "s")
    with pytest.raises(StudyFileError, match="a key is one word of text"):
        parse_study(f"{BASE}? [1, 2]\n: 3\n", "s")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('study: "s\\n"\ndatasets: [digits]\n', "a name has 1 to 63 letters"),
        ('study: s\ndatasets: {"digits\\n": {task: digits}}\n', "a name has 1 to 63 letters"),
        (f'{BASE}objectives: [{{metric: "val_accuracy\\n", direction: maximize}}]\n', "printable text"),
        (f'{BASE}budget: {{wall_clock: "4m\\n"}}\n', "a duration is seconds or text"),
    ],
)
def test_a_name_that_ends_in_a_newline_is_refused(text: str, rule: str) -> None:
    with pytest.raises(StudyFileError, match=rule):
        parse_study(text)


def test_no_regular_expression_of_the_program_ends_in_a_dollar() -> None:
    sources = Path(shape_faults.__file__).parent.rglob("*.py")
    found = {path.name: re.findall(r"re\.compile\(r?f?\".*\$\"", path.read_text()) for path in sources}
    assert {name: hits for name, hits in found.items() if hits} == {}  # `$` also matches before a last newline


@pytest.mark.parametrize("text", [f'{BASE}compare: {{baseline: "\\ud800"}}\n', f'{BASE}"\\udfff": 1\n'])
def test_a_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(StudyFileError, match=r"s:3: .*invalid Unicode character escape"):
        parse_study(text, "s")
    with pytest.raises(StudyFileError, match="half of a character"):
        parse_study(text.encode().decode("unicode-escape"), "s")


def function_calls(text: str) -> int:
    """Return how many Python functions loading a study calls; the good ones only."""
    profile = cProfile.Profile(builtins=False)
    profile.runcall(parse_study, text)
    return sum(entry.callcount for entry in profile.getstats())


FUNCTION = "study: s\ntrainable: mine:train\nobjectives: [{metric: val_loss, direction: minimize}]\n"
WIDE = {
    "choices": "{choices: [a, b, c]}",
    "ints": "{int: [1, 1000]}",
    "steps": "{float: [0.0, 1.0], step: 0.000001}",
    "conditions": "{choices: [1, 2, 3], when: {config.x0: [a]}}",
}


@pytest.mark.parametrize("spec", WIDE.values(), ids=WIDE)
def test_loading_is_bound_by_the_file_and_not_by_its_space(spec: str) -> None:
    def of(settings: int) -> int:
        named = "".join(f", x{i}: {spec}" for i in range(1, settings))
        return function_calls(f"{FUNCTION}config: {{x0: {{choices: [a, b]}}{named}}}\n")

    of(2)  # what is made once for each type
    assert of(40) < 5 * of(10)
    assert of(40) < 400_000


@pytest.mark.parametrize("kind", ["c{0}", "{0}", "{0}.5"])
def test_a_choice_costs_the_same_among_any_number(kind: str) -> None:
    def of(choices: int) -> int:
        listed = ", ".join(kind.format(i) for i in range(choices))
        below = f"{{choices: [1, 2], when: {{config.x: [{listed}]}}}}"
        return function_calls(f"{FUNCTION}config: {{x: {{choices: [{listed}]}}, y: {below}}}\n")

    of(2)
    assert of(10_000) < 10 * of(1_000)


@pytest.mark.parametrize(("first", "last"), [("heads", "depth"), ("depth", "heads")])
def test_of_a_large_space_impossible_pairs_of_any_settings_are_found(first: str, last: str) -> None:
    own = {"heads": "{choices: [1, 4]}", "depth": "{int: [1, 64]}"}
    middle = "similarity: {choices: [separate, shared, cholesky]}, mlp: {int: [16, 900]}, pool: {choices: [mean, cls]}"
    with pytest.raises(StudyFileError, match="similarity=cholesky needs heads=1, got heads=4") as caught:
        parse_study(f"{BASE}model: {{{first}: {own[first]}, {middle}, {last}: {own[last]}}}\n")
    assert len(caught.value.faults) == 1


def test_unknown_keys_cost_no_more_than_once_each(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def comparisons(count: int) -> int:
        path = tmp_path / f"{count}.yaml"
        path.write_text(TINY + "".join(f"key{i:05}: 1\n" for i in range(count)))
        with (
            mock.patch.object(shape_faults, "_place", side_effect=shape_faults._place) as places,
            mock.patch.object(shape_faults, "did_you_mean", side_effect=shape_faults.did_you_mean) as guesses,
        ):
            code, _, err = run(capfd, "plan", str(path), "--no-time")
        assert code == 2
        assert f"and {count - 20:,} more faults" in err
        assert len(err.splitlines()) == 21
        assert guesses.call_count == 20
        return places.call_count

    assert comparisons(4000) == 2 * comparisons(2000)


@pytest.mark.parametrize(
    "value",
    [
        "{choices: [" + ", ".join(f"a{i}" for i in range(120)) + "]}",
        "{choices: [" + ", ".join("[]" for _ in range(120)) + "]}",
        "{int: [" + ", ".join("x" for _ in range(120)) + "]}",
        "{choices: [1], when: {" + ", ".join(f"a{i}: [[]]" for i in range(120)) + "}}",
        "{choices: [1], " + ", ".join(f"a{i}: 1" for i in range(120)) + "}",
    ],
)
def test_a_range_is_one_fault_however_much_is_wrong_with_it(value: str) -> None:
    with pytest.raises(StudyFileError) as caught:
        parse_study(f"{BASE}model:\n  width: {value}\n", "s")
    (fault,) = caught.value.faults
    assert fault.line == 4
    assert len(fault.render("s")) < 400


def test_a_study_file_has_a_greatest_size(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(TINY + "#" * SIZE_LIMIT_BYTES)
    code, _, err = run(capfd, "plan", str(path))
    assert code == 2
    assert f"such a file has at most {SIZE_LIMIT_BYTES:,} bytes" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("plan /dev/zero", 2, f"such a file has at most {SIZE_LIMIT_BYTES:,} bytes"),
        ("new x --from /dev/zero", 2, f"such a file has at most {SIZE_LIMIT_BYTES:,} bytes"),
        ("plan /dev/stdin --no-time", 0, ""),
    ],
)
def test_no_more_of_a_file_is_read_than_it_may_have(words: str, code: int, says: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ablate", *words.split()],
        input=TINY, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33)),
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (code, code // 2), done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("training: {epochs: N}", 2**31 - 1),
        ("budget: {trials: N}", 2**31 - 1),
        ("deterministic: N", 2**31 - 1),
        ("confirm: {top: N}", 2**31 - 1),
        ("model: {mlp: N}", 2**31 - 1),
        ("replicates: N", 100_000),
        ("confirm: {replicates: N}", 100_000),
        ("tune: {trials: 2, replicates: N, training.learning_rate: {float: [0.1, 1]}}", 100_000),
        ("campaign: {close: {replicates: N}}", 100_000),
    ],
)
def test_a_count_has_a_greatest_value(line: str, most: int) -> None:
    for number in (most + 1, 10**18, 10**30):
        with pytest.raises(StudyFileError) as caught:
            parse_study(f"{BASE}{line.replace('N', str(number))}\n", "s")
        assert f"Input should be less than or equal to {most}" in str(caught.value)
        assert sum("less than" in fault.rule for fault in caught.value.faults) == 1


@pytest.mark.services
@pytest.mark.parametrize(
    "line", ["training: {epochs: 2147483647}", "replicates: 100000", "confirm: {replicates: 100000}"]
)
def test_the_greatest_counts_can_be_planned(line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(f"{BASE}{line}\n")
    assert run(capfd, "plan", str(tmp_path / "s.yaml"), "--no-time")[0] == 0


KEYS = sorted({*Study.model_fields, "width", "mlp", "epochs", "when", "metric", "digits", "name", "<<", *RANGE_KEYS})
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=8), st.sampled_from(KEYS)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | scalars, inner, max_size=4),
    max_leaves=12,
)
tags = st.sampled_from(
    ["!!int", "!!float", "!!bool", "!!null", "!!str", "!!set", "!!omap", "!!timestamp", "!x", "*a", "&a"]
)


@pytest.mark.services
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.dictionaries(st.sampled_from(KEYS), values, max_size=5), named=st.booleans())
def test_any_mapping_is_a_study_or_a_study_file_error(content: dict[str, object], named: bool) -> None:
    if named:
        content = {"study": "s", "datasets": {"digits": {"patch": 4}}} | content
    text = yaml.safe_dump(content, allow_unicode=False)
    parsed(text)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pieces=st.lists(st.sampled_from([*KEYS, *":-[]{}#|>'\"\n ,&*!?", "\n  ", "a: ", "- "]) | tags | st.text(max_size=4))
)
def test_any_text_is_a_study_or_a_study_file_error(pieces: list[str]) -> None:
    parsed(" ".join(pieces))
    parsed(BASE + "".join(pieces))


def parsed(text: str) -> None:
    """Parse `text`; nothing but a Study or a StudyFileError of lines that can be printed may come of it."""
    try:
        parse_study(text)
    except StudyFileError as error:
        str(error).encode()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{x: {<<: {choices: [1, 2]}}}", "s:4: config.x.<<: YAML 1.2 has no merge key: write the settings out"),
        ("{5: 2}", "s:4: config.5 = 5: a name is a text of letters, digits and '_', with no digit first"),
        ("{null: 2}", "a name is a text of letters, digits and '_', with no digit first"),
        ('{"5": 2}', "s:4: config.5 = '5': a name is a text of letters, digits and '_', with no digit first"),
        ('{x: "a\\0b"}', "config.x = 'a\\x00b': this text holds the character \\0, which no command takes"),
        ('{x: {choices: [b, "a\\0b"]}}', "this text holds the character \\0, which no command takes"),
    ],
)
def test_names_and_texts_that_no_setting_can_have_are_refused_by_their_rule(config: str, said: str) -> None:
    with pytest.raises(StudyFileError) as caught:
        parse_study(f"{FUNCTION}config: {config}\n", "s")
    assert said in str(caught.value)
