"""What a finished study may be asked for later: more trials, time and seeds; and what it may not, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.base.errors import StudyMismatchError
from ablate.core.trial import TrialState
from ablate.driver import resume as resumption
from ablate.ledger import Ledger
from ablate.study import parse_study
from ablate.tuning import Search
from support.commands import LOCAL, checked, write_study
from support.commands import run as command
from support.extended import COMPARISON, SEARCH, finish, run, seeds_of
from support.searches import CrashError, dying, hold_of, search_of, stored, url_in


def refusal(old: str, new: str, folder: Path, *, extend: bool) -> str:
    """Return what is said to a changed file, nothing where it may go on."""
    run(old, folder)
    with Ledger.open(url_in(folder)) as ledger:
        try:
            resumption.refuse_other_study(ledger, parse_study(new), new, extend=extend)
        except StudyMismatchError as error:
            return str(error)
    return ""


MORE = "Type --extend to go on with the new one, or put these settings back."
ANOTHER = "Give the new study another name (study: …), or put these settings back."
INCOMPARABLE = "study 's' exists, and this file would make its trials incomparable:"
EXTENSIONS = [
    (SEARCH, ("trials: 8", "trials: 9"), "another budget:\n  budget.trials: 8 -> 9"),
    (SEARCH, ("trials: 8", "trials: 4"), "another budget:\n  budget.trials: 8 -> 4"),
    (SEARCH, ("trials: 8", "trials: 8, wall_clock: 1h"), 'another budget:\n  budget.wall_clock: (not set) -> "1h"'),
    (SEARCH, ("replicates: 3", "replicates: 5"), "another confirmation:\n  confirm.replicates: 3 -> 5"),
    (SEARCH, ("replicates: 3", "replicates: 3, top: 1"), "another confirmation:\n  confirm.top: (not set) -> 1"),
    (COMPARISON, ("replicates: 3", "replicates: 5"), "another number of seeds:\n  replicates: 3 -> 5"),
    (SEARCH, ("[8, 64]", "[8, 128]"), "another range:\n  model.width.int: [8, 64] -> [8, 128]"),
    (SEARCH, ("1.0e-4, 1.0e-1", "1.0e-5, 1.0"), "another range:\n  RATE: [0.0001, 0.1] -> [1e-05, 1.0]"),
    (SEARCH, ("[none, 64]", "[32, 64, none]"), 'another range:\n  model.mlp.choices: ["none", 64] -> [32, 64, "none"]'),
    (SEARCH, ("step: 8", "step: 8, default: 16"), "another range:\n  model.width.default: (not set) -> 16"),
]
RATE = "training.learning_rate.float"


@pytest.mark.parametrize(("text", "change", "words"), EXTENSIONS)
def test_more_is_a_matter_of_typing_extend(tmp_path: Path, text: str, change: tuple[str, str], words: str) -> None:
    said = refusal(text, text.replace(*change), tmp_path, extend=False)
    assert said == f"study 's' exists with {words.replace('RATE', RATE)}\n{MORE}"
    assert refusal(text, text.replace(*change), tmp_path / "again", extend=True) == ""


def test_several_changes_are_named_together(tmp_path: Path) -> None:
    said = refusal(SEARCH, SEARCH.replace("trials: 8", "trials: 9").replace("tes: 3", "tes: 4"), tmp_path, extend=False)
    assert said.startswith("study 's' exists with another budget and another confirmation:\n  budget.trials: 8 -> 9\n")


FIRST = SEARCH.replace("step: 8", "step: 8, default: 16")
GRID = SEARCH.replace("random", "grid").replace("{float: [1.0e-4, 1.0e-1], log: true}", "0.01")
NOT_AGAIN = "Your settings were tried first: `start` and defaults of ranges cannot change once a search has begun."
WALKED = "A grid walks its ranges in one order, so they cannot become wider. Take another sampler."
REFUSALS = {
    "replicates": (
        SEARCH,
        SEARCH + "replicates: 2\n",
        "replicates: (not set) -> 2",
        "A search chooses by its trials' own seeds, so trials with more of them are no match for those before. For more"
        " seeds of what it found, raise confirm.replicates and type --extend.",
    ),
    "deterministic": (
        SEARCH,
        SEARCH + "deterministic: 8\n",
        "deterministic: (not set) -> 8",
        "The study was not deterministic when its trials were suggested and stopped, and that cannot change midway."
        " Leave it out.",
    ),
    "no longer": (
        SEARCH + "deterministic: 8\n",
        SEARCH,
        "deterministic: 8 -> (not set)",
        "The study had `deterministic: 8` when its trials were suggested and stopped, and that cannot change midway."
        " Keep it (--deterministic means 8).",
    ),
    "epochs": (SEARCH, SEARCH.replace("epochs: 3", "epochs: 4"), "training.epochs: 3 -> 4", ""),
    "narrower": (SEARCH, SEARCH.replace("[8, 64]", "[16, 128]"), "model.width.int: [8, 64] -> [16, 128]", ""),
    "scale": (SEARCH, SEARCH.replace("log: true", "log: false"), "training.learning_rate.log: true -> false", ""),
    "step": (SEARCH, SEARCH.replace("step: 8", "step: 4"), "model.width.step: 8 -> 4", ""),
    "off its steps": (SEARCH, SEARCH.replace("[8, 64]", "[4, 64]"), "model.width.int: [8, 64] -> [4, 64]", ""),
    "fewer choices": (
        SEARCH,
        SEARCH.replace("[none, 64]", "[none, 32]"),
        'model.mlp.choices: ["none", 64] -> ["none", 32]',
        "",
    ),
    "default": (FIRST, FIRST.replace("default: 16", "default: 24"), "model.width.default: 16 -> 24", NOT_AGAIN),
    "walked": (GRID, GRID.replace("[8, 64]", "[8, 72]"), "model.width.int: [8, 64] -> [8, 72]", WALKED),
    "grid": (COMPARISON, COMPARISON.replace("[1, 2]", "[1, 3]"), "model.depth.choices: [1, 2] -> [1, 3]", ""),
}


@pytest.mark.parametrize("extend", [False, True])
@pytest.mark.parametrize("which", REFUSALS)
def test_what_cannot_change_is_refused_with_the_reason(tmp_path: Path, which: str, extend: bool) -> None:
    text, new, difference, advice = REFUSALS[which]
    said = refusal(text, new, tmp_path, extend=extend)
    assert said.splitlines() == [INCOMPARABLE, f"  {difference}", *([advice] if advice else []), ANOTHER]


@pytest.mark.parametrize("extend", [False, True])
@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (SEARCH, "confirm.replicates", "Seeds that are confirmed stay confirmed. Put confirm.replicates back."),
        (COMPARISON, "replicates", "Seeds that are trained stay in the comparison. Put replicates back."),
    ],
    ids=["confirmed", "compared"],
)
def test_seeds_cannot_be_taken_back(tmp_path: Path, text: str, path: str, words: str, extend: bool) -> None:
    said = refusal(text, text.replace("replicates: 3", "replicates: 2"), tmp_path, extend=extend)
    first = "study 's' exists with more seeds than this file asks for:"
    assert said.splitlines() == [first, f"  {path}: 3 -> 2", words]


def test_fewer_trials_end_a_search_where_it_is(tmp_path: Path) -> None:
    run(SEARCH, tmp_path)
    before = stored(tmp_path)
    run(SEARCH.replace("trials: 8", "trials: 4"), tmp_path)
    assert stored(tmp_path) == before


def test_each_confirmed_network_gets_the_seeds_it_lacks(tmp_path: Path) -> None:
    run(SEARCH, tmp_path)
    before = stored(tmp_path)
    first = seeds_of(before)
    assert len(first) > 1
    run(SEARCH.replace("replicates: 3", "replicates: 5"), tmp_path)
    after = stored(tmp_path)
    assert after[: len(before)] == before, "what was finished is not touched"
    assert seeds_of(after) == {source: [(0, 1, 2), (3, 4)] for source in first}
    assert {(t.state, t.attempt) for t in after} == {(TrialState.COMPLETE, 1)}
    run(SEARCH.replace("replicates: 3", "replicates: 5"), tmp_path)
    assert stored(tmp_path) == after
    with Ledger.open(url_in(tmp_path)) as ledger:
        notes = [
            (n.kind, n.payload.get("confirmed")) for n in ledger.events("s") if n.kind in ("frozen", "test_opened")
        ]
    assert notes == [("frozen", list(first)), ("test_opened", None)] * 2


def test_more_trials_and_more_seeds_together(tmp_path: Path) -> None:
    run(SEARCH, tmp_path)
    begun = set(seeds_of(stored(tmp_path)))
    run(SEARCH.replace("replicates: 3", "replicates: 4").replace("trials: 8", "trials: 30"), tmp_path)
    seeds = seeds_of(stored(tmp_path))
    assert set(seeds) > begun
    assert seeds == {source: [(0, 1, 2), (3,)] if source in begun else [(0, 1, 2, 3)] for source in seeds}


def test_a_wider_range_is_searched_beside_the_trials_that_are_there(tmp_path: Path) -> None:
    run(SEARCH, tmp_path)
    before = stored(tmp_path)
    wider = SEARCH.replace("[8, 64]", "[8, 640]").replace("[none, 64]", "[32, none, 64]").replace("als: 8", "als: 30")
    run(wider, tmp_path)
    after = stored(tmp_path)
    assert after[: len(before)] == before, "what was finished is not touched"
    new = [trial.config.parameters for trial in after[len(before) :] if trial.config.stage == "search"]
    assert len(new) == 30 - 8
    assert max(each["model.width"] for each in new) > 64
    assert "32" in {str(each["model.mlp"]) for each in new}


@pytest.mark.parametrize("sampler", ["random", "tpe", "qmc", "nsga2", "gp"])
def test_a_space_that_was_used_up_has_room_again_when_it_is_wider(tmp_path: Path, sampler: str) -> None:
    small = GRID.replace("grid", sampler).replace("[8, 64]", "[8, 24]").replace("als: 8", "als: 20")
    run(small, tmp_path)
    assert sum(trial.config.stage == "search" for trial in stored(tmp_path)) == 6
    run(small.replace("[8, 24]", "[8, 40]"), tmp_path)
    found = [t.config.parameters for t in stored(tmp_path) if t.config.stage == "search"]
    assert len(found) == len({tuple(each.values()) for each in found}) == 10, "the whole wider space, each once"


def test_a_default_that_is_added_is_tried_next_and_confirmed(tmp_path: Path) -> None:
    run(SEARCH, tmp_path)
    before = stored(tmp_path)
    run(FIRST.replace("als: 8", "als: 10"), tmp_path)
    new = stored(tmp_path)[len(before) :]
    assert new[0].config.parameters["model.width"] == 16
    assert new[0].config.key.number in seeds_of(new)


def test_a_wider_top_confirms_those_it_adds(tmp_path: Path) -> None:
    run(SEARCH.replace("replicates: 3", "replicates: 3, top: 1"), tmp_path)
    first = seeds_of(stored(tmp_path))
    assert len(first) == 1
    run(SEARCH, tmp_path)
    assert len(seeds_of(stored(tmp_path))) > 1


@pytest.mark.parametrize("survived", range(8))
def test_an_extension_that_is_killed_goes_on(tmp_path: Path, survived: int) -> None:
    more = SEARCH.replace("replicates: 3", "replicates: 5")
    for folder in ("calm", "killed"):
        run(SEARCH, tmp_path / folder)
    run(more, tmp_path / "calm")
    study, left = parse_study(more), [survived]
    with Ledger.open(url_in(tmp_path / "killed")) as ledger, hold_of(study, ledger, file_text=more) as writer:
        search = search_of(study, writer, ledger)
        for name in ("add_trials", "note", "start", "report"):
            setattr(writer, name, dying(getattr(writer, name), left))
        with pytest.raises(CrashError):
            run_rest(search)
    run(more, tmp_path / "killed")
    facts = [[(t.config, t.state, t.epochs_done) for t in stored(tmp_path / folder)] for folder in ("calm", "killed")]
    assert facts[0] == facts[1]


def run_rest(search: Search) -> None:
    """Run what there is to run."""
    while (config := search.next_trial()) is not None:
        finish(search, config, "")


def test_a_study_whose_stored_fingerprint_is_of_an_older_ablate_goes_on(tmp_path: Path) -> None:
    """The seeds of a comparison used to be part of it."""
    run(COMPARISON, tmp_path)
    study = parse_study(COMPARISON)
    with Ledger.open(url_in(tmp_path)) as ledger:
        with hold_of(study, ledger, file_text=COMPARISON, fingerprint="of before"):
            pass
        resumption.refuse_other_study(ledger, study, COMPARISON, extend=False)


SMALL = """\
study: small
trainable: small_space:train
config: {x: {choices: [1, 2, 3]}}
objectives: [{metric: val_loss, direction: minimize}]
scheduler: {name: none}
budget: {trials: 2}
confirm: null
"""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", None),
        ("start: [{config.x: 3}]", "Trial 0 is your own settings: x 3; the sampler chooses y."),
        (
            "start: [{config.x: 3}, {config.x: 1, config.y: 0.25}]",
            "Trial 0 is your own settings: x 3; the sampler chooses y.",
        ),
        ("start: [{config.x: 1, config.y: 0.25}]", "Trial 0 is your own settings: x 1 · y 0.25."),
        ("default", "Trial 0 is your own settings: x 2 · y 0.5."),
    ],
)
def test_a_plan_says_that_trial_0_has_your_settings(
    given: str, says: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = "def train(config, run):\n    return {'val_loss': float(config['x'] + config['y'])}\n"
    text = SMALL.replace("3]}}", "3]}, y: {float: [0.1, 1.0]}}") + given.replace("default", "")
    if given == "default":
        text = text.replace("3]}", "3], default: 2}").replace("1.0]}", "1.0], default: 0.5}")
    monkeypatch.chdir(write_study(tmp_path, {"small_space.py": train, "s.yaml": text}))
    code, out, err = command(capfd, "plan", "s.yaml")
    assert code == 0, err
    assert [line.strip() for line in out.splitlines() if "Trial 0" in line] == ([says] if says else [])


def test_limits_typed_replace_those_of_the_file_and_another_value_is_an_extension(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = "def train(config, run):\n    return {'val_loss': float(config['x'])}\n"
    monkeypatch.chdir(write_study(tmp_path, {"small_space.py": train, "s.yaml": SMALL}))
    plain = SMALL.replace("budget: {trials: 2}\n", "")
    Path("default.yaml").write_text(plain)
    assert "The budget is the default: 24 trials." in command(capfd, "plan", "default.yaml")[1]
    assert "The budget is the default" not in command(capfd, "plan", "s.yaml")[1]
    search = ("search", "s.yaml", *LOCAL)
    code, _, err = command(capfd, *search, "--trials", "1")
    assert code == 0, err
    for other in ((), ("--trials", "2"), ("--time", "1h")):
        code, _, err = command(capfd, *search, *other)
        assert (code, "Type --extend" in err) == (2, True)
    code, out, err = command(capfd, *search, "--time", "1h", "--extend")
    assert code == 0, err
    assert "the search ended after 3 trials: no configuration of the space is left." in out
    status = checked("status", command(capfd, "status", "small", "--json")[1])
    assert (status["trials"]["data"]["COMPLETE"], status["budget"]["wall_clock"]["seconds"]) == (3, 3600.0)
    assert command(capfd, *search, "--time", "60m")[0] == 0, "the same command continues"
