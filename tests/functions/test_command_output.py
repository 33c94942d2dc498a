"""A number is read whole or not at all, and numbers become reports."""

from __future__ import annotations

import math
import random
import re

import pytest

from ablate.base.errors import TrialError
from ablate.functions.command_output import LostReportError, NumberReader, ReportReader, SeedReport
from ablate.study.patterns import compile_pattern, named_pattern
from ablate.study.sections import MetricPattern


def reader(pattern: str, name: str = "val_x", scale: float = 1.0) -> NumberReader:
    return NumberReader(name, MetricPattern(pattern=pattern, scale=scale))


NUMBERS = ["0.5", "-0.5", "+3", ".5", "7.5e-05", "1E+3", "3.", "3.e-05", "1e5", "nan", "NaN", "inf", "-Infinity"]


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("around", ["val_x={}", "val_x={} ok", "val_x={}, y=2", "(val_x={})", "val_x={}%"])
def test_number_stands_for_any_number(text: str, around: str) -> None:
    found = reader("val_x={number}").last(around.format(text))
    assert found is not None
    assert found == pytest.approx(float(text), nan_ok=True)


@pytest.mark.parametrize("text", ["", "none", "info", "nano", "-", "e5"])
def test_text_that_is_no_number_is_no_match(text: str) -> None:
    assert reader("val_x={number}").last(f"val_x={text}") is None


UNITS = ["12M", "1.5k", "7B", "0.5T"]


@pytest.mark.parametrize("text", UNITS)
@pytest.mark.parametrize("pattern", ["val_x={number}", "val_x=([0-9.]+)"])
def test_a_unit_of_the_number_is_an_error_that_says_how_to_read_it(text: str, pattern: str) -> None:
    with pytest.raises(TrialError, match=rf"of '{text}' in 'val_x={text}': .* a unit with `scale:`"):
        reader(pattern).last(f"val_x={text}")
    assert reader(f"{pattern}{text[-1]}", scale=1e3).last(f"val_x={text}") == float(text[:-1]) * 1e3


GROUPED = [
    *(f"1{apart}234{point}5" for apart in "'’‘ʼ′´`＇_٬\u00a0\u2009\u202f\u2007\u3000 " for point in ".,٫"),
    "1'234", "1 234", "-1 234", "1.234,5", "1.234.567", "1.234.567,89", "1，234.5", "１２３４．５", "1．5", "١٬٢٣٤",
    "١٫٥", "0.123_456", "0.512\u2009345", "12,34,567.8", "1×10^-3", "1 * 10**3", "2·10⁻³", "1 234 567",
    "0.5,6", "0.5,0.7", "1/3", "0.5/1.0", "1⁄3", "1½", "10^-3", "10⁻³", "2**10", "3+4j", "0.5-0.7", "0.5–0.7", "3x2",
    "2026-11-29", "29.11.2026", "29/11/26", "2026年11月29日", "20261129T123001", "12:30:01", "12:30", "1h30m", "0.5:1",
]  # fmt: skip


@pytest.mark.parametrize("text", GROUPED)
@pytest.mark.parametrize("pattern", ["val_x={number}", r"val_x=([0-9.]+)", r"val_x=(\d+\.?\d*)", "x=[^,;]*?([0-9.]+)"])
@pytest.mark.parametrize("behind", ["", " ok", ", lr=0.1", "; epoch 3"])
def test_groups_of_digits_are_read_whole_or_not_at_all(text: str, pattern: str, behind: str) -> None:
    try:
        found = reader(pattern).last(f"epoch 2 val_x={text}{behind}")
    except TrialError:
        return
    assert found is None  # the pattern finds no sign, or no digit of another script


APART = [
    "0.5 123",
    "0 123",
    "3 2000",
    "3 500/1000",
    "3 100%",
    "3 128ms",
    "5 12",
    "2 30 s",
    "1 234it/s",
    "0.5, 0.7",
    "3 12:30",
]


@pytest.mark.parametrize("text", APART)
@pytest.mark.parametrize("pattern", ["val_x={number}", "val_x=([0-9.]+)"])
def test_what_stands_beside_a_number_is_no_group_of_it(text: str, pattern: str) -> None:
    assert reader(pattern).last(f"val_x={text}") == float(text.split()[0].strip(","))


@pytest.mark.parametrize("sign", ["−", "－", "﹣"])
def test_a_minus_of_another_form_is_not_lost(sign: str) -> None:
    with pytest.raises(TrialError, match=f"took 0.5 of '{sign}0.5'"):
        reader("val_x.*?{number}").last(f"val_x: {sign}0.5")


def test_digits_of_another_script_are_a_number() -> None:
    assert reader("val_x={number}").last("val_x=１２.５") == 12.5
    assert reader("val_x={number}").last("val_x=١٢٣") == 123


CUT = ["7.5e-05", "1E+3", "1,234.5", "1e", "12e", "1_000", "0,5", "1,234", "3.e-05", "2e+", "0x1F", "9.99D-05"]


