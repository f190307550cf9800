#!/usr/bin/env python3
"""The chat page in a real browser, against tests/page/stub_server.py; server_test.py is the same against `nibble serve`.

    tests/page/page_test.py [--chromium /usr/bin/chromium] [--screenshots FOLDER]

Needs playwright (tests/page/requirements.txt) and a Chromium.
"""

import argparse
import sys
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
import stub_server  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Page:
    """A browser of its own, on the page that the server at `port` of this machine gives."""

    def __init__(self, browser, port, **options):
        self.url = f"http://127.0.0.1:{port}/"
        self.context = browser.new_context(**options)
        self.tab = self.context.new_page()
        self.problems = []
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.open()

    def open(self):
        self.tab.goto(self.url)

    def ask(self, text, wait=True):
        self.tab.fill("#input", text)
        self.tab.keyboard.press("Enter")
        if wait:
            expect(self.tab.locator("body.busy")).to_have_count(0, timeout=20000)

    def close(self):
        self.context.close()
        assert not self.problems, self.problems


class StubPage(Page):
    def __init__(self, browser, **options):
        self.stub = stub_server.start()
        super().__init__(browser, self.stub.server_address[1], **options)

    def close(self):
        self.stub.shutdown()
        super().close()


@test
def an_answer_streams_in_and_is_drawn_as_markdown(page):
    page.ask("How does BPE work?")
    tab = page.tab
    expect(tab.locator(".md ol > li")).to_have_count(3)
    expect(tab.locator(".md ol ul > li")).to_have_count(2)
    expect(tab.locator(".md table tbody tr")).to_have_count(2)
    expect(tab.locator(".code pre")).to_contain_text("def encode")
    expect(tab.locator(".md a")).to_have_attribute("href", "https://example.org/bpe")
    expect(tab.locator("#context")).to_contain_text("1,492 of 131,072")
    expect(tab.locator("#speed")).to_contain_text("tok/s")
    expect(tab.locator("#model")).to_have_text("gpt-oss-20b")


@test
def reasoning_is_folded(page):
    page.ask("hello")
    inner = page.tab.locator("details.think .inner")
    expect(inner).to_be_hidden()
    page.tab.locator("details.think summary").click()
    expect(inner).to_contain_text("ranks, pieces")


@test
def markup_of_the_model_stays_text(page):
    page.ask("hostile")
    tab = page.tab
    assert tab.evaluate("window.owned") is None
    assert tab.locator(".md img, .md script, .md b").count() == 0
    assert tab.locator('.md a[href^="javascript"]').count() == 0
    expect(tab.locator(".md")).to_contain_text('<img src=x onerror="window.owned=1">')


