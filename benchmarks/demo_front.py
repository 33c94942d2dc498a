"""The confirmed front of the digits demo with `sampler: front` and with `tpe`, five seeds of the study each.

    python benchmarks/demo_front.py                # 15 to 30 minutes on two idle cores; results/demo_front.csv
    python benchmarks/demo_front.py --seeds 1      # to see that it runs

Each run is `ablate search` on search_spaces/digits.yaml with another seed and sampler, on Ray, without a tracker. The
hypervolume is of the means of the confirmation on the test split, as a share of that of a network without errors that
has the fewest parameters. A seed that is in the file is not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import moocore
import numpy as np
import yaml
from live_search import fewest_parameters
from record import RESULTS, ROOT, append_csv, read_csv, with_origin

import ablate
from ablate.core.objectives import losses
from ablate.study import Study

FILE = RESULTS / "demo_front.csv"
PACKAGES = ("torch", "ray", "optuna", "numpy")


def run(sampler: str, seed: int, folder: Path) -> dict[str, object]:
    """Return the measures of one search."""
    fields = yaml.safe_load((ROOT / "search_spaces" / "digits.yaml").read_text())
    fields |= {"study": f"{sampler}-{seed}", "seed": seed, "sampler": {"name": sampler}}
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(fields))
    words = [sys.executable, "-m", "ablate", "search", str(file), "--tracker", "none", "--runs-dir", str(folder)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    study, stored = Study.model_validate(fields), ablate.load_study(fields["study"], runs_dir=folder)
    front, trials = stored.front(), stored.trials()
    values = front.select("val_accuracy", "params").to_numpy().astype(np.float64)
    reference = [float(each.reference or 0) for each in study.objectives]
    corner, best = (losses(study.objectives, each) for each in (reference, [1.0, float(fewest_parameters(study))]))
    found = np.array([losses(study.objectives, row) for row in values.tolist()])
    volume, whole = (float(moocore.hypervolume(each, ref=np.array(corner))) for each in (found, np.array([best])))
    return {
        "seed": seed,
        "sampler": sampler,
        "hypervolume": round(volume / whole, 4),
        "networks": front.height,
        "best_accuracy": round(float(values[:, 0].max()), 4),
        "fewest_parameters": int(values[:, 1].min()),
        "trials": trials.filter(stage="search").height,
        "epochs": int(trials.filter(stage="search")["epochs"].sum()),
    }


def main() -> None:
    """Run what is missing, and print the means and the paired difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    for seed in range(1, asked.seeds + 1):
        for sampler in ("front", "tpe"):
            known = read_csv(FILE) if FILE.exists() else []
            if any((row["seed"], row["sampler"]) == (str(seed), sampler) for row in known):
                continue
            with tempfile.TemporaryDirectory() as folder:
                row = run(sampler, seed, Path(folder))
            append_csv(FILE, with_origin([row], PACKAGES))
            print(row, flush=True)
    rows = read_csv(FILE)
    found = {name: [float(r["hypervolume"]) for r in rows if r["sampler"] == name] for name in ("front", "tpe")}
    gaps = np.subtract(found["front"], found["tpe"])
    print({name: round(float(np.mean(values)), 4) for name, values in found.items()}, "differences", gaps.round(4))


if __name__ == "__main__":
    main()
