"""What agents send, in bodies of our own that have each construct once, and a checker of the events that come back. Standard library
only."""
import json
import re

import support
from serve_support import Server
from support import Case

PATCH = '''start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: "file " name LF line+
name: /(.+)/
line: ("+" | "-") /(.*)/ LF -> change
%import common.LF
'''
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"type": "integer", "minimum": 0, "maximum": 9}},
           "required": ["a", "b"], "additionalProperties": False}
ADD = {"type": "function", "name": "add", "description": "Adds", "strict": False, "parameters": NUMBERS}
NAMESPACE = {"type": "namespace", "name": "mcp__tiny", "description": "Small tools", "tools": [ADD]}
TOOLS = [
    {"type": "function", "name": "run", "description": "Runs a command", "strict": False,
     "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"], "additionalProperties": False}},
    NAMESPACE,
    {"type": "custom", "name": "patch", "description": "Changes files", "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}},
    {"type": "custom", "name": "day", "description": "A day", "format": {"type": "grammar", "syntax": "regex", "definition": "(Mon|Tues|Fri)day"}},
    {"type": "tool_search", "execution": "client", "description": "Finds tools",
     "parameters": {"type": "object", "properties": {"limit": {"type": "integer", "minimum": 1, "maximum": 5}}, "required": ["limit"], "additionalProperties": False}},
    {"type": "web_search", "external_web_access": False},
]
ASK = [{"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
       {"type": "message", "id": "msg_2", "role": "user", "content": [{"type": "input_text", "text": "Add one and two."}]}]
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"}
# What an item may be, and the events of its text.
ITEMS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments", "custom_tool_call": "custom_tool_call_input",
         "tool_search_call": None}
TEXT_FIELD = {"output_text": "text", "reasoning_text": "text", "function_call_arguments": "arguments", "custom_tool_call_input": "input"}


def check_responses(case, events):
    """The stream of a response in its order: numbered, items begun, grown and ended one after the other, and whole at the end."""
    kinds = [kind for kind, _ in events]
    case.assertEqual([e["sequence_number"] for _, e in events], list(range(len(events))))
    case.assertEqual([e["type"] for _, e in events], kinds)
    case.assertEqual(kinds[:2], ["response.created", "response.in_progress"])
    last = events[-1][1]["response"]
    case.assertEqual(kinds[-1], "response." + last["status"])
    case.assertGreater(last["usage"]["input_tokens"], 0)
    items, item, text = [], None, ""
    for kind, e in events[2:-1]:
        if kind == "response.output_item.added":
            case.assertIsNone(item)
            item, text = e["item"], ""
            case.assertEqual((e["output_index"], item["status"]), (len(items), "in_progress"))
            continue
        case.assertEqual(e["output_index"], len(items))
        if kind == "response.output_item.done":
            case.assertEqual({**item, **e["item"]}["id"], e["item"]["id"])
            items.append(e["item"])
            item = None
        elif kind.startswith("response.content_part"):
            case.assertIn(item["type"], ("message", "reasoning"))
        else:
            name = ITEMS[item["type"]]
            case.assertEqual(e["item_id"], item["id"])
            case.assertIn(kind, (f"response.{name}.delta", f"response.{name}.done"))
            text += e.get("delta", "")
            if kind.endswith("done"):
                case.assertEqual(e[TEXT_FIELD[name]], text)
    case.assertIsNone(item)
    case.assertEqual(last["output"], items)
    return last


