#!/usr/bin/env python3
"""The chat page in a real browser, against tests/page/stub_server.py; server_test.py is the same against `nibble serve`.

    tests/page/page_test.py [--chromium /usr/bin/chromium] [--screenshots FOLDER]

Needs playwright (tests/page/requirements.txt) and a Chromium.
"""

import sys
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
import stub_server  # noqa: E402
from page_support import Page, arguments, run_tests  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


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
def a_fold_that_opens_leaves_the_end_in_sight(page):
    page.ask("hello")
    page.ask("tool")
    page.ask("busy")
    page.tab.locator("details.think summary").last.focus()
    page.tab.keyboard.press("Enter")
    expect(page.tab.locator("details.think[open]")).to_have_count(1)
    page.tab.wait_for_function("""() => document.querySelector(".note").getBoundingClientRect().bottom <=
        document.querySelector("#scroll").getBoundingClientRect().bottom""", timeout=3000)
    expect(page.tab.locator("#down")).to_be_hidden()


@test
def tables_tasks_footnotes_and_pictures_are_drawn(page):
    page.ask("notes")
    tab = page.tab
    expect(tab.locator(".md > p").last).to_have_text("The end.")
    cells = tab.locator(".md td")
    expect(cells.nth(2).locator("br")).to_have_count(1)
    expect(cells.nth(2)).not_to_contain_text("<br>")
    # No cell is narrower than its longest word.
    tab.set_viewport_size({"width": 390, "height": 844})
    broken = tab.evaluate(
        """[...document.querySelectorAll(".md th, .md td")].flatMap((cell) => {
          const range = document.createRange(), walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), out = [];
          for (let node; (node = walk.nextNode()); ) for (const m of node.data.matchAll(/[\\w$.]+/g)) {
            range.setStart(node, m.index);
            range.setEnd(node, m.index + m[0].length);
            if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) out.push(m[0]);
          }
          return out;
        })"""
    )
    assert broken == [], broken
    tasks = tab.locator(".md .task")
    expect(tasks).to_have_text(["draft", "send"])
    assert tasks.locator("input").evaluate_all("(boxes) => boxes.map((box) => box.checked)") == [True, False]
    assert tab.locator(".md img").count() == 0
    expect(tab.locator('.md a[href="https://example.org/map.png"]')).to_have_text("a map")
    expect(tab.locator(".md")).not_to_contain_text("![")
    expect(tab.locator(".md")).to_contain_text("neither is [^abc]")  # no footnote of that name
    tab.click(".ref")
    expect(tab.locator(".footnote").first).to_be_focused()
    expect(tab.locator(".footnote")).to_have_text(["1 The first, on two lines.", "two The second."])


@test
def markup_of_the_model_stays_text(page):
    page.ask("hostile")
    tab = page.tab
    assert tab.evaluate("window.owned") is None
    assert tab.locator(".md img, .md script, .md b").count() == 0
    assert tab.locator('.md a[href^="javascript"]').count() == 0
    expect(tab.locator(".md")).to_contain_text('<img src=x onerror="window.owned=1">')


@test
def long_runs_of_the_same_do_not_stop_the_page(page):
    page.ask("blanks")
    expect(page.tab.locator(".md > p").last).to_have_text("The end.")
    expect(page.tab.locator(".md > h1")).to_have_count(1)


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
def edit_and_again_keep_what_was(page):
    page.ask("first")
    page.tab.click('[aria-label="Answer again"]')
    expect(page.tab.locator("body.busy")).to_have_count(0, timeout=20000)
    assert len(page.stub.state["requests"][-1]["messages"]) == 1
    page.tab.hover(".turn.user")
    page.tab.click('[aria-label="Edit and ask again"]')
    page.tab.fill(".edit textarea", "second")
    page.tab.keyboard.press("Enter")
    tab, said = page.tab, page.tab.locator(".turn.user")
    expect(said).to_contain_text("second")
    expect(said).to_have_count(1)
    expect(tab.locator("body.busy")).to_have_count(0, timeout=20000)
    tab.focus('.turn.user [aria-label="Earlier version"]')
    tab.keyboard.press("Enter")
    expect(said).to_contain_text("first")
    expect(tab.locator(".turn.assistant .versions")).to_contain_text("2/2")
    tab.click('.turn.assistant [aria-label="Earlier version"]')
    expect(tab.locator(".turn.assistant .versions")).to_contain_text("1/2")
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == "Earlier version"  # the keyboard stays there
    tab.reload()
    expect(said).to_contain_text("first")
    expect(tab.locator(".turn.assistant .versions")).to_contain_text("1/2")
    page.ask("go on")  # goes on from what is shown
    assert [m["content"] for m in page.stub.state["requests"][-1]["messages"] if m["role"] == "user"] == ["first", "go on"]


