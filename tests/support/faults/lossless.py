"""What must hold of a study whatever happened to it: nothing lost, nothing doubled, no attempt after its successor."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from ablate.ledger import ReportRecord
from support.faults.study_runs import StudyRun

ATTEMPT = re.compile(r"-attempt-(\d+)\.safetensors$")

# One optimiser step per epoch, so that a step, an epoch and the interval between two checkpoints are the same thing.
STUDY = """\
study: %(name)s
datasets: {digits: {patch: 4}}
model: {width: {choices: [8, 16]}, depth: 1, mlp: none}
training: {epochs: %(epochs)d, steps_per_epoch: 1, batch_size: 32, learning_rate: {float: [1.0e-3, 1.0e-1], log: true}}
objectives: [{metric: val_loss, direction: minimize}]
sampler: {name: %(sampler)s}
scheduler: {name: %(scheduler)s}
replicates: %(replicates)d
budget: {trials: %(trials)d}
confirm: null
"""


def study(
    name: str, *, trials: int, epochs: int, sampler: str = "random", scheduler: str = "none", replicates: int = 2
) -> str:
    """Return the text of a study of so many trials; every step of it is also an epoch."""
    counts = {"trials": trials, "epochs": epochs, "replicates": replicates}
    return STUDY % {"name": name, "sampler": sampler, "scheduler": scheduler, **counts}


def reports(run: StudyRun) -> list[ReportRecord]:
    """Return every report in the order of its commit."""
    with run.ledger() as ledger:
        return ledger.reports_since(run.name, 0)


def attempt_of(report: ReportRecord) -> int:
    """Return the attempt that wrote the checkpoint which a report names."""
    assert report.checkpoint is not None
    found = ATTEMPT.search(report.checkpoint)
    assert found, report.checkpoint
    return int(found[1])


def check_whole(run: StudyRun, *, trials: int, epochs: int | None = None, drivers: int = 1) -> None:
    """Fail where a trial is missing, unfinished or doubled, or a row is missing, doubled or of an overtaken attempt.

    `epochs` is the length of every trial, None where some are stopped early. `drivers` is how many held the study.
    """
    recorded = run.trials()
    assert [trial.key.number for trial in recorded] == list(range(trials))
    ends = Counter(str(trial.state) for trial in recorded)
    assert set(ends) <= {"COMPLETE"} | ({"PRUNED"} if epochs is None else set()), ends
    committed = reports(run)
    rows = Counter((r.key.number, r.epoch, r.replicate) for r in committed)
    assert max(rows.values()) == 1, [row for row, count in rows.items() if count > 1]
    wanted = {
        (trial.key.number, epoch, replicate)
        for trial in recorded
        for epoch in range(1, (epochs or trial.epochs_done) + 1)
        for replicate in range(len(trial.config.seeds))
    }
    assert set(rows) == wanted, sorted(set(rows) ^ wanted)
    for trial in recorded:
        own = [report for report in committed if report.key == trial.key]
        attempts = [attempt_of(report) for report in own]
        assert attempts == sorted(attempts), f"trial {trial.key}: an overtaken attempt was committed: {attempts}"
        assert attempts[-1] <= trial.attempt
        held = [report.driver_term for report in own]
        assert held == sorted(held)
        assert held[-1] <= drivers


def repeated_steps(run: StudyRun) -> dict[int, int]:
    """Return how many steps each trial took beyond those that its epochs need; trials without any are left out."""
    taken = run.steps_by_trial()
    surplus = {t.key.number: taken[t.key.dataset, t.key.number] - t.epochs_done for t in run.trials()}
    assert min(surplus.values()) >= 0, surplus
    return {number: steps for number, steps in surplus.items() if steps}


def attempts_begun(run: StudyRun) -> dict[int, dict[int, float]]:
    """Return for each trial when each of its attempts took its first step (seconds since the epoch)."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for line in run.steps():
        found[line["trial"]].setdefault(line["attempt"], line["at"])
    return found


def check_mlflow(run: StudyRun, uri: str) -> None:
    """Fail unless MLflow at `uri` shows each trial by one run that is not RUNNING, with each of its epochs once."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(run.name)
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    assert "RUNNING" not in {each.info.status for each in found}
    parents = [each for each in found if each.data.tags["ablate.kind"] == "study"]
    assert len(parents) == 1
    shown = {each.data.tags["ablate.trial"]: each for each in found if each.data.tags["ablate.kind"] == "trial"}
    assert len(shown) == len(found) - 1, "two runs of one trial"
    losses = defaultdict(list)
    for report in reports(run):
        losses[str(report.key.number), report.epoch].append(report.metrics["val_loss"])
    assert set(shown) == {number for number, _ in losses}
    for number, each in shown.items():
        points = [(p.step, p.value) for p in client.get_metric_history(each.info.run_id, "val_loss")]
        assert sorted(points) == [
            (epoch, sum(values) / len(values)) for (of, epoch), values in sorted(losses.items()) if of == number
        ]
