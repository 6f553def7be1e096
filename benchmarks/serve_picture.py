"""Draw ``docs/pictures/serve.png`` and ``serve_phone.png``: the what-if page on a desk and on a phone, in Chromium.

    python benchmarks/serve_picture.py [--out FOLDER]

It starts the page in a process of its own and opens it with Playwright in Debian's ``chromium``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

CHROMIUM = "/usr/bin/chromium"
PICTURES = Path(__file__).parents[1] / "docs/pictures"
STATE = {
    "workload": "llama-3-8b",
    "device": "H100 SXM",
    "devices-per-node": "8",
    "nodes": "2",
    "network": "InfiniBand NDR",
    "precision": "bf16",
    "sharding": "zero3",
}
VIEWS = {"serve": (1280, 900, "light", 1), "serve_phone": (390, 844, "dark", 2)}
"""Width and height in CSS pixels, colours, and pixels of the screen each."""
COLOURS = 128
"""Of the picture's palette: figures and type need no more, and a file stays below 200 kB."""


def main() -> None:
    """Take both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURES)
    out = parser.parse_args().out
    command = [sys.executable, "-m", "paceline", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            take(server.stdout.readline().split()[-1], out)
        finally:
            server.terminate()


def take(address: str, out: Path) -> None:
    """Every view of the page at that address, into that folder."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, (width, height, scheme, scale) in VIEWS.items():
            size: ViewportSize = {"width": width, "height": height}
            page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=scale)
            page.goto(f"{address}?{urlencode(STATE)}")
            page.wait_for_selector("#advice .advice")
            page.wait_for_load_state("networkidle")
            if width < height:  # on a phone the answer lies below the choices
                page.evaluate("document.querySelector('main').scrollIntoView()")
            picture = out / f"{name}.png"
            page.screenshot(path=picture)
            with Image.open(picture) as taken:
                taken.convert("RGB").quantize(COLOURS).save(picture, optimize=True)
            print(picture.name, f"{picture.stat().st_size / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