@test
def a_call_asks_for_its_result_and_goes_on(page):
    page.ask("tool")
    tab = page.tab
    expect(tab.locator(".tool .name")).to_have_text("get_weather")
    expect(tab.locator(".tool pre")).to_contain_text('"city": "Rome"')
    tab.fill(".tool textarea", '{"celsius": 21}')
    tab.click("text=Send result")
    expect(tab.locator(".turn.assistant").last).to_contain_text("21 degrees")
    sent = page.stub.state["requests"][-1]["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool"], sent
    assert sent[2]["tool_call_id"] == "call_1" and sent[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'


@test
def stop_keeps_what_came(page):
    page.ask("slow", wait=False)
    expect(page.tab.locator(".md")).to_contain_text("word word")
    page.tab.keyboard.press("Escape")
    expect(page.tab.locator("body.busy")).to_have_count(0)
    expect(page.tab.locator(".acts").last).to_contain_text("stopped")
    page.tab.wait_for_timeout(300)
    assert page.stub.state["dropped"] == 1


@test
def edit_and_again_ask_anew(page):
    page.ask("first")
    page.tab.click('[aria-label="Answer again"]')
    expect(page.tab.locator("body.busy")).to_have_count(0, timeout=20000)
    assert len(page.stub.state["requests"][-1]["messages"]) == 1
    page.tab.hover(".turn.user")
    page.tab.click('[aria-label="Edit and ask again"]')
    page.tab.fill(".edit textarea", "second")
    page.tab.keyboard.press("Enter")
    expect(page.tab.locator(".turn.user")).to_contain_text("second")
    expect(page.tab.locator(".turn.user")).to_have_count(1)


@test
def conversations_and_settings_survive_a_reload(page):
    page.ask("remember me")
    page.tab.keyboard.press("Alt+Comma")
    page.tab.fill('[data-setting="system"]', "Be brief.")
    page.tab.check('[name="effort"][value="high"]', force=True)
    page.tab.keyboard.press("Escape")
    page.tab.keyboard.press("Alt+n")
    page.ask("another")
    sent = page.stub.state["requests"][-1]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."} and sent["reasoning_effort"] == "high"
    page.open()
    expect(page.tab.locator("#chats li")).to_have_count(2)
    page.tab.click("text=remember me")
    expect(page.tab.locator(".turn.assistant")).to_contain_text("byte-pair")


@test
def trouble_is_said_plainly(page):
    tab, note = page.tab, page.tab.locator(".note")
    page.ask("busy")
    expect(note).to_contain_text("Try again in 7 s")
    page.ask("cut")
    expect(note).to_contain_text("connection to the server was lost")
    page.stub.state["loading"] = True
    page.ask("hello")
    expect(note).to_contain_text("still loading")
    expect(tab.locator("#model")).to_contain_text("loading")
    page.stub.state["loading"] = False
    expect(tab.locator("#model")).to_have_text("gpt-oss-20b", timeout=8000)
    page.stub.state["key"] = "secret"
    page.ask("hello")
    expect(note).to_contain_text("API key")
    tab.click("text=Enter key")
    tab.fill('[data-setting="key"]', "secret")
    tab.keyboard.press("Escape")
    page.ask("hello")
    expect(note).to_have_count(0)
    page.context.set_offline(True)
    page.ask("anyone there?")
    expect(note).to_contain_text("lost")


@test
def a_broken_list_of_tools_is_named(page):
    page.tab.keyboard.press("Alt+Comma")
    page.tab.fill('[data-setting="tools"]', "{oops")
    expect(page.tab.locator("#tools-note")).to_contain_text("not a JSON list")
    page.tab.keyboard.press("Escape")
    page.ask("hello")
    expect(page.tab.locator(".note")).to_contain_text("not valid JSON")
    assert page.stub.state["requests"] == []


@test
def every_control_has_a_name(page):
    page.ask("tool")
    nameless = page.tab.evaluate(
        """[...document.querySelectorAll("button, input, textarea")].filter((e) => !(e.getAttribute("aria-label") ||
           e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
    )
    assert nameless == [], nameless


def take_screenshots(browser, folder):
    folder.mkdir(parents=True, exist_ok=True)
    desktop, phone = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
    for name, view, scheme in (("light", desktop, "light"), ("dark", desktop, "dark"), ("phone", phone, "light"), ("phone-dark", phone, "dark")):
        page = StubPage(browser, viewport=view, color_scheme=scheme, has_touch="phone" in name, device_scale_factor=1)
        expect(page.tab.locator("#model")).to_have_text("gpt-oss-20b")
        page.tab.screenshot(path=folder / f"{name}-empty.png")
        page.ask("How does a byte-pair encoder work?")
        page.tab.screenshot(path=folder / f"{name}-answer.png")
        page.ask("tool")
        page.tab.screenshot(path=folder / f"{name}-tool.png")
        page.ask("busy")
        page.tab.locator("details.think summary").last.click()
        page.tab.screenshot(path=folder / f"{name}-busy.png")
        if "phone" in name:
            page.tab.click("#menu")
            page.tab.wait_for_timeout(300)
            page.tab.screenshot(path=folder / f"{name}-drawer.png")
        page.tab.evaluate("showSettings()")
        page.tab.screenshot(path=folder / f"{name}-settings.png")
        page.close()


def run_tests(tests, make_page, options):
    """Each test on a page of its own; one that fails hides no other. True: all passed."""
    failed = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for function in tests:
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
    return options.parse_args()


def main():
    options = arguments()
    if not options.screenshots:
        return 0 if run_tests(TESTS, StubPage, options) else 1
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        take_screenshots(browser, options.screenshots)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
