#!/usr/bin/env python3
"""The chat page in a real browser, as `nibble serve` gives it, with nibble-tiny behind it.

    NIBBLE=build/cpu/src/app/nibble tests/page/server_test.py [--chromium /usr/bin/chromium]
"""

import atexit
import json
import re
import sys
from pathlib import Path

from playwright.sync_api import expect

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from page_support import Page, arguments, run_tests  # noqa: E402
from serve_support import PATIENCE_S, Server  # noqa: E402

WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a given location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string", "description": "The city name"}}, "required": ["location"]},
}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class ServerPage(Page):
    """With a server of its own."""

    flags = ()

    def __init__(self, browser):
        self.server = Server("--served-model-name", "tiny", *self.flags)
        atexit.register(self.server.stop)  # where its test fails
        super().__init__(browser, self.server.port)
        expect.set_options(timeout=PATIENCE_S * 1000)

    def settings(self, **values):
        self.tab.keyboard.press("Alt+Comma")
        for name, value in values.items():
            self.tab.fill(f'[data-setting="{name}"]', value)
        self.tab.keyboard.press("Escape")

    def calm(self):
        """Greedy answers."""
        self.tab.evaluate("settings.temperature = 0")

    def endless(self):
        """Answers that do not end of their own accord, however fast the server is."""
        more = {"ignore_eos": True, "max_tokens": 100_000}
        self.tab.route("**/v1/chat/completions", lambda route: route.continue_(post_data=json.dumps({**route.request.post_data_json, **more})))

    def close(self):
        super().close()
        assert self.server.stop() == 0, self.server.log[-5:]


@test
def a_question_is_answered_with_its_reasoning_folded(page):
    page.calm()
    expect(page.tab.locator("#model")).to_have_text("tiny")
    page.ask("What is the capital of France?")
    expect(page.tab.locator(".turn.assistant .md")).to_have_text("The capital of France is Paris.")
    thought = page.tab.locator("details.think .inner")
    expect(thought).to_be_hidden()
    page.tab.locator("details.think summary").click()
    expect(thought).to_contain_text("France")
    expect(page.tab.locator("#context")).to_contain_text("of 131,072")


@test
def a_conversation_goes_on_from_the_cache_and_survives_a_reload(page):
    page.calm()
    page.ask("What is the capital of France?")
    page.ask("What is the capital of Japan?")
    expect(page.tab.locator(".turn.assistant .md").last).to_contain_text("Tokyo")
    assert page.server.metric("nibble:prefix_cache_hits_total") > 0
    page.open()
    page.tab.click("#chats li a")
    expect(page.tab.locator(".turn.assistant")).to_have_count(2)


@test
def a_tool_is_called_and_its_result_used(page):
    page.calm()
    page.settings(system="You are a helpful assistant.", tools=json.dumps([WEATHER]))
    page.ask("What is the weather in Trondheim?")
    expect(page.tab.locator(".tool .name")).to_have_text("get_weather")
    expect(page.tab.locator(".tool pre")).to_contain_text("Trondheim")
    page.tab.fill(".tool textarea", '{"temperature": 33, "condition": "sunny"}')
    page.tab.click("text=Send result")
    expect(page.tab.locator(".turn.assistant").last).to_contain_text("33")


@test
def stop_ends_the_work_on_the_server(page):
    page.endless()
    page.ask("Tell me a story.", wait=False)
    expect(page.tab.locator("details.think .inner, .turn.assistant .md").first).to_have_text(re.compile(r"\w \w"))
    expect(page.tab.locator("#speed")).to_contain_text("tok/s")
    page.tab.keyboard.press("Escape")
    expect(page.tab.locator(".acts").last).to_contain_text("stopped")
    expect(page.tab.locator("#speed")).to_contain_text("tok/s")
    page.server.idle()
    assert page.server.metric("nibble:request_success_total", finished_reason="abort") == 1


@test
def an_error_of_the_server_is_said(page):
    page.settings(tools=json.dumps([WEATHER, WEATHER]))
    page.ask("What is the weather in Trondheim?")
    expect(page.tab.locator(".note")).to_contain_text("two tools are called get_weather")


class LockedPage(ServerPage):
    flags = ("--api-key", "secret")


def a_key_opens_the_server(page):
    expect(page.tab.locator("#model")).to_contain_text("key")
    page.calm()
    page.ask("What is the capital of France?")
    expect(page.tab.locator(".note")).to_contain_text("API key")
    page.settings(key="secret")
    expect(page.tab.locator("#model")).to_have_text("tiny")
    page.tab.keyboard.press("Alt+r")
    expect(page.tab.locator(".turn.assistant .md")).to_have_text("The capital of France is Paris.")


def main():
    options = arguments()
    served = run_tests(TESTS, ServerPage, options)
    return 0 if run_tests([a_key_opens_the_server], LockedPage, options) and served else 1


if __name__ == "__main__":
    sys.exit(main())