@test
def conversations_and_settings_survive_a_reload(page):
    page.ask("remember me")
    page.tab.keyboard.press("Alt+Comma")
    page.tab.fill('[data-setting="system"]', "Be brief.")
    page.tab.keyboard.press("Escape")
    page.tab.select_option("#effort", "high")
    page.tab.keyboard.press("Alt+n")
    page.ask("another")
    sent = page.stub.state["requests"][-1]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."} and sent["reasoning_effort"] == "high"
    page.open()
    expect(page.tab.locator("#chats li")).to_have_count(2)
    page.tab.click("#chats >> text=remember me")
    expect(page.tab.locator(".turn.assistant")).to_contain_text("byte-pair")


@test
def trouble_is_said_plainly(page):
    tab, note = page.tab, page.tab.locator(".note")
    page.ask("busy")
    expect(note).to_contain_text("Try again in 7 s")
    page.ask("cut")
    expect(note).to_contain_text("connection to the server was lost")
    tab.click("text=Try again")  # this server has nothing of the answer any more
    expect(tab.locator(".turn.assistant .versions").last).to_contain_text("2/2")
    expect(note).to_contain_text("connection to the server was lost")
    page.stub.state["key"] = "secret"
    page.ask("hello")
    expect(note).to_contain_text("API key")
    tab.click("text=Enter key")
    tab.fill('[data-setting="key"]', "sëcret…")  # what no header can hold
    tab.keyboard.press("Escape")
    expect(tab.locator("#model")).to_have_text("API key refused")
    expect(note).to_contain_text("does not take this API key")
    tab.click("text=Enter key")
    tab.fill('[data-setting="key"]', "")
    tab.keyboard.press("Enter")
    expect(note).to_contain_text("asks for an API key")
    tab.click("text=Enter key")
    expect(tab.locator('[data-setting="key"]')).to_be_focused()
    tab.keyboard.type("wrong")
    tab.keyboard.press("Enter")
    expect(tab.locator("#settings")).to_be_hidden()
    expect(note).to_contain_text("does not take this API key")
    tab.click("text=Enter key")
    tab.fill('[data-setting="key"]', "secret")
    asked = len(page.stub.state["requests"])
    tab.keyboard.press("Enter")  # and the message that waits goes out
    expect(note).to_have_count(0)
    expect(tab.locator(".turn.assistant .md").last).to_contain_text("byte-pair")
    expect(tab.locator("body.busy")).to_have_count(0)
    assert len(page.stub.state["requests"]) == asked + 1
    page.context.set_offline(True)
    page.ask("anyone there?")
    expect(note).to_contain_text("lost")


@test
def a_conversation_that_is_too_long_can_go_on(page):
    tab, note = page.tab, page.tab.locator(".note")
    page.stub.state["room"] = 100
    page.ask("ones" * 40)
    expect(note).to_contain_text("This message is too long for the model. It has 160 tokens; the model takes 100.")
    tab.click("text=Edit")
    tab.fill(".edit textarea", "short " * 5)
    tab.keyboard.press("Enter")
    expect(tab.locator("body.busy")).to_have_count(0, timeout=20000)
    expect(note).to_have_count(0)
    page.stub.state["room"] = 700
    page.ask("second " + "x" * 300)
    expect(note).to_contain_text("The conversation has become too long.")
    expect(note.locator("button")).to_have_text(["Leave out the oldest", "New chat"])
    tab.click("text=Leave out the oldest")
    expect(tab.locator(".turn.assistant")).to_have_count(2)
    expect(tab.locator("body.busy")).to_have_count(0, timeout=20000)
    sent = page.stub.state["requests"][-1]["messages"]
    assert [m["content"][:6] for m in sent] == ["second"], sent
    tab.reload()
    expect(tab.locator(".cut + .turn.user")).to_contain_text("second")


