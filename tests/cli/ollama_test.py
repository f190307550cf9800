"""Ollama's API as its programs use it, and a checker of its streams and errors. Standard library only."""
import json
import re

import support
from serve_support import Server
from support import Case

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
OPTIONS = {"num_predict": 60, "temperature": 0, "seed": 1, "num_ctx": 1024, "use_mmap": True, "mirostat": 0, "tfs_z": 1.0, "repeat_last_n": 64}
DIGIT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


def check_object(case, one, part):
    """What every object of an answer has."""
    case.assertEqual(one["model"], "nibble-tiny")
    case.assertRegex(one["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    case.assertIsInstance(one["done"], bool)
    if part == "message":
        case.assertEqual(one["message"]["role"], "assistant")
        case.assertIsInstance(one["message"]["content"], str)
        for call in one["message"].get("tool_calls", ()):
            case.assertEqual(set(call), {"function"})
            case.assertEqual((set(call["function"]), type(call["function"]["arguments"])), ({"name", "arguments"}, dict))
    else:
        case.assertIsInstance(one["response"], str)


def check_last(case, one, reasons=("stop", "length")):
    case.assertTrue(one["done"])
    case.assertIn(one["done_reason"], reasons)
    for name in COUNTS:
        case.assertGreaterEqual(one[name], 0, name)


class Ollama(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", 2048)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def lines(self, path, **body):
        """The objects of a stream, one a line, and nothing else in it."""
        answer = self.server.post(path, {"model": "nibble-tiny", "options": OPTIONS, **body})
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/x-ndjson"), answer.raw)
        self.assertTrue(answer.raw.endswith(b"}\n"))
        lines = [json.loads(line) for line in answer.raw.decode().split("\n")[:-1]]
        for line in lines:
            check_object(self, line, "message" if path == "/api/chat" else "response")
        self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
        return lines

    def whole(self, path, **body):
        answer = self.server.post(path, {"model": "nibble-tiny", "options": OPTIONS, "stream": False, **body})
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/json"), answer.raw)
        check_object(self, answer.json(), "message" if path == "/api/chat" else "response")
        self.assertTrue(answer.json()["done"])
        return answer.json()

    def refused(self, path, body, status=400, says=""):
        answer = self.server.post(path, body)
        self.assertEqual(answer.status, status, (path, body, answer.raw))
        self.assertEqual(set(answer.json()), {"error"}, path)
        self.assertIsInstance(answer.json()["error"], str)
        self.assertIn(says, answer.json()["error"])

    def test_a_stream_is_the_whole_answer_in_lines(self):
        for path, part, ask in (("/api/chat", "message", {"messages": HELLO}), ("/api/generate", "response", {"prompt": HELLO[0]["content"]})):
            lines, whole = self.lines(path, **ask), self.whole(path, **ask)
            self.assertGreater(len(lines), 3)
            check_last(self, lines[-1])
            check_last(self, whole)
            for name in ("content", "thinking") if part == "message" else ("response", "thinking"):
                texts = [(line["message"] if part == "message" else line).get(name, "") for line in lines]
                self.assertEqual("".join(texts), (whole["message"] if part == "message" else whole).get(name, ""), name)
                self.assertTrue(any(texts), name)
            self.assertEqual((lines[-1]["eval_count"], lines[-1]["prompt_eval_count"]), (whole["eval_count"], whole["prompt_eval_count"]))
            self.assertGreater(whole["eval_duration"], 0)
        self.assertEqual(self.whole("/api/chat", messages=HELLO, options={**OPTIONS, "num_predict": 2})["done_reason"], "length")

    def test_a_chat_is_that_of_openais_endpoint(self):
        ours = self.server.chat(HELLO[0]["content"], max_tokens=60, reasoning_effort="high").json()["choices"][0]["message"]
        message = self.whole("/api/chat", messages=HELLO, think="high")["message"]
        self.assertEqual((message["content"], message["thinking"]), (ours["content"], ours["reasoning_content"]))
        self.assertNotIn("thinking", self.whole("/api/chat", messages=HELLO, think=False)["message"])
        with_system = {"messages": [{"role": "system", "content": "Be brief."}, *HELLO]}
        self.assertEqual(self.whole("/api/generate", prompt=HELLO[0]["content"], system="Be brief.")["response"], self.whole("/api/chat", **with_system)["message"]["content"])

    def test_formats_are_enforced(self):
        for path, ask in (("/api/chat", {"messages": HELLO}), ("/api/generate", {"prompt": "A digit"})):
            options = {**OPTIONS, "num_predict": 300}
            answers = [self.whole(path, format=DIGIT, options=options, **ask)]
            texts = [a["message"]["content"] if path == "/api/chat" else a["response"] for a in answers]
            self.assertIn(json.loads(texts[0])["n"], range(10))
        self.assertTrue(self.whole("/api/chat", messages=HELLO, format="json", options={**OPTIONS, "num_predict": 300})["message"]["content"].startswith("{"))

    def test_a_call_and_its_result(self):
        ask = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}],
               "tools": [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]}
        call = next((line["message"]["tool_calls"] for line in self.lines("/api/chat", **ask, options={**OPTIONS, "num_predict": 200}) if line["message"].get("tool_calls")), None)
        self.assertIsNotNone(call, "nibble-tiny calls get_weather at such questions")
        self.assertEqual(call[0]["function"]["name"], "get_weather")
        messages = [*ask["messages"], {"role": "assistant", "thinking": "t", "tool_calls": call}, {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
        self.assertIn(self.whole("/api/chat", **{**ask, "messages": messages})["done_reason"], ("stop", "length"))

    def test_logprobs_come_with_the_text(self):
        lines = self.lines("/api/chat", messages=HELLO, logprobs=True, top_logprobs=2)
        entries = [entry for line in lines for entry in line.get("logprobs", ())]
        self.assertEqual("".join(e["token"] for e in entries), "".join(line["message"]["content"] for line in lines))
        self.assertEqual({len(e["top_logprobs"]) for e in entries}, {2})

    def test_nothing_to_say_tells_that_the_model_is_loaded(self):
        for path, ask in (("/api/chat", {}), ("/api/chat", {"messages": []}), ("/api/generate", {"prompt": "", "keep_alive": "5m"}), ("/api/generate", {"keep_alive": 0})):
            self.assertEqual(self.whole(path, **ask)["done_reason"], "load")
            self.assertEqual([line["done_reason"] for line in self.lines(path, **ask)], ["load"])

    def test_models_are_listed_shown_and_pulled(self):
        listed = self.server.get("/api/tags").json()["models"][0]
        self.assertEqual((listed["name"], listed["model"]), ("nibble-tiny", "nibble-tiny"))
        self.assertGreater(listed["size"], 10**6)
        self.assertRegex(listed["digest"], r"^[0-9a-f]{64}$")
        self.assertEqual({**listed["details"], "parameter_size": ""}, {"parent_model": "", "format": "safetensors", "family": "gptoss", "families": ["gptoss"], "parameter_size": "", "quantization_level": "MXFP4"})
        running = self.server.get("/api/ps").json()["models"][0]
        self.assertEqual((running["name"], running["digest"], running["context_length"], running["size_vram"]), ("nibble-tiny", listed["digest"], 2048, 0))
        for body in ({"model": "nibble-tiny", "verbose": True}, {"name": "nibble-tiny:latest"}, {"model": "nibble-tiny", "name": "", "system": "", "options": None}):
            shown = self.server.post("/api/show", body).json()
            self.assertEqual((shown["capabilities"], shown["model_info"]["gptoss.context_length"]), (["completion", "tools", "thinking"], 2048))
            self.assertEqual(shown["details"], listed["details"])
        for stream, kind in ((True, "application/x-ndjson"), (False, "application/json")):
            answer = self.server.post("/api/pull", {"model": "nibble-tiny", "stream": stream})
            self.assertEqual((answer.status, answer.headers["Content-Type"], answer.raw), (200, kind, b'{"status":"success"}\n'))

    def test_an_unknown_model_is_not_found(self):
        for path, ask in (("/api/chat", {"messages": HELLO}), ("/api/generate", {"prompt": "a"}), ("/api/show", {}), ("/api/pull", {}), ("/api/chat", {})):
            answer = self.server.post(path, {"model": "x:latest", **ask})
            self.assertEqual((answer.status, answer.json()), (404, {"error": "model 'x:latest' not found"}), path)
        self.assertEqual(self.whole("/api/chat", messages=HELLO, model="nibble-tiny:latest", options={"num_predict": 1})["done"], True)
        self.assertEqual(self.server.chat(model="nibble-tiny:latest", max_tokens=1).status, 200)

    def test_what_is_not_served_is_refused(self):
        for method, path in (("POST", "/api/embed"), ("POST", "/api/embeddings"), ("POST", "/api/create"), ("POST", "/api/copy"), ("DELETE", "/api/delete"), ("POST", "/api/push"), ("POST", "/api/blobs/sha256:00"), ("GET", "/api/nothing")):
            answer = self.server.request(method, path, {"model": "nibble-tiny"})
            self.assertEqual((answer.status, set(answer.json())), (400, {"error"}), path)
            self.assertIn(f"{path} is not served", answer.json()["error"])
        self.assertEqual(self.server.get("/api/chat").status, 405)

    def test_hostile_values_of_each_field(self):
        chat, generate = {"model": "nibble-tiny", "messages": HELLO}, {"model": "nibble-tiny", "prompt": "a"}
        for field, values in {"model": (1, [], None), "stream": (1, "true"), "messages": (1, {}, [1], [{}], [{"role": "x"}], [{"role": "user", "content": 1}], [{"role": "user", "content": "a", "images": ["AA=="]}],
                                           [{"role": "tool", "content": "3"}], [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
                                           [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, {"role": "tool", "tool_name": "g", "content": ""}]),
                              "tools": (1, [{}], [{"type": "function", "function": {}}]), "format": (1, "yaml", [], True), "options": (1, []), "keep_alive": ([], {}), "think": ("very", 1),
                              "logprobs": ("yes",), "top_logprobs": (21, -1, 3), "truncate": (True,), "prompt": ("x",)}.items():
            for value in values:
                self.refused("/api/chat", {**chat, field: value}, says=field if value is not None else "model")
        for field, values in {"prompt": (1, []), "suffix": ("x", 1), "system": (1,), "template": ("x",), "context": ([1],), "raw": (True,), "images": (["AA=="],), "messages": (HELLO,), "format": ("xml",), "shift": (True,)}.items():
            for value in values:
                self.refused("/api/generate", {**generate, field: value}, says=field)
        for option, values in {"num_predict": (-3, 1.5, "x"), "num_ctx": (2049, -1, "x"), "temperature": (-1, "x"), "top_k": ("x",), "top_p": (2,), "min_p": (-1,), "seed": ("x", 1.5), "stop": (1, [""]), "repeat_penalty": (-1, "x"),
                               "presence_penalty": (3,), "frequency_penalty": (-3,), "num_gpu": ("all",), "use_mmap": (1,), "mirostat": (1,), "tfs_z": (0.5,), "typical_p": (0.2,)}.items():
            for value in values:
                self.refused("/api/chat", {**chat, "options": {option: value}}, says=f"options.{option}")
        self.refused("/api/chat", {**chat, "options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, says="options.repeat_last_n")
        self.refused("/api/chat", {**chat, "options": {"presence_penalty": 1, "penalize_newline": False}}, says="options.penalize_newline")
        self.refused("/api/chat", {"messages": HELLO}, says="model")
        self.refused("/api/chat", {**chat, "messages": [{"role": "user", "content": "word " * 3000}]}, says="prompt is too long")
        for path in ("/api/chat", "/api/generate", "/api/show", "/api/pull"):
            for body in (b"", b"{", b"[]", b"\xff", b'{"model":"a","model":"b"}', b"{" * 500):
                self.refused(path, body)
        unknown = self.server.post("/api/chat", {**chat, "mood": 1, "options": {"num_predict": 1, "frob": 2}})
        self.assertEqual((unknown.status, unknown.headers["X-Nibble-Ignored"]), (200, "options.frob, mood"))

    def test_paths_without_v1_and_what_paths_there_are(self):
        body = {"messages": HELLO, "max_tokens": 1}
        self.assertEqual(self.server.post("/chat/completions", body).json()["object"], "chat.completion")
        self.assertEqual(self.server.get("/models/nibble-tiny").json()["id"], "nibble-tiny")
        self.assertEqual(self.server.post("/messages", {}).json()["type"], "error")
        self.assertEqual(self.server.get("/nothing/here").json()["error"]["message"], "there is no /nothing/here here")
        told = self.server.get("/openapi.json").json()
        self.assertEqual(told["openapi"], "3.1.0")
        self.assertLessEqual({"/v1/chat/completions", "/v1/responses/{id}", "/api/chat", "/health"}, set(told["paths"]))
        for path, item in told["paths"].items():
            names = re.findall(r"\{(\w+)\}", path)
            self.assertEqual([p["name"] for p in item.pop("parameters", [])], names)
            for method in item:
                answer = self.server.request(method.upper(), path.replace("{id}", "x").replace("{model}", "nibble-tiny"), {} if method == "post" else None)
                self.assertNotEqual(answer.status, 405, (method, path))
                self.assertIn(answer.status, (200, 400) if not names else (200, 404), (method, path))

    def test_what_a_kept_response_was_given(self):
        items = [{"role": "developer", "content": "Be brief."}, {"type": "message", "id": "m", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                 {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "1"}]
        made = self.server.post("/v1/responses", {"input": items, "max_output_tokens": 1}).json()["id"]
        told = self.server.get(f"/v1/responses/{made}/input_items").json()
        self.assertEqual((told["object"], told["has_more"], told["first_id"], told["last_id"]), ("list", False, told["data"][0]["id"], told["data"][-1]["id"]))
        self.assertEqual([i["type"] for i in told["data"]], ["function_call_output", "function_call", "message", "message"])
        self.assertEqual((told["data"][2]["id"], told["data"][3]["content"]), ("m", [{"type": "input_text", "text": "Be brief."}]))
        self.assertEqual(len({i["id"] for i in told["data"]}), 4)
        self.assertEqual(self.server.get(f"/v1/responses/{made}/input_items?order=asc").json()["data"], told["data"][::-1])
        text = self.server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1}).json()["id"]
        self.assertEqual(self.server.get(f"/v1/responses/{text}/input_items").json()["data"][0]["content"][0]["text"], "Hi")
        for path, status in ((f"{made}/input_items?order=up", 400), (f"{made}/input_items?limit=2", 400), (f"{made}/input_items?after=m", 400), ("x/input_items", 404), (f"{made}/items", 404)):
            self.assertEqual(self.server.get("/v1/responses/" + path).status, status, path)
        self.assertEqual(self.server.post(f"/v1/responses/{made}/input_items", {}).status, 405)

    def test_anthropics_thread_is_refused_as_its_client_understands(self):
        for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
            answer = self.server.post("/v1/messages", {"max_tokens": 1, "messages": HELLO, "thread": thread})
            self.assertEqual((answer.status, answer.json()["error"]["details"]), (400, {"error_code": "thread_unsupported_request"}))
        self.assertNotIn("details", self.server.post("/v1/messages", {"max_tokens": 0, "messages": HELLO}).json()["error"])


if __name__ == "__main__":
    support.main()
