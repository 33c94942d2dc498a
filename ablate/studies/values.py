"""Two files of numbers, a row for each run or sample: what they establish of the second file against the first."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from ablate.base.errors import RequestError, did_you_mean
from ablate.base.plain_text import counted
from ablate.base.redaction import error_text
from ablate.core.objectives import is_higher_better, is_share, unknown_direction
from ablate.results.comparison.judged import FEWEST, judge_alone
from ablate.results.comparison.rows import as_values
from ablate.results.comparison.runs import Paired, Values
from ablate.results.comparison.verdicts import CLAIMS, INCONCLUSIVE, against_margin, claims_of, p_above, refuted_by
from ablate.results.comparison.words import sentence
from ablate.results.rendering.numbers import capital, spell_metric
from ablate.results.statistics.intervals import t_interval
from ablate.studies.verdict import Requirement, answered, exit_code

SEED = "seed"  # a key of this name is of runs: they are judged as those of a comparison at its first look
YES_NO = {"true": 1.0, "false": 0.0}
LARGEST = 1e100


@dataclass(frozen=True, kw_only=True)
class FileVerdict:
    """What two files establish: a `row` with fields of `comparison.csv`, and the answers to what was required.

    `key` is the column that pairs their rows, None if they are not paired; `counts`: of each file, and paired.
    """

    files: tuple[Path, Path]
    key: str | None
    counts: tuple[int, int, int]
    row: dict[str, Any]
    required: tuple[Requirement, ...]

    @property
    def exit_code(self) -> int:
        """0 if every required claim holds, 3 if one is refuted, otherwise 4."""
        return exit_code(self.required)

    def as_values(self) -> dict[str, Any]:
        """Return plain values (docs/json.md)."""
        counts = dict(zip(("rows_of_baseline", "rows", "paired"), self.counts, strict=True))
        names = ("metric", "better", "margin", "verdict", "difference", "low", "high", "n", "p", "remark")
        row = as_values({name: self.row[name] for name in (*names, "claims", "refuted")})
        required = [{"claim": each.claim, "answer": each.answer} for each in self.required]
        files = dict(zip(("baseline", "file"), map(str, self.files), strict=True))
        return {**files, "key": self.key, **counts, **row, "required": required}

    def lines(self) -> list[str]:
        """Return the answer for a terminal."""
        names, (first, second, both) = {path.name for path in self.files}, self.counts
        old, new = (path.name if len(names) > 1 else str(path) for path in self.files)
        rows = f"{first:,} and {second:,} rows, not paired, as no column of both says that they belong together"
        if self.key is not None:
            rows = f"paired by {self.key}: {counted(both, self.key)}"
        metric = capital(spell_metric(self.row["metric"]))
        head = f"{metric} of {new} against {old} ({self.row['better']} is better), {rows}, 95% interval."
        below = [f"{each.text}: {each.answer}" for each in self.required]
        if self.row["margin"] is None:
            below = ["For verdicts add --margin: the difference that matters, chosen before the numbers."]
        return [head, f"{new}: {sentence(self.row, unit=self.key or 'row')}.", *below]


def judge_files(
    baseline: Path, file: Path, metric: str | None = None, *, key: str | None = None, higher: bool | None = None,
    margin: float | None = None, required: Sequence[str] = (),
) -> FileVerdict:  # fmt: skip
    """Return what the numbers of `metric`, by default the only column but the key, establish of `file`.

    `key` names what a row is of, by default `seed`, else the first column, where both files have it; of a key with
    several rows their mean counts. Rows are paired if both files have the same keys, and independent samples if they
    have none in common. Raises RequestError for a file that cannot be read, for other keys, an unknown name, and a
    claim without a margin.
    """
    tables = [_read(path) for path in (baseline, file)]
    metric = metric or _metric_of(tables, key)
    key = _key_of(tables, metric, key)
    first, second = (table.by_key(metric, key) for table in tables)
    higher = _direction_of(metric, higher)
    for claim in required:
        if claim not in CLAIMS:
            raise RequestError(f"--require {claim!r}: it is no claim. {did_you_mean(claim, CLAIMS)}")
        if margin is None:
            raise RequestError(f"--require {claim!r}: a claim needs a margin; add --margin, chosen before the numbers")
    if margin is not None and not 0 < margin < math.inf:
        raise RequestError(f"--margin {margin:g}: write a number above 0, in the unit of {metric}")
    both = [each for each in first if each in second]
    if both and not len(both) == len(first) == len(second):
        raise RequestError(
            f"{file}: {len(both):,} of the values of {key} are in both files, of {len(first):,} and {len(second):,}:"
            " give both the same, which are then paired, or none in common"
        )
    unit = key if both else None
    old, new = (np.array([each[name] for name in (both or each)]) for each in (first, second))
    if unit is not None and unit.lower() == SEED:
        row = _of_runs(old, new, both, metric, higher, margin)
    else:
        row = _of_samples(old, new, bool(both), higher, margin)
    better = "higher" if higher else "lower"
    row |= {"metric": metric, "kind": "variant", "scaled": False, "better": better, "margin": margin}
    asked = (Requirement(text=each, column=None, variant=file.name, claim=each) for each in required)
    return FileVerdict(
        files=(baseline, file),
        key=unit,
        counts=(len(first), len(second), len(both)),
        row=row,
        required=tuple(answered(each, [row]) for each in asked),
    )


def _of_runs(
    old: Values, new: Values, seeds: Sequence[str], metric: str, higher: bool, margin: float | None
) -> dict[str, Any]:
    """Return the row of runs paired by seed, [n] each, by the tests of a comparison; raise RequestError for a seed."""
    try:
        numbers = tuple(int(seed) for seed in seeds)
    except ValueError as error:
        raise RequestError(f"column {SEED}: seeds are whole numbers; give other keys another name") from error
    one_run = not np.ptp(old) + np.ptp(new) and not _binary(old, new)
    pair = Paired(own=new, baseline=old, lost=np.zeros(len(new), dtype=bool), seeds=numbers, compared=1, spread=None,
                  alike=one_run)  # fmt: skip
    return judge_alone(pair, metric, higher=higher, margin=margin).values()


def _binary(old: Values, new: Values) -> bool:
    return bool(np.isin(np.concatenate([old, new]), (0.0, 1.0)).all())


def _of_samples(old: Values, new: Values, paired: bool, higher: bool, margin: float | None) -> dict[str, Any]:
    """Return the row of samples, [n] each if paired, by a t test over differences, otherwise by Welch's (1947).

    If all values are 0 or 1, each file is given a further 0 and a further 1, which differ from each other, for tests
    and interval: where few samples differ a t test alone finds too much (Agresti and Caffo, The American Statistician
    2000; Bonett and Price, Journal of Educational and Behavioral Statistics 2012).
    """
    difference, n = float(new.mean() - old.mean()), len(new)
    if _binary(old, new):
        old, new = np.append(old, (0.0, 1.0)), np.append(new, (1.0, 0.0))
    sign = 1 if higher else -1
    if paired:
        span = t_interval((new - old).tolist())
        low, high = span.low, span.high
        gain, loss = (partial(p_above, each * (new - old)) for each in (sign, -sign))
    else:
        low, high, above = _welch(old, new)
        gain, loss = (partial(above, each) for each in (sign, -sign))
    against = {} if margin is None else against_margin(gain, loss, margin)
    p = min(2 * min(gain(0.0), loss(0.0)), 1.0)
    claims = None if margin is None else claims_of(sign * difference, p, against)
    known = math.isfinite(low)
    return {
        "verdict": None if claims is None else next(iter(claims), INCONCLUSIVE),
        "claims": None if claims is None else ", ".join(claims),
        "refuted": None if claims is None else ", ".join(refuted_by(claims, against)),
        "difference": difference,
        "low": low if known else None,
        "high": high if known else None,
        "n": n,
        "sd": None,
        "p": p if known else None,
        "seeds_needed": None,
        "remark": "",
    }


def _welch(old: Values, new: Values) -> tuple[float, float, Callable[[int, float], float]]:
    """Return the 95% interval of the difference of means, and the test that it, by its sign, is above a bound."""
    if min(len(old), len(new)) < FEWEST or not np.ptp(old) + np.ptp(new):
        return math.nan, math.nan, lambda sign, bound: 1.0
    gap = float(new.mean() - old.mean())
    parts = [float(each.var(ddof=1)) / len(each) for each in (old, new)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(v**2 / (len(x) - 1) for v, x in zip(parts, (old, new), strict=True))
    half = error * float(scipy.special.stdtrit(freedom, 0.975))

    def above(sign: int, bound: float) -> float:
        return float(scipy.special.stdtr(freedom, (bound - sign * gap) / error))

    return gap - half, gap + half, above


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The cells of a CSV file by line, and the names of its columns."""

    path: Path
    names: list[str]
    rows: list[tuple[int, list[str]]]

    def by_key(self, metric: str, key: str | None) -> dict[str, float]:
        """Return the mean of a metric by key; without a key, a line is one."""
        found = defaultdict[str, list[float]](list)
        for line, cells in self.rows:
            values = dict(zip(self.names, cells, strict=True))
            own = f"{self.path}:{line}" if key is None else _whole(values[key].strip())
            found[own].append(_number(values[metric], metric, f"{self.path}:{line}: {metric}"))
        return {name: math.fsum(values) / len(values) for name, values in found.items()}


