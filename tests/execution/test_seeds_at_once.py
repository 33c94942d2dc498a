"""Seeds of a trial side by side: in even groups that leave none of its CPUs idle, or as many as are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.core.trainable import Member
from ablate.execution.pack_run import Assignment, PackRun
from support.commanded import own_trial

MEETING = """
import os, time
from pathlib import Path
import torch

def train(config, run):
    here = Path(config["folder"])
    (here / f"{run.seed}").write_text(str(torch.get_num_threads()))
    begun = time.monotonic()
    while len(list(here.iterdir())) < config["together"][run.seed]:
        assert time.monotonic() - begun < 60, "the others have not begun"
        time.sleep(0.01)
    return {"val_loss": float(max(int(each.name) for each in here.iterdir()))}
"""


@pytest.mark.parametrize(
    "case",  # threads of the trial, seeds at once as asked, begun when each seed ends, threads of each seed
    [
        (1, None, (1, 2, 3, 4, 5), 1),
        (2, None, (3, 3, 3, 5, 5), 1),
        (2, 2, (2, 2, 4, 4, 5), 1),
        (2, 5, (5, 5, 5, 5, 5), 1),
        (4, 2, (2, 2, 4, 4, 5), 2),
        (10, None, (5, 5, 5, 5, 5), 2),
    ],
)
def test_seeds_of_a_trial_train_in_even_groups(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, asked, together, each_has = case
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "meeting.py").write_text(MEETING)
    (tmp_path / "here").mkdir()
    given: dict[str, Any] = {"folder": str(tmp_path / "here"), "together": list(together)}
    config = own_trial("meeting:train", given, seeds=(0, 1, 2, 3, 4))
    member = Member(config=config, checkpoints=tmp_path / "trial", attempt=1)
    given = {"threads": threads, "seeds_at_once": asked, "data_dir": None, "device": "cpu"}
    run = PackRun(Assignment(members=(member,), trainer=None, **given), lambda: False)
    report: Any = run.turn().outcomes[config.key]
    run.close()
    assert [metrics["val_loss"] for metrics in report.metrics] == [count - 1 for count in together], report
    assert {each.read_text() for each in (tmp_path / "here").iterdir()} == {str(each_has)}