@pytest.mark.parametrize("text", CUT)
def test_a_number_that_goes_on_behind_the_match_is_an_error(text: str) -> None:
    with pytest.raises(TrialError, match=rf"the pattern of val_x took .* of '{re.escape(text.rstrip('+'))}'"):
        reader("val_x=([0-9.]+)").last(f"epoch 3 val_x={text}")


@pytest.mark.parametrize("text", ["1,234.5", "1_000", "0,5", "1e"])
def test_where_the_pattern_has_the_placeholder_the_line_says_how_to_print_the_number(text: str) -> None:
    with pytest.raises(TrialError, match=rf"of '{text}' in 'val_x={text}': print the number as 1234.5 or 1e-05, or"):
        reader("val_x={number}").last(f"val_x={text}")


@pytest.mark.parametrize(
    ("pattern", "line"),
    [("loss.*?([0-9.]+)", "loss: -0.5"), (".*([0-9]+)", "acc 12"), (r"e([0-9]+)$", "1.5e10"), (r"([0-9]+)$", "0.25")]
    + [(r".*?(-?\d+)$", f"x {text}") for text in ("1/3", "2026-11-29", "12:30", "0,5", "1'234")],
)
def test_a_number_that_begins_before_the_match_is_an_error(pattern: str, line: str) -> None:
    with pytest.raises(TrialError, match=r"write \{number\} for the number"):
        reader(pattern).last(line)


WHOLE = [
    ("val_x={number}/", "val_x=0.5/1.0", 0.5),
    ("val_x={number}(?=,)", "val_x=0.5,0.7", 0.5),
    ("val_x={number}", "step 3/10 val_x=0.5,acc=3|7", 0.5),
    ("val_x={number}", "val_x=0.5±0.1", 0.5),
    ("val_x={number}", "val_x=0.5|0.7;3", 0.5),
    (r"Epoch \d+/{number}", "Epoch 3/10", 10.0),
    (r"top5\W+{number}", "top5:0.8", 0.8),
    (r"^\d+,{number}", "1,0.5,0.7", 0.5),
    ("val_x=([0-9.]+)", "val_x=0.5.", 0.5),
    ("val_x=([0-9.]+)", "val_x=5%", 5.0),
    ("val_x=([0-9.]+)", "val_x=3 epochs", 3.0),
    ("val_x=([0-9.]+)", "val_x=3epochs", 3.0),
    (r"val_x=(\S+)", "val_x=1_000", 1000.0),
    (r"epoch-(\d+)", "epoch-12", 12.0),
    (r"^(\d+),", "12,0.6", 12.0),
    (r"^\d+,{number}", "12,0.6", 0.6),
    (r"(\d+)/1000", "Accuracy: 948/1000 (95%)", 948.0),
    (r"({number})%", "at 95.5%", 95.5),
    ('"val_x": {number}', '{"epoch": 3, "val_x": 0.25}', 0.25),
    ("val_x={number}", "val_x=0.2 best_val_x=0.9", 0.2),
    ("x={number}", "val_x=0.2 best_val_x=0.9", 0.9),
    ("val_x={number}", "验证val_x=0.2", 0.2),
    ("val_x={number}M", "val_x=12M", 12.0),
    ("val_x={number}", "val_x=12Mb", 12.0),
    ("val_x={number}", "val_x=12 M", 12.0),
    (r"(\d+) 200 ", "12 200 0.5", 12.0),
    ("val_x=(?:nan|([0-9.]+))", "val_x=nan", None),
    ("val_x=(?:nan|([0-9.]+))", "val_x=0.5 val_x=nan", 0.5),
    (r"val_x=(\S*)", "val_x=", None),
]


@pytest.mark.parametrize(("pattern", "line", "value"), WHOLE)
def test_the_last_match_of_a_line_that_holds_a_number_counts(pattern: str, line: str, value: float | None) -> None:
    assert reader(pattern).last(line) == value


def test_no_printed_float_is_read_as_another_one() -> None:
    """For every pattern that people write, a number is itself or an error, and never silently a part of it."""
    random.seed(0)
    forms = ["{}", "{:.3f}", "{:e}", "{:,.2f}", "{:+g}", "{:g}", "{:_}", "{:.0f}"]
    for pattern in ("([0-9.]+)", r"(\d+\.\d+)", r"(\S+)", r"(-?[\d.]+)", r"([\d.e-]+)", "{number}", r"(\d*)"):
        read = reader(f"val_x={pattern}")
        for _ in range(300):
            text = random.choice(forms).format(random.choice([-1, 1]) * 10 ** random.uniform(-9, 9))
            try:
                found = read.last(f"epoch 1 val_x={text} lr=0.1")
            except TrialError:
                continue
            assert found is None or found == float(text.replace(",", "")), (pattern, text)


def test_a_scale_turns_percent_into_a_share() -> None:
    assert reader("acc {number}%", scale=0.01).last("acc 95.5%") == pytest.approx(0.955)