@test
def a_stopped_answer_goes_on(page):
    tab = page.tab
    page.ask("slow", wait=False)
    expect(tab.locator(".md")).to_contain_text("word word word")
    tab.keyboard.press("Escape")
    expect(tab.locator("body.busy")).to_have_count(0)
    before = tab.locator(".md").text_content()
    tab.click('[aria-label="Continue the answer"]')
    expect(tab.locator("body.busy")).to_have_count(0, timeout=20000)
    expect(tab.locator(".turn.assistant")).to_have_count(1)
    expect(tab.locator(".versions")).to_have_count(0)
    sent = page.stub.state["requests"][-1]
    assert sent["continue_final_message"] is True and sent["add_generation_prompt"] is False
    assert sent["messages"][-1]["content"].strip() == before.strip() and sent["messages"][-1]["reasoning_content"]
    after = tab.evaluate("chat.messages.at(-1).content")
    assert after.startswith(before) and after.endswith(" and so on."), after
    expect(tab.locator('[aria-label="Continue the answer"]')).to_have_count(0)


@test
def a_message_is_deleted_with_what_follows(page):
    tab = page.tab
    tab.on("dialog", lambda dialog: dialog.accept())
    page.ask("first")
    page.ask("second")
    tab.keyboard.press("Alt+r")
    expect(tab.locator("body.busy")).to_have_count(0, timeout=20000)
    tab.click('.turn.assistant:last-child [aria-label="Delete the message"]')  # one of two versions
    expect(tab.locator(".turn.assistant")).to_have_count(2)
    expect(tab.locator(".versions")).to_have_count(0)
    two = page.another()
    tab.locator(".turn.user").last.hover()
    tab.locator('.turn.user [aria-label="Delete the message"]').last.click()
    for each in (tab, two):
        expect(each.locator(".turn")).to_have_count(2)
    tab.reload()
    expect(tab.locator(".turn")).to_have_count(2)
    assert tab.evaluate("chat.messages.length") == 2
    tab.locator(".turn.user").hover()
    tab.click('.turn.user [aria-label="Delete the message"]')
    expect(tab.locator("#chats li")).to_have_count(0)
    expect(two.locator(".empty")).to_be_visible()
    assert tab.evaluate("store.all()") == []


@test
def a_conversation_has_instructions_of_its_own(page):
    tab = page.tab

    def instruct(text):
        tab.click("#own")
        tab.fill("#own-text", text)
        tab.keyboard.press("Escape")

    tab.evaluate("set('system', 'For all.')")
    instruct("Speak French.")
    page.ask("hello")
    told = lambda: page.stub.state["requests"][-1]["messages"][0]["content"]  # noqa: E731
    assert told() == "Speak French."
    tab.reload()
    expect(tab.locator("#own.changed")).to_have_count(1)
    page.ask("again")
    assert told() == "Speak French."
    tab.keyboard.press("Alt+n")
    expect(tab.locator("#own.changed")).to_have_count(0)
    page.ask("another")
    assert told() == "For all."


@test
def a_conversation_is_exported_as_markdown(page):
    tab = page.tab
    page.ask("hostile")
    tab.click('[aria-label="More for “hostile”"]')
    with tab.expect_download() as download:
        tab.click("text=Export as Markdown")
    assert download.value.suggested_filename == "nibble-hostile.md"
    text = Path(download.value.path()).read_text()
    assert text.startswith("# hostile\n\n## You\n\nhostile\n\n## Answer\n\n<img src=x"), text[:100]


@test
def a_pasted_picture_is_refused_and_text_beside_one_is_pasted(page):
    tab = page.tab
    paste = """(text) => {
      const data = new DataTransfer();
      data.items.add(new File(["x"], "image.png", {type: "image/png"}));
      if (text) data.setData("text/plain", text);
      return document.querySelector("#input").dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true}));
    }"""
    assert tab.evaluate(paste, "cells of a table") is True  # left to the browser
    expect(tab.locator(".note")).to_have_count(0)
    assert tab.evaluate(paste, "") is False
    expect(tab.locator(".note")).to_contain_text("“image.png” is an image, and the model reads text only.")
    expect(tab.locator("#files")).to_be_hidden()


@test
def the_list_of_conversations_stays_as_it_is_while_one_is_answered(page):
    tab = page.tab
    page.ask("tale", wait=False)
    tab.evaluate("rename(chat.id, 'a title that is longer than the list of conversations is wide')")
    overflow = "[...document.querySelectorAll('aside nav')].map((nav) => [nav.scrollWidth > nav.clientWidth, nav.scrollHeight > nav.clientHeight])"
    expect(tab.locator("#chats .writing")).to_have_count(1)
    assert tab.evaluate(overflow) == [[False, False]]


