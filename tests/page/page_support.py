"""A browser's page under test, and what runs the tests of page_test.py and server_test.py."""

import argparse
from pathlib import Path

from playwright.sync_api import expect, sync_playwright


class Page:
    """A browser of its own, on the page that the server at `port` of this machine gives."""

    def __init__(self, browser, port, **options):
        self.url = f"http://127.0.0.1:{port}/"
        self.context = browser.new_context(**options)
        self.tab = self.context.new_page()
        self.problems = []
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.context.on("request", self.is_asked)
        self.open()

    def is_asked(self, request):
        """The page works offline: whatever a test does, nobody but its server is asked."""
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"asks {request.url}")

    def open(self):
        self.tab.goto(self.url)

    def ask(self, text, wait=True):
        self.tab.fill("#input", text)
        self.tab.keyboard.press("Enter")
        if wait:
            expect(self.tab.locator("body.busy")).to_have_count(0, timeout=20000)

    def another(self):
        """A second tab of the same browser, at the same address."""
        tab = self.context.new_page()
        tab.on("pageerror", lambda error: self.problems.append(str(error)))
        tab.goto(self.tab.url)
        return tab

    def close(self):
        self.context.close()
        assert not self.problems, self.problems


def run_tests(tests, make_page, options):
    """Each test on a page of its own; one that fails hides no other. True: all passed."""
    failed = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for function in (t for t in tests if options.only in t.__name__):
            page = make_page(browser)
            try:
                function(page)
                page.close()
                print(f"ok      {function.__name__}", flush=True)
            except Exception as error:
                failed += 1
                page.context.close()
                print(f"FAILED  {function.__name__}\n{error}", flush=True)
        browser.close()
    return failed == 0


def arguments():
    options = argparse.ArgumentParser()
    options.add_argument("--chromium", default="/usr/bin/chromium")
    options.add_argument("--screenshots", type=Path)
    options.add_argument("--only", default="", help="tests whose names hold this")
    return options.parse_args()
