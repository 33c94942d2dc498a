"""Takes the pictures of live pages that the documentation shows, of one finished study that MLflow shows too.

    ablate search search_spaces/digits.yaml
    python docs/screenshots.py runs digits docs/images

Needs Chromium and Pillow. Written are live-study.png, mlflow-trials.png, mlflow-charts.png and mlflow-compare.png,
of a window of 1,500 by 1,000 points, with 128 colours.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from PIL import Image

from ablate.studies.locations import Locations
from ablate.studies.stored import read_study
from support.browser import Page, browser
from support.ports import free_port

WIDTH, HEIGHT = 1500, 1000
CLOSED = (
    "mlflow.assistant.chat_panel.close",
    "mlflow.experiment_page.shared_view.dismiss",
)  # buttons of MLflow's pages
COLOURS = 128
SETTLED_SECONDS = 4.0  # without a change of the page's text: MLflow's pages draw their charts after their tables


def main() -> None:
    """Take every picture; arguments: the folder of studies, a study, the folder of pictures."""
    runs, study, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    found = read_study(study, Locations(runs_dir=runs))
    confirmed = [trial for trial in found.snapshot.trials if trial.config.stage == "confirm"]
    with serving(runs) as addresses, TemporaryDirectory() as profile, browser(Path(profile)) as page:
        live, mlflow = addresses["Studies"].partition("?"), addresses["MLflow"].partition("?")
        show(page, addresses["Studies"], study)  # the page's cookie is the token from now on
        show(page, f"{live[0]}studies/{quote(study)}/", "Sort, filter")
        page.until(lambda: "Sort, filter" in text_of(page) and "being computed" not in text_of(page))
        page.value("document.querySelector('#now details')?.setAttribute('open', '')")
        take(page, folder / "live-study.png")
        show(page, addresses[study], "confirmed by")
        take(page, folder / "mlflow-trials.png")
        show(page, addresses[study] + "&compareRunsMode=CHART", "confirmed by")
        take(page, folder / "mlflow-charts.png")
        compared = [trial.mlflow_run_id for trial in confirmed[:3]]
        experiment = addresses[study].partition("experiments/")[2].partition("?")[0].partition("/")[0]
        named = f"runs={quote(json.dumps(compared))}&experiments={quote(json.dumps([experiment]))}"
        show(page, f"{mlflow[0]}#/compare-runs?{named}", "Comparing")
        take(page, folder / "mlflow-compare.png")


@contextmanager
def serving(runs: Path) -> Iterator[dict[str, str]]:
    """Serve the studies below `runs`; the block gets the printed addresses by what they show."""
    command = [sys.executable, "-m", "ablate", "ui", "--runs-dir", str(runs), "--port", str(free_port())]
    with subprocess.Popen([*command, "--no-browser"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses: dict[str, str] = {}
        for line in process.stdout:
            name, _, address = line.strip().partition(": ")
            addresses[name] = address.partition(" ")[0]
            if "MLflow" in addresses and name != "MLflow":
                break
        try:
            yield addresses
        finally:
            process.terminate()


def show(page: Page, address: str, text: str) -> None:
    """Open an address and return when the page shows `text` and no longer changes."""
    page.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    page.call("Page.navigate", url="about:blank")
    page.call("Page.navigate", url=address)
    page.until(lambda: text in text_of(page))
    for name in CLOSED:
        page.value(f"document.querySelector('[data-component-id=\"{name}\"]')?.click()")
    last, since = "", time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        now = text_of(page)
        last, since = now, since if now == last else time.monotonic()
        time.sleep(0.2)


def text_of(page: Page) -> str:
    """Return what a page shows, nothing while it loads."""
    return str(page.value("document.body ? document.body.innerText : ''"))


def take(page: Page, file: Path) -> None:
    """Write what the window shows as a PNG file."""
    found = page.call("Page.captureScreenshot", format="png")
    Image.open(BytesIO(b64decode(found["data"]))).convert("RGB").quantize(COLOURS).save(file, optimize=True)


if __name__ == "__main__":
    main()