@test
def a_long_prompt_tells_how_far_it_is(page):
    page.ask("long", wait=False)
    expect(page.tab.locator("#speed")).to_have_text("reading… 42 %")
    expect(page.tab.locator(".md")).to_contain_text("read it")


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
def switching_does_not_stop_an_answer(page):
    tab = page.tab
    page.ask("tale", wait=False)
    expect(tab.locator(".md")).to_contain_text("part1")
    first = tab.url
    tab.keyboard.press("Alt+n")
    expect(tab.locator(".turn")).to_have_count(0)
    expect(tab.locator("#chats .writing")).to_have_count(1)
    page.ask("hello")  # two at once
    assert tab.url != first
    expect(tab.locator("#chats .writing")).to_have_count(0, timeout=8000)
    tab.go_back()
    tab.go_back()
    assert tab.url == first, tab.url
    expect(tab.locator(".md")).to_contain_text("part39")
    assert page.stub.state["dropped"] == 0


@test
def a_reload_keeps_what_was_streamed(page):
    tab = page.tab
    page.ask("slow", wait=False)
    expect(tab.locator(".md")).to_contain_text("word word word word word word word word word word word word word word word word word word word word")
    page.tab.reload()
    expect(tab.locator(".turn.user")).to_contain_text("slow")
    expect(tab.locator(".md")).to_contain_text("word word word word word")
    expect(tab.locator(".acts").last).to_contain_text("cut off")
    expect(tab.locator("body.busy")).to_have_count(0)
    tab.click('[aria-label="Answer again"]')
    expect(tab.locator(".turn.assistant .md")).to_contain_text("word word")
    tab.keyboard.press("Escape")
    expect(tab.locator(".turn.assistant .versions")).to_contain_text("2/2")


@test
def a_reload_shows_the_end_and_drawing_anew_leaves_it(page):
    page.tab.set_viewport_size({"width": 1280, "height": 600})
    page.ask("hello")
    page.ask("hello")
    page.tab.reload()
    expect(page.tab.locator(".turn.assistant")).to_have_count(2)
    expect(page.tab.locator("#model")).to_have_text("gpt-oss-20b")
    page.tab.evaluate("draw()")
    expect(page.tab.locator(".acts").last).to_be_in_viewport()
    expect(page.tab.locator("#down")).to_be_hidden()


@test
def a_message_is_kept_as_soon_as_it_is_sent(page):
    tab = page.tab
    tab.evaluate("void (window.fetch = () => new Promise(() => {}))")  # never answered
    page.ask("are you there?", wait=False)
    tab.wait_for_timeout(200)
    tab.reload()
    expect(tab.locator(".turn.user")).to_contain_text("are you there?")
    tab.click("#log >> text=Answer")
    expect(tab.locator(".turn.assistant .md")).to_contain_text("byte-pair")


@test
def two_tabs_do_not_hurt_each_other(page):
    one = page.tab
    page.ask("first")
    two = page.another()
    expect(two.locator(".turn.assistant .md")).to_contain_text("byte-pair")
    # Other conversations.
    for tab, text in ((one, "by one"), (two, "by two")):
        tab.keyboard.press("Alt+n")
        tab.fill("#input", text)
        tab.keyboard.press("Enter")
    for tab in (one, two):
        expect(tab.locator("body.busy")).to_have_count(0, timeout=20000)
        expect(tab.locator("#chats li")).to_have_count(3)
    # The same one: the second tab sees the answer grow, adds to the conversation, and stops what the first writes.
    two.goto(one.url)
    page.ask("tale", wait=False)
    expect(two.locator(".md").last).to_contain_text("part9")
    expect(two.locator("body.busy")).to_have_count(1)
    expect(two.locator("body.busy")).to_have_count(0, timeout=8000)
    expect(two.locator(".md").last).to_contain_text("part39")
    two.fill("#input", "more")
    two.keyboard.press("Enter")
    expect(one.locator(".turn.user").last).to_contain_text("more")
    expect(one.locator("body.busy")).to_have_count(0, timeout=8000)
    page.ask("slow", wait=False)
    expect(two.locator(".md").last).to_contain_text("word word")
    two.evaluate("(() => { window.saves = 0; const save = store.save; store.save = (c) => { window.saves++; return save(c); }; })()")
    two.wait_for_timeout(2800)
    assert two.evaluate("window.saves") == 0  # it does not take the answer for one that was cut off
    two.keyboard.press("Escape")
    expect(one.locator(".acts").last).to_contain_text("stopped")
    one.reload()
    expect(one.locator(".turn.user")).to_have_count(4)
    expect(one.locator(".turn.user .said")).to_have_text(["by one", "tale", "more", "slow"])


