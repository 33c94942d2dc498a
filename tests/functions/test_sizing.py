"""`ablate plan` counts the parameters of a user's function, by running it up to its loop."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest
import torch
from torchvision.models import vit_b_16

from ablate.driver import own_sizes, plan
from ablate.functions.border import guarded
from support.commands import run

VIT = """
from torchvision.models import vit_b_16

def train(config, run):
    print("a line of the user's code is no part of the plan")
    model = run.build(vit_b_16, num_classes=10, image_size=32)
    run.keep(model=model)
    for epoch in run.epochs():
        raise SystemExit("a plan trains nothing")
        yield {"val_accuracy": 0.5}

def test(model, config):
    return {"test_accuracy": 0.0}
"""
LEAVE_ONE_OUT = """\
study: ablated
trainable: mine:train
epochs: 20
parts:
  attention: {replace: {"encoder.layers.*.self_attention": zero}}
  mlps: {replace: {"encoder.layers.*.mlp": zero}}
  last: {replace: {encoder.layers.encoder_layer_11: remove}}
  one: {replace: {"encoder.layers.*.ln_1": {share: encoder.layers.encoder_layer_0.ln_1}}}
replicates: 5
objectives: [{metric: val_accuracy, direction: maximize}]
compare: {baseline: complete, metrics: [val_accuracy, test_accuracy]}
"""
SEARCH = """\
study: sized
trainable: mine:train
config: {width: {choices: [8, 16]}}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}]
budget: {trials: 2}
confirm: null
"""


def planned(
    code: str, study: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, str]], str]:
    (folder / "mine.py").write_text(code)
    (folder / "study.yaml").write_text(study)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    status, out, err = run(capfd, "plan", "study.yaml", "--format", "csv")
    return status, list(csv.DictReader(io.StringIO(out))), err


def test_the_leave_one_out_plan_of_a_vision_transformer_of_someone_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """vit_b_16: 12 attentions of 4 * 768^2 + 4 * 768, 12 MLPs of 2 * 768 * 3072 + 3072 + 768, norms of 2 * 768."""
    status, rows, err = planned(VIT, LEAVE_ONE_OUT, tmp_path, monkeypatch, capfd)
    assert status == 0, err
    with torch.device("meta"):
        complete = sum(p.numel() for p in vit_b_16(num_classes=10, image_size=32).parameters())
    attention, mlp, norm = 4 * 768**2 + 4 * 768, 2 * 768 * 3072 + 3072 + 768, 2 * 768
    assert {row["variant"]: int(row["params"]) for row in rows} == {
        "complete": complete,
        "without-attention": complete - 12 * attention,
        "without-mlps": complete - 12 * mlp,
        "without-last": complete - attention - mlp - 2 * norm,
        "without-one": complete - 11 * norm,
    }
    wrong = LEAVE_ONE_OUT.replace("*.mlp", "*.mpl")
    status, _, err = planned(VIT, wrong, tmp_path, monkeypatch, capfd)
    assert status == 2
    [line] = [line for line in err.splitlines() if line.startswith("ablate: ")]
    assert "replace: no module, parameter or buffer has the path 'encoder.layers.*.mpl'" in line
    assert ", encoder.layers.encoder_layer_*.mlp, " in line
    assert len(line) < 600


HEAD = "import torch\nfrom torch import nn\n"
FORMS = {
    "loop": ("    for epoch in run.epochs():\n        yield {'val_loss': 1.0}\n", ["72", "144"]),
    "needs values": (
        "    float(model.weight.sum())\n    for epoch in run.epochs():\n        yield {'val_loss': 1.0}\n",
        None,
    ),
    "own loop": ("    for epoch in range(2):\n        yield {'val_loss': 1.0}\n", None),
    "moved before": (
        "    model = model.to('cpu')\n    for epoch in run.epochs():\n        yield {'val_loss': 1.0}\n",
        ["72", "144"],
    ),
    "reports": (  # the first call ends it
        "    for epoch in range(2):\n        loss = model(torch.ones(4, 8)).sum()\n"
        "        open('trained', 'w').close()\n        run.report({'val_loss': loss.item()})\n",
        ["72", "144"],
    ),
    "begins": (
        "    run.begin()\n    open('trained', 'w').close()\n    run.report({'val_loss': 1.0})\n",
        ["72", "144"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_function_is_sized_where_its_code_allows_it(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loop, params = FORMS[form]
    body = "def train(config, run):\n    model = run.build(nn.Linear, 8, config['width'])\n    run.keep(model=model)\n"
    before = torch.get_rng_state()
    status, rows, err = planned(HEAD + body + loop, SEARCH, tmp_path, monkeypatch, capfd)
    assert status == 0, err
    assert [row.get("params") for row in rows] == (params or [None]), "networks of unknown size are one row"
    assert not (tmp_path / "trained").exists()
    assert torch.equal(torch.get_rng_state(), before)


SPACE = """\
study: counted
trainable: mine:train
config:
  width: {choices: [8, 16]}
  depth: {int: [1, 3]}
  gamma: {choices: [0.1, 0.2, 0.3]}
  steps: {int: [1, 1000000]}
  lr: {float: [1.0e-4, 1.0e-2], log: true}
  momentum: {float: [0.0, 0.9], step: 0.1}
  head: {choices: [2, 4], when: {config.depth: [3]}}