class Served(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


class Codex(Served):
    def turn(self, items=(), **fields):
        body = {"model": "nibble-tiny", "stream": True, "store": False, "input": [*ASK, *items], "tools": TOOLS, "tool_choice": "auto", "temperature": 0,
                "reasoning": {"effort": "low", "context": "all_turns"}, "include": ["reasoning.encrypted_content"], "max_output_tokens": 300,
                "client_metadata": {"thread": "1"}, "prompt_cache_key": "1", **fields}
        return check_responses(self, self.server.stream("/v1/responses", body))

    def forced(self, choice, **fields):
        """The call at the end of a turn that had to make one."""
        response = self.turn(tool_choice=choice, **fields)
        return response["status"], response["output"][-1]

    def test_a_tool_of_a_namespace_is_called_and_its_result_goes_back(self):
        status, call = self.forced({"type": "function", "name": "add", "namespace": "mcp__tiny"})
        self.assertEqual((status, call["type"], call["name"], call["namespace"]), ("completed", "function_call", "add", "mcp__tiny"))
        self.assertEqual(set(json.loads(call["arguments"])), {"a", "b"})
        output = {"type": "function_call_output", "id": "o", "call_id": call["call_id"], "output": [{"type": "input_text", "text": "3"}, PICTURE]}
        self.assertIn(self.turn([call, output], max_output_tokens=20)["status"], ("completed", "incomplete"))

    def test_a_custom_tool_takes_text_under_its_grammar(self):
        status, call = self.forced({"type": "custom", "name": "day"})
        self.assertEqual((status, call["type"]), ("completed", "custom_tool_call"))
        self.assertIn(call["input"], ("Monday", "Tuesday", "Friday"))
        output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
        self.turn([call, output], max_output_tokens=5)
        _, patch = self.forced({"type": "custom", "name": "patch"}, max_output_tokens=60, temperature=1, seed=3)
        self.assertRegex(patch["input"], r"\A\*\*\* Begin\n(file .+\n([+-].*\n)+)*file ?.*")  # a beginning of one

    def test_a_search_loads_a_tool_that_may_then_be_called(self):
        status, call = self.forced({"type": "tool_search"})
        self.assertEqual((status, call["type"], call["execution"]), ("completed", "tool_search_call", "client"))
        self.assertIn(call["arguments"]["limit"], range(1, 6))
        found = {"type": "tool_search_output", "call_id": call["call_id"], "status": "completed", "execution": "client",
                 "tools": [{**NAMESPACE, "name": "late", "tools": [{**ADD, "defer_loading": True}]}]}
        loaded = self.turn([call, found], tool_choice={"type": "function", "name": "add", "namespace": "late"})["output"][-1]
        self.assertEqual((loaded["name"], loaded["namespace"]), ("add", "late"))

    def test_additional_tools_pictures_and_phases_in_the_history(self):
        first = {"type": "additional_tools", "id": "at", "role": "developer", "tools": [{"type": "namespace", "name": "functions", "tools": [TOOLS[0], TOOLS[3]]}]}
        body = {"input": [first, *ASK, {"role": "user", "content": [PICTURE]},
                          {"type": "message", "role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "I look."}]}],
                "tool_choice": {"type": "custom", "name": "day"}, "max_output_tokens": 300, "mood": 1}
        answer = self.server.post("/v1/responses", body)
        self.assertEqual(answer.json()["output"][-1]["name"], "day")
        self.assertEqual(answer.headers["X-Nibble-Ignored"], "input[].content[].input_image, mood")
        self.server.wait_log('"images_left_out":1')

    def test_what_is_too_long_ends_the_stream_and_models_tell_the_context(self):
        context = self.server.get("/v1/models?client_version=1").json()["models"][0]["context_window"]
        long = [{"role": "user", "content": "word " * (context + 1)}]
        response = check_responses(self, self.server.stream("/v1/responses", {"stream": True, "input": long}))
        self.assertEqual((response["status"], response["error"]["code"]), ("failed", "context_length_exceeded"))
        error = self.server.post("/v1/messages", {"max_tokens": 9, "messages": long}).json()["error"]
        self.assertEqual(error["type"], "invalid_request_error")
        tokens, most = map(int, re.search(r"prompt is too long: (\d+) tokens > (\d+) maximum", error["message"]).groups())
        self.assertEqual((most, tokens > most), (context - 1, True))


# A patch language with every construct of apply_patch's grammar, and a parser of it that knows nothing of grammars: by lines.
CHANGES = '''start: head entry+ tail
head: "== begin ==" LF
tail: "== end ==" LF?
entry: put | drop | edit
put: "put: " name LF put_line+
drop: "drop: " name LF
edit: "edit: " name LF renamed? part?
name: /(.+)/
put_line: "+" /(.*)/ LF -> line
renamed: "to: " name LF
part: (mark | part_line)+ last?
mark: ("@@" | "@@ " /(.+)/) LF
part_line: ("+" | "-" | " ") /(.*)/ LF
last: "== last ==" LF
%import common.LF
'''
ENTRIES = {"put: ?": "put", "drop: ?": "entries", "edit: ?": "edit"}  # how a line begins (?: something must follow, *: may), and what it leads to
PART = {"@@": "part", "@@ ?": "part", "+*": "part", "-*": "part", " *": "part"}
MORE = {**ENTRIES, "== end ==": "end"}
LINES = {"start": {"== begin ==": "first"}, "first": ENTRIES, "entries": MORE, "put": {"+*": "lines"}, "lines": {"+*": "lines", **MORE},
         "edit": {"to: ?": "renamed", **PART, **MORE}, "renamed": {**PART, **MORE}, "part": {**PART, "== last ==": "entries", **MORE}, "end": {}}


def what_is_wrong(patch, whole):
    """The line that cannot stand there, or None. A patch that was cut short may end in the middle of one."""
    lines, state = patch.split("\n"), "start"
    last = lines.pop() if patch.endswith("\n") or not whole else None
    for line in lines:
        for form, leads_to in LINES[state].items():
            begin = form.rstrip("?*")
            if line == form or (form != begin and line.startswith(begin) and len(line) >= len(begin) + (form[-1] == "?")):
                state = leads_to
                break
        else:
            return f"{line!r} after {state}"
    if whole:
        return None if state == "end" and not last else f"ends after {state}"
    begun = not last or any(begin.startswith(last) or (begin != form and last.startswith(begin)) for form in LINES[state] for begin in [form.rstrip("?*")])
    return None if begun else f"{last!r} after {state}"


class Patches(Served):
    CALLS = 50  # 1,000 were made once

    def test_forced_calls_are_patches(self):
        for good in ("== begin ==\nput: a b\n+x\n+\ndrop: ü\nedit: f\nto: g\n@@ x\n-old\n+new\n kept\n== last ==\n== end ==\n", "== begin ==\ndrop: a\n== end =="):
            self.assertIsNone(what_is_wrong(good, True))
            self.assertEqual([cut for cut in range(len(good)) if what_is_wrong(good[:cut], False)], [])
        for bad in ("", "== begin ==\n== end ==\n", "== begin ==\nput: a\n== end ==", "== begin ==\ndrop: \n== end ==", "== begin ==\ndrop: a\n== end ==\n\n"):
            self.assertIsNotNone(what_is_wrong(bad, True))
        # Lines end sooner, and so does the patch: by itself this model writes on and on.
        ends = {token: 9 for token in self.server.post("/tokenize", {"prompt": "\n=="}).json()["tokens"]}
        whole = 0
        for seed in range(0, self.CALLS, 25):
            answer = self.server.chat(messages=[{"role": "user", "content": "Change the file."}], n=25, seed=seed, temperature=1, max_tokens=200,
                                      logit_bias=ends, thinking_token_budget=4, tool_choice={"type": "custom", "custom": {"name": "apply_patch"}},
                                      tools=[{"type": "custom", "custom": {"name": "apply_patch", "description": "Changes files", "format": {
                                          "type": "grammar", "grammar": {"syntax": "lark", "definition": CHANGES}}}}])
            for choice in answer.json()["choices"]:
                call = choice["message"]["tool_calls"][0]
                ended = choice["finish_reason"] == "tool_calls"
                whole += ended
                self.assertEqual((call["type"], call["custom"]["name"]), ("custom", "apply_patch"))
                self.assertIsNone(what_is_wrong(call["custom"]["input"], ended), call)
        self.assertGreater(whole, self.CALLS // 4)


class Claude(Served):
    TOOLS = [{"name": "ToolSearch", "description": "Finds", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **NUMBERS}},
             {"name": "mcp__tiny__add", "description": "Adds", "input_schema": NUMBERS, "defer_loading": True}]

    def body(self, *messages, **fields):
        return {"model": "claude-sonnet-5", "max_tokens": 300, "temperature": 0, "tools": self.TOOLS, "metadata": {"user_id": "x"}, "diagnostics": {"x": 1},
                "thinking": {"type": "adaptive", "display": "omitted"}, "system": [{"type": "text", "text": "Help.", "cache_control": {"type": "ephemeral"}}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Add one and two."}]}, {"role": "system", "content": "Now."}, *messages], **fields}

    def test_a_deferred_tool_is_loaded_by_a_reference(self):
        use = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "ToolSearch", "input": {"a": 1, "b": 2}}]}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "tool_reference", "tool_name": "mcp__tiny__add"}]}]}
        choice = {"type": "tool", "name": "mcp__tiny__add"}
        self.assertEqual(self.server.post("/v1/messages", self.body(tool_choice=choice)).status, 400)
        answer = self.server.post("/v1/messages", self.body(use, result, tool_choice=choice))
        call = answer.json()["content"][-1]
        self.assertEqual((answer.status, call["type"], call["name"]), (200, "tool_use", "mcp__tiny__add"))
        self.assertEqual(answer.headers["X-Nibble-Ignored"], "diagnostics")
        fewer, more = (self.server.post("/v1/messages/count_tokens", self.body(*m)).json()["input_tokens"] for m in ((), (use, result)))
        self.assertGreater(more, fewer)

    def test_a_stream_pings_and_a_text_that_has_begun_goes_on(self):
        events = self.server.stream("/v1/messages", self.body({"role": "assistant", "content": "One and two is"}, stream=True, max_tokens=8))
        kinds = [kind for kind, _ in events]
        self.assertEqual(kinds[:3], ["message_start", "ping", "content_block_start"])
        self.assertEqual(kinds[-2:], ["message_delta", "message_stop"])
        self.assertEqual(events[2][1]["content_block"]["type"], "text")

    def test_a_picture_in_a_result_leaves_a_text(self):
        use = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "ToolSearch", "input": {}}]}
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [image]}]}
        self.assertEqual(self.server.post("/v1/messages", self.body(use, result, max_tokens=3)).status, 200)
        self.server.wait_log("names claude-\\* are answered")


class Strict(Case):
    def test_flags_bring_the_refusals_back(self):
        server = Server("--unknown-fields", "refuse", "--images", "refuse", "--any-model-name", "none")
        for fields, param in (({"frobnicate": 1}, "frobnicate"), ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
                              ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content[0].type")):
            answer = server.chat(**fields)
            self.assertEqual((answer.status, answer.json()["error"]["param"]), (400, param))
        self.assertEqual(server.chat(model="claude-x").status, 404)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    support.main()