@test
def both_tabs_may_answer_at_once(page):
    one = page.tab
    page.ask("hello")
    two = page.another()
    expect(two.locator(".turn.assistant .md")).to_contain_text("byte-pair")
    # No message of one tab reaches the other: as when both press Enter in the same moment.
    for tab in (one, two):
        tab.evaluate("tabs.postMessage = () => {}")
    for tab, text in ((one, "from one"), (two, "from two")):
        tab.fill("#input", text)
        tab.keyboard.press("Enter")
    for tab in (one, two):
        expect(tab.locator("body.busy")).to_have_count(0, timeout=20000)
    one.reload()
    expect(one.locator(".versions").first).to_contain_text("/2")
    contents = one.evaluate("chat.messages.map((m) => m.content)")
    assert "from one" in contents and "from two" in contents, contents
    assert all(one.evaluate("chat.messages.map((m) => m.ended ?? m.role !== 'assistant')"))


@test
def a_tab_that_closes_leaves_its_answer_cut_off(page):
    page.ask("hello")
    two = page.another()
    two.fill("#input", "slow")
    two.keyboard.press("Enter")
    expect(page.tab.locator(".md").last).to_contain_text("word word word")
    two.close()
    expect(page.tab.locator(".acts").last).to_contain_text("cut off")
    page.ask("hello again")


@test
def deleted_in_one_tab_is_gone_in_all(page):
    page.ask("slow", wait=False)
    expect(page.tab.locator(".md")).to_contain_text("word")
    two = page.another()
    two.on("dialog", lambda dialog: dialog.accept())
    two.locator("#chats li").hover()
    two.click('[aria-label^="More for"]')
    two.click("#menu-of-chat >> text=Delete")
    expect(page.tab.locator("#chats li")).to_have_count(0)
    expect(page.tab.locator(".empty")).to_be_visible()
    page.tab.wait_for_timeout(600)
    page.open()
    expect(page.tab.locator("#chats li")).to_have_count(0)
    assert page.tab.evaluate("store.all()") == []


@test
def an_answer_brings_no_deleted_conversation_back(page):
    page.ask("slow", wait=False)
    expect(page.tab.locator(".md")).to_contain_text("word")
    two = page.another()
    two.evaluate("tabs.postMessage = () => {}")  # as from a tab that hears too late
    two.evaluate("store.remove(chat.id)")
    expect(page.tab.locator(".empty")).to_be_visible()
    assert page.tab.evaluate("store.all()") == []


@test
def a_version_that_is_read_stays(page):
    page.ask("hello")
    page.tab.keyboard.press("Alt+r")
    expect(page.tab.locator("body.busy")).to_have_count(0)
    two = page.another()
    two.click('[aria-label="Earlier version"]')
    page.tab.keyboard.press("Alt+r")
    expect(page.tab.locator(".versions")).to_contain_text("3/3")
    expect(two.locator(".versions")).to_contain_text("1/3")


@test
def without_storage_it_talks_and_says_so(page):
    page.context.add_init_script("indexedDB.open = () => { throw new DOMException('no', 'SecurityError'); }")
    page.tab.reload()
    expect(page.tab.locator(".note")).to_contain_text("stores nothing")
    page.ask("hello")
    expect(page.tab.locator(".turn.assistant .md")).to_contain_text("byte-pair")
    expect(page.tab.locator(".note")).to_contain_text("stores nothing")


@test
def rename_search_export_and_import(page):
    tab = page.tab
    page.ask("about encoders")
    tab.keyboard.press("Alt+n")
    page.ask("hostile")
    tab.click('[aria-label="More for “hostile”"]')
    tab.keyboard.press("Enter")  # the menu's first: Rename
    tab.keyboard.type("Markup")
    tab.keyboard.press("Enter")
    expect(tab.locator("#title")).to_have_text("Markup")
    tab.fill("#find", "OWNED markup")
    expect(tab.locator("#chats li")).to_have_count(1)
    tab.fill("#find", "nowhere at all")
    expect(tab.locator("#none")).to_be_visible()
    tab.fill("#find", "")
    expect(tab.locator("#chats li")).to_have_count(2)
    tab.keyboard.press("Alt+Comma")
    with tab.expect_download() as download:
        tab.click("#export-all")
    path = download.value.path()
    before = tab.evaluate("store.all()")
    tab.evaluate("store.all().then((all) => Promise.all(all.map((c) => store.remove(c.id))))")
    page.open()
    expect(tab.locator("#chats li")).to_have_count(0)
    tab.keyboard.press("Alt+Comma")
    for _ in range(2):  # a second time changes nothing
        tab.set_input_files("#import-file", {"name": "kept.json", "mimeType": "application/json", "buffer": Path(path).read_bytes()})
        expect(tab.locator("#import-note")).to_have_text("Imported 2 conversations.")
        assert sorted(tab.evaluate("store.all()"), key=str) == sorted(before, key=str)
    for text, says in (("{", "no JSON"), ("{}", "format"), (Path(path).read_text().replace('"role": "user"', '"role": "boss"'), "message 1 to have a role")):
        tab.set_input_files("#import-file", {"name": "bad.json", "mimeType": "application/json", "buffer": text.encode()})
        expect(tab.locator("#import-note")).to_contain_text(says)
    tab.keyboard.press("Escape")
    tab.click("#chats >> text=Markup")
    expect(tab.locator(".turn.assistant .md")).to_contain_text("onerror")