epochs: 2
objectives: [{metric: val_loss, direction: minimize}]
budget: {trials: 2}
confirm: null
"""
COUNTED = """
print("imported")

def train(config, run):
    assert 1e-4 <= config["lr"] <= 1e-2 and 0 <= config["momentum"] <= 0.9 and config["gamma"] and config["steps"] > 0
    layers = [nn.Linear(8, config["width"])] + [nn.Linear(config["width"], config["width"])] * 0
    layers += [nn.Linear(config["width"], config["width"]) for _ in range(config["depth"])]
    layers += [nn.Linear(config["width"], config.get("head", 1))]
    run.keep(model=run.build(lambda: nn.Sequential(*layers)))
    for epoch in run.epochs():
        yield {'val_loss': 1.0}
"""


def test_only_settings_that_change_the_size_are_architectures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two widths, three depths, and two heads at the depth of three: 2 x (1 + 1 + 2) = 8 of 144,000,000."""
    status, rows, err = planned(HEAD + COUNTED, SPACE, tmp_path, monkeypatch, capfd)
    assert status == 0, err

    def size(width: int, depth: int, head: int) -> int:
        return 8 * width + width + depth * width * (width + 1) + head * (width + 1)

    cases = [(w, d, h) for w in (8, 16) for d in (1, 2, 3) for h in ((2, 4) if d == 3 else (1,))]
    assert [int(row["params"]) for row in rows] == [size(*case) for case in cases]
    assert err.count("imported") == 1, "the module is imported once"


def test_an_error_of_the_function_is_a_note_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = HEAD + "def train(config, run):\n    config['width']\n    torch.optimm\n    yield {'val_loss': 1.0}\n"
    planned(code, SEARCH, tmp_path, monkeypatch, capfd)
    status, out, err = run(capfd, "plan", "study.yaml", "--no-time")
    assert status == 0, err
    assert (
        "the size is unknown before training: mine.py:5: AttributeError: module 'torch' has no attribute"
        in " ".join(out.split())
    )
    assert "architecture" not in out


CLOCK = """
import time
now = [0.0]
time.monotonic = lambda: now[0]

def wait(seconds):
    now[0] += seconds

def train(config, run):
    wait(config["width"] and 3.0)
"""
LOOPS = {
    "yields": ("    for epoch in run.epochs():\n        wait(2.0)\n        yield {'val_loss': 1.0}\n", 7.0),
    "reports": ("    run.begin()\n    for _ in 1, 2:\n        wait(2.0)\n        run.report({'val_loss': 1.0})\n", 7.0),
    "returns": ("    wait(4.5)\n    return {'val_loss': 1.0}\n", 7.5),
}