@pytest.mark.parametrize(
    ("text", "name", "pattern"),
    [
        ("val_acc={number}", "val_acc", "val_acc={number}"),
        ("val_acc=([0-9.]+)", "val_acc", "val_acc=([0-9.]+)"),
        ("val_acc= {number}", "val_acc", "val_acc= {number}"),
        ("val_acc: {number}", "val_acc", "val_acc: {number}"),
        ("val_acc=(?:nan|{number})", "val_acc", "val_acc=(?:nan|{number})"),
        ("val_loss=Average loss: {number}", "val_loss", "Average loss: {number}"),
        ("val_loss=loss=([0-9.]+)", "val_loss", "loss=([0-9.]+)"),
        ("val_loss=(?i)loss {number}", "val_loss", "(?i)loss {number}"),
    ],
)
def test_a_metric_is_named_before_its_pattern(text: str, name: str, pattern: str) -> None:
    assert named_pattern(text) == (name, pattern)
    compile_pattern(pattern)


@pytest.mark.parametrize("text", ["{number} {number}", "[0-9]", "(", "({number}) (x)"])
def test_a_pattern_has_one_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"group|regular"):
        compile_pattern(text)


def reports_of(lines: list[str], *, epoch: str | None = None, known: tuple[SeedReport, ...] = ()) -> ReportReader:
    read = ReportReader(
        searched=[reader("x={number}", "val_x"), reader("y={number}", "val_y")],
        tested=[reader("t={number}", "test_x")],
        epoch=None if epoch is None else reader(epoch, "epoch"),
        known=known,
    )
    for line in lines:
        read.read(line)
    return read


def test_all_metrics_once_are_a_report() -> None:
    read = reports_of(["x=1", "x=2", "y=3 t=5", "y=4 x=5 t=nan", "x=6"])
    assert [report.metrics for report in read.reports] == [{"val_x": 2, "val_y": 3}, {"val_x": 5, "val_y": 4}]
    assert math.isnan(read.tests["test_x"])
    assert read.missing() == ["val_y"]


@pytest.mark.parametrize("lines", [["p=7", "x=1", "x=2"], ["p=7 x=1", "x=2 p=7"], ["p=7", "x=1 p=8", "p=7 x=2", "p=7"]])
def test_a_size_that_is_printed_once_is_in_every_report(lines: list[str]) -> None:
    known = [SeedReport(metrics={"val_x": 1, "params": 7})]
    for earlier, rest in (((), lines), (known, lines[-1:] if "x=2" in lines[-1] else lines[-2:])):
        read = ReportReader(
            searched=[reader("p={number}", "params"), reader("x={number}", "val_x")], tested=[], known=earlier
        )
        assert read.missing() == ["params", "val_x"] if not earlier else ["val_x"]
        for line in rest:
            read.read(line)
        assert [report.metrics["val_x"] for report in read.reports] == [1, 2]
        assert read.reports[-1].metrics["params"] == 7
        assert read.missing() == ["val_x"]


def test_a_report_of_sizes_alone_needs_all_of_them_each_time() -> None:
    read = ReportReader(searched=[reader("p={number}", "params")], tested=[])
    assert [read.read(line) for line in ("p=7", "q=1", "p=7")] == [True, False, True]


def test_reports_are_those_of_the_epoch_printed_before() -> None:
    lines = [
        "x=0 y=0",
        "Epoch 0/2",
        "x=1",
        "Epoch 1/2: y=2 x=3",
        "x=9 y=9",
        "Epoch 1/2",
        "x=8 y=8",
        "Epoch 2/2 x=4 y=5",
    ]
    read = reports_of(lines, epoch=r"Epoch (\d+)")
    assert [(report.epoch, report.metrics) for report in read.reports] == [
        (1, {"val_x": 3, "val_y": 2}), (2, {"val_x": 4, "val_y": 5}),
    ]  # fmt: skip


KNOWN = tuple(SeedReport(metrics={"val_x": n, "val_y": n}, epoch=n) for n in (250.0, 500.0))


@pytest.mark.parametrize("first", [0, 250, 500, 750])
def test_a_continued_command_repeats_what_is_known(first: int) -> None:
    lines = [f"step {n} x=7 y=7" for n in range(first, 1001, 250) if n]
    read = reports_of(lines, epoch="step {number}", known=KNOWN)
    assert [report.epoch for report in read.reports] == [250, 500, 750, 1000]
    assert read.reports[:2] == list(KNOWN)


@pytest.mark.parametrize("first", [1000, 800.5, 100])
def test_a_report_that_was_lost_is_noticed(first: float) -> None:
    with pytest.raises(LostReportError, match=f"continued with epoch {first:g}, after a report of 500"):
        reports_of([f"step {first} x=7 y=7"], epoch="step {number}", known=KNOWN)


def test_a_line_that_looks_like_a_match_is_remembered() -> None:
    read = ReportReader(searched=[reader("val_x=([0-9.]+)")], tested=[])
    read.read("epoch 1 val_x=nan")
    assert read.missed == {"val_x": "epoch 1 val_x=nan"}
