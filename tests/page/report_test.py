#!/usr/bin/env python3
"""Pages that bench/page.py makes, in a real browser: whole at any width, in both schemes, asking nobody.

    NIBBLE=build/cpu/src/app/nibble tests/page/report_test.py [--chromium /usr/bin/chromium] [--screenshots FOLDER]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402
from page_support import arguments  # noqa: E402
from support import TINY  # noqa: E402

support.TIMEOUT_S = 600  # a page of all levels, on a busy machine
WIDTHS = {"wide": 1280, "phone": 390}


def made(folder):
    """A page of each command."""
    kept = folder / "kept.json"
    commands = {
        "bench": ("bench", "-m", TINY, "-p", 32, "-n", 8, "-d", "0,64", "-b", "1,2", "-r", 2),
        "baseline": ("verify", TINY, "--level", 5, "--save-baseline", kept),
        "verify": ("verify", TINY, "--level", "1,5,6", "--features", "kv=bf16/fp8", "--rounds", 1, "--baseline", kept),
        "compare": ("bench", "--compare", kept, kept),
    }
    for name, command in commands.items():
        text, json, page = (folder / f"{name}.{kind}" for kind in ("md", "json", "html"))
        result = support.nibble(*command, "--json", "--report", text)
        assert text.exists(), (name, result.err)  # a baseline on a busy machine may fail: the page says so
        json.write_text(result.out)
        page.write_text(subprocess.run([sys.executable, support.SOURCE / "bench/page.py", json, text], capture_output=True, text=True, check=True).stdout)
        yield name, page


def check(tab, name):
    assert tab.locator("h1").count() == 1, name
    over = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert over <= 0, f"{name}: {over} pixels wider than the window"
    for box in tab.locator("svg text").all():
        assert box.evaluate("""(text) => { const t = text.getBoundingClientRect(), s = text.closest('svg').getBoundingClientRect();
            return t.left >= s.left - 1 && t.right <= s.right + 1 && t.top >= s.top - 1 && t.bottom <= s.bottom + 1 }"""), f"{name}: cut: {box.text_content()}"
    found = Axe().run(tab).response["violations"]
    assert found == [], (name, [(f["id"], f["nodes"][0]["html"]) for f in found])


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for name, page in made(Path(folder)):
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    asked = []
                    context = browser.new_context(viewport={"width": WIDTHS[width], "height": 900}, color_scheme=scheme, bypass_csp=True)
                    context.on("request", lambda request: asked.append(request.url))
                    tab = context.new_page()
                    tab.goto(page.as_uri())
                    if options.screenshots:
                        options.screenshots.mkdir(parents=True, exist_ok=True)
                        tab.screenshot(path=options.screenshots / f"{name}-{width}-{scheme}.png", full_page=True)
                    check(tab, f"{name}, {width}, {scheme}")
                    assert asked == [page.as_uri()], asked
                    context.close()
            print(f"ok      report of {name}", flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
