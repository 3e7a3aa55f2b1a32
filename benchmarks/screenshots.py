"""Draw the pictures of the page in the README and the docs, from the pages that ``fedatlas demo`` writes.

    python benchmarks/screenshots.py            # of runs/demo, into docs/pictures

Four pictures: the digits on a desktop, light and dark, and the hearts on a phone, light and dark.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

from page import find_chromium
from PIL import Image

DESKTOP, PHONE = {"width": 1280, "height": 1260}, {"width": 390, "height": 844}


def shoot(browser: Any, page: Path, to: Path, *, size: dict[str, int], scheme: str, client: str, top: str) -> None:
    """Draw what a window shows of a page with a chosen client, from an element on; few colours make a small file."""
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True, reduced_motion="reduce")
    shown = context.new_page()
    shown.goto(page.resolve().as_uri())
    shown.wait_for_selector('body[data-ready="1"]')
    shown.fill("#map-search", client)
    shown.press("#map-search", "Enter")
    shown.fill("#map-search", "")
    shown.locator("#map-search").blur()
    shown.evaluate("top => document.querySelector(top).scrollIntoView()", top)
    shown.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    picture.quantize(192, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(to, optimize=True)
    context.close()


def main() -> None:
    """Draw the four pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="the folder of the demo")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="where the pictures go")
    chosen = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            digits, heart = (chosen.out / f"page-{name}-{scheme}.png" for name in ("desktop", "phone"))
            shoot(
                browser,
                chosen.demo / "digits.html",
                digits,
                size=DESKTOP,
                scheme=scheme,
                client="client-07",
                top="body",
            )
            shoot(
                browser,
                chosen.demo / "heart.html",
                heart,
                size=PHONE,
                scheme=scheme,
                client="hungarian",
                top="#card",
            )
            print(digits, heart, sep="\n")
        browser.close()


if __name__ == "__main__":
    main()