def _read(path: Path) -> _Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            names = [name.strip() for name in next(lines, [])]
            rows = [(lines.line_num, cells) for cells in lines if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        said = error.strerror if isinstance(error, OSError) else error_text(error)
        raise RequestError(f"{path}: it cannot be read as CSV: {said}") from error
    if not rows:
        raise RequestError(f"{path}: it has no row below a first line of names")
    if twice := [name for name in names if names.count(name) > 1]:
        raise RequestError(f"{path}: two columns are called {twice[0]!r}")
    for line, cells in rows:
        if len(cells) != len(names):
            rule = "a comma separates columns, and a point the digits of a number"
            raise RequestError(f"{path}:{line}: it has {len(cells)} cells under {counted(len(names), 'name')}: {rule}")
    return _Table(path=path, names=names, rows=rows)


def _metric_of(tables: Sequence[_Table], key: str | None) -> str:
    """Return the only column of both files that is no key; raise RequestError if there is not one."""
    known = [name for name in tables[0].names[1:] if name in tables[1].names and name not in (key, SEED)]
    if len(known) != 1:
        raise RequestError(f"--values: name the column to compare by --metric. Known: {', '.join(known) or 'none'}.")
    return known[0]


def _direction_of(metric: str, higher: bool | None) -> bool:
    """Return whether higher values of a metric are better; raise RequestError if that is not known."""
    named = is_higher_better(metric, ())
    if named is None and higher is None:
        raise RequestError(f"--metric {metric}: {unknown_direction(metric)}; add --higher or --lower")
    if None not in (named, higher) and named != higher:
        raise RequestError(f"--metric {metric}: its name says that {'higher' if named else 'lower'} values are better")
    return bool(named if higher is None else higher)


def _key_of(tables: Sequence[_Table], metric: str, key: str | None) -> str | None:
    """Return the column that says what a row is of, None if the files have none in common; raise RequestError."""
    for option, name in (("--metric", metric), ("--key", key)):
        for table in tables if name is not None else ():
            if name not in table.names:
                names = did_you_mean(str(name), table.names)
                raise RequestError(f"{table.path}: {option} {name}: there is no such column. {names}")
    if key == metric:
        raise RequestError(f"--key {key}: this is the metric")
    known = [name for name in (SEED, *tables[0].names[:1]) if all(name in table.names for table in tables)]
    return key or next((name for name in known if name and name != metric), None)


def _whole(text: str) -> str:
    """Return a whole number in one form, as 3 for 3.0 and 03, and any other text as it is."""
    try:
        value = float(text)
    except ValueError:
        return text
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 and "_" not in text else text


def _number(text: str, metric: str, place: str) -> float:
    try:
        value = float(YES_NO.get(text.strip().lower(), text))
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST or "_" in text:
        raise RequestError(f"{place} is {text!r}: write a finite number, true or false")
    if is_share(metric) and not 0 <= value <= 1:
        raise RequestError(f"{place} is {text}: an accuracy is a share, from 0 to 1; divide percents by 100")
    return value
