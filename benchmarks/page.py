"""Measure the page: its size, how long it takes to write, and when a browser first paints it, by the number of clients.

    python benchmarks/page.py                       # 10, 100, 1,000, 10,000 and 100,000 clients
    python benchmarks/page.py --clients 10,1000     # some of them

Real runs of clients in five kinds, two rounds of logistic regression; every client is tested. Chromium opens each page
three times without a network, on a screen of 1280x900; figures are medians. First paint is the browser's own figure
(first-contentful-paint); ready is when the map, the tables and the card are drawn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import fedatlas

COUNTS = (10, 100, 1_000, 10_000, 100_000)
TRAIN, TEST, WIDTH, CLASSES, KINDS = 6, 4, 16, 4, 5
NAMES = ("chromium", "chromium-browser", "google-chrome")
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def find_chromium() -> str:
    """Return the browser's program."""
    program = os.environ.get("FEDATLAS_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise SystemExit("There is no Chromium here: apt install chromium, or name it in FEDATLAS_CHROMIUM.")
    return program


def make_clients(count: int) -> fedatlas.Federation:
    """Return clients of five kinds, whose features are shifted."""
    rng = torch.Generator().manual_seed(0)
    each = TRAIN + TEST
    labels = torch.randint(CLASSES, (count * each,), generator=rng)
    kind = torch.arange(count).repeat_interleave(each) % KINDS
    centres, shifts = (torch.randn(many, WIDTH, generator=rng) for many in (CLASSES, KINDS))
    inputs = 2 * centres[labels] + shifts[kind] + torch.randn(len(labels), WIDTH, generator=rng)
    data = fedatlas.from_arrays(inputs.numpy(), labels.numpy(), name="random")
    parts = torch.arange(len(labels)).split(each)
    members = tuple(
        fedatlas.Client(name=f"client-{i:06d}", train=own[:TRAIN], test=own[TRAIN:], domain=f"kind {i % KINDS}")
        for i, own in enumerate(parts)
    )
    return fedatlas.Federation(data=data, clients=members, partition="equal parts")


def write(count: int, folder: Path) -> tuple[Path, float]:
    """Train a run of so many clients, write its page, and return it with the seconds that writing took."""
    run = fedatlas.train(
        make_clients(count),
        fedatlas.algorithms.fedavg(),
        fedatlas.Settings(evaluate_every=2),
        model="linear",
        rounds=2,
        cohort=min(count, 100),
        folder=folder / "run",
    )
    began = time.perf_counter()
    page = run.report(folder / "page.html")
    return page, time.perf_counter() - began


def open_in(browser: Any, page: Path, times: int = 3) -> tuple[float, float]:
    """Return the milliseconds to the first paint, and until all is drawn."""
    paints, drawn = [], []
    for _ in range(times):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
        shown = context.new_page()
        began = time.perf_counter()
        shown.goto(page.resolve().as_uri(), wait_until="commit")
        shown.wait_for_selector('body[data-ready="1"]', timeout=60_000)
        drawn.append(1e3 * (time.perf_counter() - began))
        shown.wait_for_function(PAINT)
        paints.append(float(shown.evaluate(PAINT)))
        context.close()
    return statistics.median(paints), statistics.median(drawn)


def main() -> None:
    """Print one row for each number of clients, as a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default=",".join(map(str, COUNTS)), help="numbers of clients, with commas")
    chosen = parser.parse_args()
    counts = [int(part) for part in chosen.clients.split(",")]
    from playwright.sync_api import sync_playwright

    print("| clients | kB | s to write | ms to first paint | ms until all is drawn |\n" + 5 * "|---" + "|", flush=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        open_in(browser, _blank(), times=1)  # the first window of a browser takes longer
        for count in counts:
            with tempfile.TemporaryDirectory() as folder:
                page, seconds = write(count, Path(folder))
                paint, drawn = open_in(browser, page)
                size = page.stat().st_size / 1e3
                print(f"| {count:,} | {size:,.0f} | {seconds:.1f} | {paint:.0f} | {drawn:.0f} |", flush=True)
        browser.close()


def _blank() -> Path:
    path = Path(tempfile.mkdtemp()) / "blank.html"
    path.write_text('<!doctype html><body data-ready="1"><p>blank</p>')
    return path


if __name__ == "__main__":
    main()