def timed(
    code: str, study: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[float | None, str]:
    """Return a trial's seconds, and what the plan says, in one line."""
    planned(code, study, folder, monkeypatch, capfd)
    found = json.loads(run(capfd, "plan", "study.yaml", "--json")[1])["seconds_per_trial"]
    return (found or {}).get("data"), " ".join(run(capfd, "plan", "study.yaml")[1].split())


@pytest.mark.parametrize("form", LOOPS)
def test_the_time_of_a_trial_is_that_of_its_first_report(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loop, seconds = LOOPS[form]
    study = SEARCH.replace("epochs: 2\n", "" if form == "returns" else "epochs: 2\n")
    found, said = timed(CLOCK + loop, study, tmp_path, monkeypatch, capfd)
    assert found == pytest.approx(seconds)
    assert f"A full trial takes roughly {seconds:.1f} s here, by its first epoch." in said


LOOP = "def train(config, run):\n    config['width']\n    for epoch in run.epochs():\n"


def test_why_no_time_is_known_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guarded, "REPORT_SECONDS", 0.3)
    code = f"{LOOP}        import time; time.sleep(60)\n        yield {{'val_loss': 1.0}}\n"
    found, said = timed(code, SEARCH, tmp_path, monkeypatch, capfd)
    assert found is None
    assert "known after the first one: its first report takes over 0.3 s" in said
    assert "Next: ablate search study.yaml" in said


def test_a_report_counts_although_the_function_catches_what_ends_it_or_reports_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    caught = (
        "def train(config, run):\n    config['width']\n    try:\n        run.report({'val_loss': 1.0})\n"
        "    except BaseException:\n        pass\n"
    )
    threaded = (
        "import threading\ndef train(config, run):\n    config['width']\n"
        "    own = threading.Thread(target=lambda: run.report({'val_loss': 1.0}))\n    own.start()\n    own.join()\n"
    )
    for number, code in enumerate((caught, threaded)):
        (tmp_path / str(number)).mkdir()
        planned(code, SEARCH, tmp_path / str(number), monkeypatch, capfd)
        assert run(capfd, "plan", "study.yaml")[0] == 0


LACKING = "its first report has no val_loss, which the study file asks for (reported: val_acc)"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{}['lost']", "a trial would fail before its first report: mine.py:4: KeyError: 'lost'"),
        ("import os; os._exit(3)", "a trial would fail before its first report: "),
        ("yield {'val_acc': .5}", f"a trial would fail: {LACKING}"),
        ("run.report({'val_acc': .5})", f"a trial would fail: {LACKING}"),
        ("yield .5", "a trial would fail at its first report: the function gave 0.5 (float): a report is a dictionary"),
        ("yield {'val_loss': 'low'}", "a trial would fail at its first report: the function gave val_loss='low'"),
    ],
)
def test_a_trial_that_would_fail_is_a_fault_with_an_exit_code(
    body: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    end = "" if "yield" in body or "report" in body else "        yield {'val_loss': 1.0}\n"
    code = f"{LOOP}        {body}\n{end}"
    planned(code, SEARCH, tmp_path, monkeypatch, capfd)
    status, out, err = run(capfd, "plan", "study.yaml")
    assert status == 1
    assert says in " ".join(err.split())
    assert "Next:" not in out
    status, out, _ = run(capfd, "plan", "study.yaml", "--json")
    assert status == 1
    assert json.loads(out)["fault"].startswith(says)
    assert run(capfd, "plan", "study.yaml", "--no-time")[0] == 0


def test_sizes_that_take_too_long_are_blank_with_the_reason_and_no_count_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_sizes, "SIZING_SECONDS", 1.0)
    monkeypatch.setattr(plan, "LATE", 0.1)
    code = HEAD + "import time\n" + COUNTED.replace("    layers =", "    time.sleep(0.8)\n    layers =", 1)
    status, _, err = planned(code, SPACE, tmp_path, monkeypatch, capfd)
    assert status == 0, err
    assert "Sizing the architectures …" in err
    out = run(capfd, "plan", "study.yaml", "--no-time")[1]
    assert "sizes are blank where 5 s were over" in " ".join(out.split())
    assert "architectures" not in out


def test_what_cannot_be_kept_is_refused_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = (
        HEAD
        + "def train(config, run):\n    config['width']\n    run.keep(model=object())\n    yield {'val_loss': 1.0}\n"
    )
    status, _, err = planned(code, SEARCH, tmp_path, monkeypatch, capfd)
    assert status == 2
    assert "trainable 'mine:train': run.keep(model=...): a object cannot be kept." in " ".join(err.split())


TWINS = """\
study: twins
trainable: mine:train
config: {width: 12}
epochs: 2
parts:
  middle: {replace: {"1.0": identity}}
  last: {replace: {"2": freeze}}
objectives: [{metric: val_loss, direction: minimize}]
compare: {baseline: complete, metrics: [val_loss], design: full, twin: {setting: config.width}}
"""
BUILT = """
def built(width):
    return nn.Sequential(nn.Linear(3, width), nn.Sequential(nn.Linear(width, width)), nn.Linear(width, 2))

def train(config, run):
    run.keep(model=run.build(built, config["width"]))
    for epoch in run.epochs():
        yield {'val_loss': 1.0}

def test(model, config):
    return {'test_loss': 1.0}
"""


def test_replaced_parts_are_combined_and_a_twin_is_as_large_as_the_network_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The parameters are 4w, w(w + 1) and 2(w + 1); each twin is the nearest of the widths 1 to 11."""
    status, rows, err = planned(HEAD + BUILT, TWINS, tmp_path, monkeypatch, capfd)
    assert status == 0, err
    found = {row["variant"]: int(row["params"]) for row in rows}
    first, middle, last = 4 * 12, 12 * 13, 2 * 13
    assert {name: found[name] for name in ("complete", "without-middle", "without-last", "bare")} == {
        "complete": first + middle + last,
        "without-middle": first + last,
        "without-last": first + middle,
        "bare": first,
    }
    sizes = [4 * w + w * (w + 1) + 2 * (w + 1) for w in range(1, 12)]
    for part in ("middle", "last"):
        target = found[f"without-{part}"]
        assert found[f"twin-of-without-{part}"] == min(sizes, key=lambda size: abs(size - target))
