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

    def endless(self, tokens=100_000):
        """Answers that do not end of their own accord, however fast the server is."""
        more = {"ignore_eos": True, "max_tokens": tokens}
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


def content(page):
    return page.tab.evaluate("shown(chat).at(-1).content")


@test
def an_answer_survives_a_reload(page):
    page.endless()
    page.ask("Tell me a story.", wait=False)
    page.tab.wait_for_function("() => shown(chat).at(-1).content.length > 100")
    before = content(page)
    page.tab.reload()
    expect(page.tab.locator("body.busy")).to_have_count(1)
    page.tab.wait_for_function("(length) => chat && runs.size && shown(chat).at(-1).content.length > length + 100", arg=len(before))
    assert content(page).startswith(before), (before, content(page)[: len(before) + 20])
    expect(page.tab.locator("#log")).not_to_contain_text("cut off")
    page.tab.keyboard.press("Escape")
    expect(page.tab.locator(".acts").last).to_contain_text("stopped")
    page.server.idle()
    page.tab.reload()
    expect(page.tab.locator(".acts").last).to_contain_text("stopped")


@test
def a_stop_right_after_a_reload_holds(page):
    page.endless()
    page.ask("Tell me a story.", wait=False)
    page.tab.wait_for_function("() => shown(chat).at(-1).content.length > 100")
    page.tab.reload()
    expect(page.tab.locator("body.busy")).to_have_count(1)
    page.tab.keyboard.press("Escape")
    expect(page.tab.locator(".acts").last).to_contain_text("stopped", timeout=10000)
    page.server.idle()


@test
def an_answer_that_ends_while_no_page_is_open_is_there_later(page):
    page.endless(3000)
    page.ask("Tell me a story.", wait=False)
    expect(page.tab.locator("details.think .inner, .turn.assistant .md").first).to_have_text(re.compile(r"\w \w"))
    page.tab.goto("about:blank")
    page.server.idle()
    page.tab.go_back()
    expect(page.tab.locator(".acts").last).to_contain_text(re.compile("3,000 tokens.* · cut at the token limit"))


@test
def a_stopped_answer_goes_on(page):
    page.endless()
    page.ask("Tell me a story.", wait=False)
    page.tab.wait_for_function("() => shown(chat).at(-1).content.length > 100")
    page.tab.keyboard.press("Escape")
    expect(page.tab.locator(".acts").last).to_contain_text("stopped")
    before = content(page)
    page.tab.click('[aria-label="Continue the answer"]')
    page.tab.wait_for_function("(length) => chat && shown(chat).at(-1).content.length > length + 100", arg=len(before))
    page.tab.reload()  # and what was said before survives a reload, too
    page.tab.wait_for_function("(length) => chat && !isBusy(chat) || runs.size && shown(chat).at(-1).content.length > length + 200", arg=len(before))
    assert content(page).startswith(before)
    expect(page.tab.locator("body.busy")).to_have_count(1)
    page.tab.keyboard.press("Escape")
    expect(page.tab.locator(".acts").last).to_contain_text("stopped")
    expect(page.tab.locator(".versions")).to_have_count(0)


@test
def a_long_prompt_tells_how_far_it_is(page):
    page.ask("The capital of France is Paris. " * 1000, wait=False)
    expect(page.tab.locator("#speed")).to_have_text(re.compile(r"reading… [1-9]\d? %"))
    page.tab.keyboard.press("Escape")
    page.server.idle()


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
    page.tab.click("text=Enter key")
    page.tab.keyboard.type("secret")
    page.tab.keyboard.press("Enter")
    expect(page.tab.locator("#model")).to_have_text("tiny")
    expect(page.tab.locator(".turn.assistant .md")).to_have_text("The capital of France is Paris.")
    expect(page.tab.locator(".note")).to_have_count(0)


class SmallPage(ServerPage):
    flags = ("--max-model-len", "400")


def a_conversation_that_is_too_long_goes_on_without_its_beginning(page):
    page.endless(150)
    note, asked = page.tab.locator(".note"), 0
    while not note.count():
        page.ask("Tell me a story.")
        asked += 1
    expect(note).to_contain_text(re.compile(r"too long\. It has 4\d\d tokens; the model takes 399"))
    page.tab.click("text=Leave out the oldest")
    expect(page.tab.locator(".turn.assistant")).to_have_count(asked)
    expect(page.tab.locator(".acts").last).to_contain_text("tokens")
    expect(note).to_have_count(0)


def main():
    options = arguments()
    served = run_tests(TESTS, ServerPage, options)
    opened = run_tests([a_key_opens_the_server], LockedPage, options)
    went_on = run_tests([a_conversation_that_is_too_long_goes_on_without_its_beginning], SmallPage, options)
    return 0 if served and opened and went_on else 1


if __name__ == "__main__":
    sys.exit(main())