@test
def effort_and_sampling_are_sent(page):
    tab = page.tab
    page.ask("hello")
    sent = page.stub.state["requests"][-1]
    assert sent["temperature"] == 1 and sent["reasoning_effort"] == "medium" and not {"top_p", "top_k", "min_p", "seed", "max_completion_tokens"} & set(sent), sent
    two = page.another()
    two.select_option("#effort", "low")
    tab.click("#sampling")
    tab.fill('[data-setting="temperature"]', "0.5")
    tab.fill('[data-setting="top_p"]', "0.9")
    tab.fill('[data-setting="seed"]', "7")
    tab.fill('[data-setting="max_tokens"]', "100")
    tab.keyboard.press("Escape")
    page.ask("hello")
    sent = page.stub.state["requests"][-1]
    assert [sent[k] for k in ("temperature", "top_p", "seed", "max_completion_tokens", "reasoning_effort")] == [0.5, 0.9, 7, 100, "low"], sent
    expect(two.locator("#sampling")).to_contain_text("4 changed")
    page.open()
    tab.click("#sampling")
    tab.click("#sampling-reset")
    page.ask("hello")
    assert "top_p" not in page.stub.state["requests"][-1]


@test
def a_message_waits_for_the_model(page):
    tab = page.tab
    page.stub.state["loading"] = 42
    page.open()
    expect(tab.locator("#model")).to_have_text("loading, 42 %")
    page.ask("hello", wait=False)
    expect(tab.locator(".waiting")).to_contain_text("loading weights, 42 %")
    page.stub.state["loading"] = 87
    expect(tab.locator(".waiting")).to_contain_text("87 %")
    assert tab.locator(".waiting progress").evaluate("(bar) => bar.value") == 87
    page.stub.state["loading"] = 0
    expect(tab.locator(".turn.assistant .md")).to_contain_text("byte-pair", timeout=8000)
    expect(tab.locator("body.busy")).to_have_count(0)
    page.stub.state["loading"] = 5
    page.ask("not now", wait=False)
    expect(tab.locator(".waiting")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(tab.locator("body.busy")).to_have_count(0)


@test
def a_file_with_many_backticks_goes_out(page):
    tab = page.tab
    tab.set_input_files("#pick", {"name": "quoted.md", "mimeType": "text/markdown", "buffer": b"`a ``b " * 200000})
    expect(tab.locator("#files li")).to_have_count(1)
    page.ask("what is this?")
    sent = page.stub.state["requests"][-1]["messages"][-1]["content"]
    assert sent.startswith("File quoted.md:\n```\n`a ``b `a"), sent[:100]


@test
def text_files_are_attached(page):
    tab = page.tab
    file = {"name": "notes.md", "mimeType": "text/markdown", "buffer": "Grüße\n```\nx\n```\n".encode()}
    tab.set_input_files("#pick", [file, {"name": "gone.txt", "mimeType": "text/plain", "buffer": b"gone"}, {"name": "photo.png", "mimeType": "image/png", "buffer": b"\x89PNG\x00\xff"}])
    expect(tab.locator(".note")).to_contain_text("“photo.png” is an image, and the model reads text only.")
    expect(tab.locator("#files li")).to_have_count(2)
    tab.click('[aria-label="Remove “gone.txt”"]')
    page.ask("What is this?")
    sent = page.stub.state["requests"][-1]["messages"][-1]["content"]
    assert sent == "File notes.md:\n````\nGrüße\n```\nx\n```\n````\n\nWhat is this?", sent
    expect(tab.locator("#files")).to_be_hidden()
    tab.reload()
    expect(tab.locator(".turn.user .file summary")).to_contain_text("notes.md")


@test
def nothing_above_an_answer_moves_while_it_is_written(page):
    tab = page.tab
    page.ask("hello")
    tab.evaluate(
        """() => {
          const tops = () => [...document.querySelectorAll(".turn, .composer, header")].map((e) => e.classList.contains("turn") ? e.offsetTop : e.getBoundingClientRect().top);
          window.moves = [];
          let was = tops();
          (function look() {
            const now = tops();
            const of = (list) => list.slice(0, 3).concat(list.slice(-1));  // header, two turns … composer
            if (JSON.stringify(of(now)) !== JSON.stringify(of(was))) window.moves.push([was, now]);
            was = now;
            requestAnimationFrame(look);
          })();
        }"""
    )
    page.ask("tale")
    page.tab.wait_for_timeout(200)
    moves = tab.evaluate("window.moves")
    assert not moves, moves[:3]


@test
def a_streamed_answer_leaves_the_focus_alone(page):
    tab = page.tab
    page.ask("slow", wait=False)
    tab.focus("details.think summary")
    expect(tab.locator(".md")).to_contain_text("word word word word")
    assert tab.evaluate("document.activeElement.tagName") == "SUMMARY"
    tab.keyboard.press("Enter")
    tab.wait_for_timeout(200)
    expect(tab.locator("details.think .inner")).to_be_visible()
    tab.keyboard.press("Escape")


@test
def formulas_are_mathml_and_code_has_colours(page):
    tab = page.tab
    page.ask("math")
    expect(tab.locator(".md math")).to_have_count(5)
    for letter in "ℝℒ𝐯𝜽𝔤":
        expect(tab.locator(".md p math").last).to_contain_text(letter)
    expect(tab.locator('.md math[display="block"]')).to_have_count(2)
    expect(tab.locator(".md mfrac")).to_have_count(1)
    tab.evaluate("document.fonts.ready")
    root = tab.locator(".md msqrt").evaluate("(root) => root.getBoundingClientRect().width - [...root.children].reduce((sum, e) => sum + e.getBoundingClientRect().width, 0)")
    assert root > 5, root  # a browser without a font for mathematics leaves out the sign
    expect(tab.locator(".md")).to_contain_text("costs $5 to $10 a month, $3 less")
    expect(tab.locator(".md")).to_contain_text("Broken: $\\oops{$")
    equal = tab.locator(".md mtable mtd:last-child mo:first-of-type").evaluate_all("(signs) => signs.map((sign) => Math.round(sign.getBoundingClientRect().left))")
    assert len(equal) == 2 and equal[0] == equal[1], equal
    left = tab.locator(".md mtable mtd:first-child mi").evaluate_all("(names) => names.map((name) => Math.round(name.getBoundingClientRect().right))")
    assert len(left) == 2 and left[0] == left[1], left
    page.ask("hello")
    expect(tab.locator(".code .hljs-keyword").first).to_have_text("def")


@test
def streamed_markdown_is_as_if_drawn_at_once(page):
    """Only the last blocks are drawn anew while text grows."""
    different = page.tab.evaluate(
        """(texts) => texts.filter((text) => {
          const grown = el("div"), whole = el("div");
          for (let n = 1; n <= text.length; n++) drawMarkdown(grown, text.slice(0, n));
          drawMarkdown(whole, text);
          return grown.innerHTML !== whole.innerHTML;
        })""",
        [stub_server.SPECIMEN, stub_server.MATH, stub_server.NOTES, stub_server.HOSTILE, "- a\n- b\n\n\n  c\n\n1. x\n2. y\n\n> q\nr\n\n| a | b |\n|--|--|\n| 1 | 2 |\nend"],
    )
    assert different == [], different


@test
def no_violation_that_axe_finds(page):
    axe = Axe()
    tab = page.tab

    def check(where):
        found = axe.run(tab).response["violations"]
        assert not found, where + ": " + "; ".join(f"{v['id']} ({v['help']}): {[n['html'][:160] for n in v['nodes'][:3]]}" for v in found)

    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        tab.keyboard.press("Alt+n")
        check(scheme + ", empty")
        page.ask("hello")
        page.ask("math")
        tab.set_input_files("#pick", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"})
        page.ask("tool")
        tab.set_input_files("#pick", {"name": "b.txt", "mimeType": "text/plain", "buffer": b"b"})
        check(scheme + ", conversation")
        tab.click("#sampling")
        check(scheme + ", sampling")
        tab.keyboard.press("Escape")
        tab.click("#files button")
        tab.locator("#chats li").first.hover()
        tab.locator('[aria-label^="More for"]').first.click()
        check(scheme + ", menu")
        tab.keyboard.press("Escape")
        tab.keyboard.press("Alt+Comma")
        check(scheme + ", settings")
        tab.keyboard.press("Escape")
        page.ask("busy")
        check(scheme + ", notice")
        page.ask("slow", wait=False)
        expect(tab.locator(".md").last).to_contain_text("word")
        check(scheme + ", streaming")
        tab.keyboard.press("Escape")
        expect(tab.locator("body.busy")).to_have_count(0)


@test
def the_keyboard_reaches_everything(page):
    tab = page.tab
    page.ask("hello")
    tab.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("(document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.tagName).split(' “')[0]"))
    reached = reached[reached.index("BODY") :]  # the window's end; then from the start
    order = ["A", "new", "find", "More for", "open-settings", "theme", "Copy", "Edit and ask again", "SUMMARY", "Copy the answer", "Answer again", "input", "attach", "effort", "sampling", "own"]
    places = [reached.index(name) for name in order if name in reached]
    assert len(places) == len(order) and places == sorted(places), reached
    tab.focus('[aria-label^="More for"]')
    tab.keyboard.press("Enter")
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.textContent") == "Export as Markdown"
    tab.evaluate("draw()")  # as when an answer ends meanwhile
    tab.keyboard.press("Escape")
    expect(tab.locator('[aria-label^="More for"]')).to_be_focused()
    tab.focus("#sampling")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.dataset.setting") == "temperature"
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.activeElement.id") == "sampling"


@test
def the_drawer_of_a_phone_closes_on_the_open_conversation(page):
    tab = page.tab
    tab.set_viewport_size({"width": 390, "height": 844})
    page.ask("hello")
    tab.click("#menu")
    tab.click("#chats a")
    expect(tab.locator("body.drawer")).to_have_count(0)


@test
def a_phone_shows_the_whole_name_of_the_model(page):
    page.tab.set_viewport_size({"width": 390, "height": 844})
    page.ask("a question that is longer than the screen of a phone is wide")
    expect(page.tab.locator("#model")).to_have_text("gpt-oss-20b")
    assert page.tab.locator("#model").evaluate("(name) => name.scrollWidth <= name.clientWidth && document.documentElement.scrollWidth <= innerWidth")


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
        page.tab.set_input_files("#pick", {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Notes\n"})
        page.tab.click("#sampling")
        page.tab.screenshot(path=folder / f"{name}-sampling.png")
        page.tab.keyboard.press("Escape")
        page.tab.click("#files button")
        page.ask("math")
        page.tab.click('.turn:last-child [aria-label="Answer again"]')
        expect(page.tab.locator("body.busy")).to_have_count(0)
        page.tab.screenshot(path=folder / f"{name}-math.png")
        page.ask("tool")
        page.tab.screenshot(path=folder / f"{name}-tool.png")
        page.ask("busy")
        page.tab.locator("details.think summary").last.click()
        page.tab.screenshot(path=folder / f"{name}-busy.png")
        page.ask("notes")
        page.tab.screenshot(path=folder / f"{name}-notes.png")
        page.stub.state["key"] = "secret"
        page.ask("hello")
        page.tab.screenshot(path=folder / f"{name}-key.png")
        page.tab.click("text=Enter key")
        page.tab.screenshot(path=folder / f"{name}-key-entry.png")
        page.tab.fill('[data-setting="key"]', "secret")
        page.tab.keyboard.press("Enter")
        expect(page.tab.locator("body.busy")).to_have_count(0, timeout=20000)
        page.stub.state["room"] = 700
        page.ask("second " + "x" * 300)
        page.tab.screenshot(path=folder / f"{name}-too-long.png")
        page.stub.state["room"] = 0
        page.tab.goto(page.url)
        page.ask("slow", wait=False)
        expect(page.tab.locator(".md").last).to_contain_text(" ".join(["word"] * 22))
        page.tab.reload()
        expect(page.tab.locator(".acts").last).to_contain_text("cut off")
        page.tab.screenshot(path=folder / f"{name}-reload.png")
        if "phone" in name:
            page.tab.click("#menu")
            page.tab.wait_for_timeout(300)
            page.tab.screenshot(path=folder / f"{name}-drawer.png")
        page.tab.evaluate("showSettings()")
        page.tab.screenshot(path=folder / f"{name}-settings.png")
        page.close()


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
