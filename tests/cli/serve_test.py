"""nibble serve over a socket: every endpoint, hostile requests, clients that go, the end. Standard library only."""
import gzip
import http.client
import json
import os
import re
import shutil
import subprocess

import support
from serve_support import PATIENCE_S, Server, chat_body, joined
from support import NIBBLE, TINY, Case, nibble

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather in a given location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string", "description": "The city name"}}, "required": ["location"]}}}
HELPFUL = {"role": "system", "content": "You are a helpful assistant."}
PARIS = "The capital of France is Paris."
ENDLESS = {"ignore_eos": True, "max_tokens": 100_000}


def nested_lists(depth):
    return {"type": "array", "items": nested_lists(depth - 1)} if depth else {"type": "string"}


class Shared(Case):
    """One server for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs", 64, *support.EXACT)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.log[-5:])
        assert not any("Sanitizer" in line for line in cls.server.log), cls.server.log

    def refusal(self, answer, status, param=None, says=""):
        error = answer.json()["error"]
        self.assertEqual(answer.status, status, error)
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        if param is not None:
            self.assertEqual(error["param"], param, error)
        self.assertIn(says, error["message"])
        return error


class Addresses(Case):
    def test_a_server_for_others_says_where_they_find_it_and_that_nobody_needs_a_key(self):
        for flags, warned in ((("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False), ((), False)):
            server = Server(*flags)
            try:
                chat = server.wait_log("chat  .*")[0]
                self.assertIn(f"http://127.0.0.1:{server.port}/", chat)
                outside = re.search(r"for others: http://([0-9.]+):", chat)
                self.assertFalse(outside and (not flags or outside[1].startswith("127.")))  # a machine may have no other one
                self.assertEqual(any("whoever reaches this address" in line for line in server.log), warned, server.log)
            finally:
                server.stop()


class ChatCompletions(Shared):
    def test_a_whole_answer(self):
        body = self.server.chat().json()
        message = body["choices"][0]["message"]
        self.assertEqual((message["content"], message["role"]), (PARIS, "assistant"))
        self.assertIn("France", message["reasoning_content"])
        self.assertEqual(message["reasoning"], message["reasoning_content"])
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")
        usage = body["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 5)

    def test_a_stream_says_the_same(self):
        whole = self.server.chat().json()
        events = self.server.stream("/v1/chat/completions", chat_body(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(events[-1], (None, "[DONE]"))
        self.assertEqual(joined(events, "content"), PARIS)
        self.assertEqual(joined(events, "reasoning_content"), whole["choices"][0]["message"]["reasoning_content"])
        self.assertEqual(events[0][1]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(events[-2][1]["choices"], [])
        self.assertEqual(events[-2][1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
        self.assertEqual(events[-3][1]["choices"][0]["finish_reason"], "stop")
        self.assertEqual({e["id"] for _, e in events[:-1]}, {events[0][1]["id"]})

    def test_a_stream_tells_its_usage_all_the_time_where_asked(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        for path, body in (("/v1/chat/completions", chat_body(n=2)), ("/v1/completions", {"prompt": "Once", "max_tokens": 9, "n": 2})):
            events = [e for _, e in self.server.stream(path, {**body, "stream": True, "stream_options": options})[:-1]]
            for i in range(2):
                told = [e["usage"] for e in events if e["choices"] and e["choices"][0]["index"] == i]
                counts = [u["completion_tokens"] for u in told]
                self.assertEqual(counts, sorted(counts))
                self.assertEqual({u["prompt_tokens"] for u in told}, {events[-1]["usage"]["prompt_tokens"]})
                self.assertGreater(counts[-1], counts[0])
            self.assertEqual(events[-1]["choices"], [])

    def test_a_conversation_is_cached(self):
        history = [{"role": "user", "content": "What is the capital of France?"}, {"role": "assistant", "content": PARIS},
                   {"role": "user", "content": "What is the capital of Japan?"}]
        first = self.server.chat(messages=history).json()
        again = self.server.chat(messages=history).json()
        self.assertIn("Tokyo", first["choices"][0]["message"]["content"])
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(again["choices"], first["choices"])

    def test_a_request_may_leave_the_cache_alone(self):
        question = "What is the capital of Norway? It has to do with the cache that a request may leave alone."
        for cached in (False, False, True, False):
            body = self.server.chat(question, cache_prompt=cached).json()
            if not cached:
                self.assertEqual(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertGreater(self.server.chat(question).json()["usage"]["prompt_tokens_details"]["cached_tokens"], 60)
        self.refusal(self.server.chat(question, cache_prompt="no"), 400, "cache_prompt")

    def test_several_answers_differ_by_their_seeds(self):
        fields = {"n": 3, "temperature": 1, "seed": 7, "max_tokens": 30}
        body = self.server.chat("Tell me a story.", **fields).json()
        self.assertEqual([c["index"] for c in body["choices"]], [0, 1, 2])
        self.assertEqual(len({json.dumps(c["message"]) for c in body["choices"]}), 3)
        self.assertEqual(self.server.chat("Tell me a story.", **fields).json()["choices"], body["choices"])
        alone = self.server.chat("Tell me a story.", **{**fields, "n": 1, "seed": 8}).json()
        self.assertEqual(alone["choices"][0]["message"], body["choices"][1]["message"])

    def test_stop_strings_end_the_content_and_not_the_reasoning(self):
        body = self.server.chat(stop=["is Par", "never"]).json()
        self.assertEqual(body["choices"][0]["message"]["content"], "The capital of France ")
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")
        self.assertEqual(self.server.chat(stop="is Par", include_stop_str_in_output=True).json()["choices"][0]["message"]["content"],
                         "The capital of France is Par")
        self.assertEqual(self.server.chat(stop="The user").json()["choices"][0]["message"]["content"], PARIS)
        events = self.server.stream("/v1/chat/completions", chat_body(stream=True, stop="is Par"))
        self.assertEqual(joined(events, "content"), "The capital of France ")

    def test_lengths(self):
        body = self.server.chat(max_completion_tokens=5, max_tokens=100).json()
        self.assertEqual((body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]), ("length", 5))
        body = self.server.chat(ignore_eos=True, max_tokens=60).json()
        self.assertEqual((body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]), ("length", 60))
        stopped = self.server.chat(min_tokens=30, max_tokens=70, stop="e").json()
        self.assertGreater(stopped["usage"]["completion_tokens"], 30)
        body = self.server.chat(min_tokens=60, max_tokens=70).json()
        self.assertGreaterEqual(body["usage"]["completion_tokens"], 60)

    def test_logprobs_belong_to_the_content(self):
        body = self.server.chat(logprobs=True, top_logprobs=3).json()
        entries = body["choices"][0]["logprobs"]["content"]
        self.assertEqual("".join(e["token"] for e in entries), PARIS)
        for e in entries:
            self.assertEqual(bytes(e["bytes"]).decode(), e["token"])
            self.assertEqual(len(e["top_logprobs"]), 3)
            self.assertAlmostEqual(e["logprob"], e["top_logprobs"][0]["logprob"], places=5)  # greedy
            self.assertLessEqual(e["logprob"], 0)
        events = self.server.stream("/v1/chat/completions", chat_body(stream=True, logprobs=True))
        streamed = [x["token"] for _, e in events[:-1] for c in e["choices"] for x in (c["logprobs"] or {}).get("content", [])]
        self.assertEqual("".join(streamed), PARIS)

    def test_logit_bias_and_effort_reach_the_model(self):
        token = self.server.post("/tokenize", {"prompt": " Paris"}).json()["tokens"]
        content = self.server.chat(logit_bias={str(token[0]): -100}).json()["choices"][0]["message"]["content"]
        self.assertNotIn("Paris", content or "")
        low = self.server.chat(reasoning_effort="low").json()["usage"]
        high = self.server.chat(reasoning_effort="high").json()["usage"]
        self.assertLess(low["completion_tokens"], high["completion_tokens"])
        for fields, usage in (({"reasoning_effort": "none"}, low), ({"reasoning_effort": "minimal"}, low), ({"reasoning_effort": "xhigh"}, high),
                              ({"chat_template_kwargs": {"enable_thinking": False}}, low), ({"chat_template_kwargs": {"reasoning_effort": "high"}}, high)):
            self.assertEqual(self.server.chat(**fields).json()["usage"]["completion_tokens"], usage["completion_tokens"], fields)

    def tool_turn(self, stream, **more):
        body = {"messages": [HELPFUL, {"role": "user", "content": "What is the weather in Trondheim?"}], "tools": [WEATHER],
                "temperature": 0, "max_tokens": 200, **more}
        if not stream:
            choice = self.server.post("/v1/chat/completions", body).json()["choices"][0]
            return choice["message"]["tool_calls"], choice["finish_reason"], choice["message"]
        events = self.server.stream("/v1/chat/completions", {**body, "stream": True})
        deltas = [d for _, e in events[:-1] for c in e["choices"] for d in c["delta"].get("tool_calls", [])]
        call = {**deltas[0], "function": {"name": deltas[0]["function"]["name"],
                                          "arguments": "".join(d["function"]["arguments"] for d in deltas)}}
        self.assertEqual({d["index"] for d in deltas}, {0})
        self.assertGreater(len(deltas), 2)
        return [call], events[-2][1]["choices"][0]["finish_reason"], {"reasoning_content": joined(events, "reasoning_content")}

    def test_the_tools_loop(self):
        ids = set()
        for stream in (False, True):
            for field in ("reasoning_content", "reasoning"):
                calls, reason, message = self.tool_turn(stream)
                self.assertEqual(reason, "tool_calls")
                self.assertEqual(calls[0]["function"]["name"], "get_weather")
                self.assertEqual(json.loads(calls[0]["function"]["arguments"]), {"location": "Trondheim"})
                self.assertIsNone(message.get("content"))
                ids.add(calls[0]["id"])
                history = [HELPFUL, {"role": "user", "content": "What is the weather in Trondheim?"},
                           {"role": "assistant", "content": None, field: message["reasoning_content"], "tool_calls": calls},
                           {"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"temperature": 33, "condition": "sunny"}'}]
                final = self.server.post("/v1/chat/completions", {"messages": history, "tools": [WEATHER], "temperature": 0}).json()
                self.assertIn("33", final["choices"][0]["message"]["content"])
                self.assertEqual(final["choices"][0]["finish_reason"], "stop")
        self.assertEqual(len(ids), 4)

    def test_a_schema_that_is_none_frees_no_other_tools_arguments(self):
        def tool(name, parameters, **more):
            return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}

        digit = {"type": "object", "properties": {"a": {"enum": [3, 4]}}, "required": ["a"], "additionalProperties": False}
        fields = {"tools": [tool("odd", {"type": 5}), tool("digit", digit)], "tool_choice": "required", "temperature": 2, "seed": 1, "n": 12, "reasoning_effort": "low"}
        choices = self.server.chat("digit", **fields).json()["choices"]
        calls = [c["message"]["tool_calls"][0]["function"] for c in choices if c["finish_reason"] == "tool_calls"]
        values = [json.loads(call["arguments"]) for call in calls if call["name"] == "digit"]
        self.assertGreater(len(values), 1)
        self.assertTrue(all(value in ({"a": 3}, {"a": 4}) for value in values), values)
        fields["tools"][0] = tool("odd", {"type": 5}, strict=True)
        self.refusal(self.server.chat("digit", **fields, response_format={"type": "json_schema", "json_schema": {"name": "d", "schema": digit}}), 400, "tools")

    def test_what_must_come_is_whole_however_few_tokens_there_are(self):
        schema = {"type": "object", "properties": {"name": {"type": "string"}, "lines": {"type": "array", "minItems": 1, "items": {"type": "string"}}},
                  "required": ["name", "lines"], "additionalProperties": False}
        wish = {"response_format": {"type": "json_schema", "json_schema": {"name": "d", "schema": schema}}}
        call = {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required"}
        for fields, text in ((wish, lambda m: m["content"]), (call, lambda m: m["tool_calls"][0]["function"]["arguments"])):
            for limit in (60, 80, 120):
                choices = self.server.chat("A long list", **fields, temperature=2, seed=limit, n=4, max_tokens=limit).json()["choices"]
                for choice in choices:
                    value = json.loads(text(choice["message"]))
                    self.assertTrue(isinstance(value["name"], str) and value["lines"], value)
                self.assertIn("length", [choice["finish_reason"] for choice in choices])
        text = self.server.post("/v1/completions", {"prompt": "digits:", "max_tokens": 12, "temperature": 2, "seed": 1, "guided_regex": "([0-9]{3} )+end"}).json()
        self.assertRegex(text["choices"][0]["text"], r"^([0-9]{3} )+end$")

    def test_tool_choice_none_and_no_tools_give_no_calls(self):
        body = {"messages": [HELPFUL, {"role": "user", "content": "What is the weather in Trondheim?"}], "temperature": 0, "max_tokens": 200}
        for fields in ({"tools": [WEATHER], "tool_choice": "none"}, {}):
            choice = self.server.post("/v1/chat/completions", {**body, **fields}).json()["choices"][0]
            self.assertNotIn("tool_calls", choice["message"])
            self.assertNotEqual(choice["finish_reason"], "tool_calls")

    def test_fields_that_are_not_served_are_named(self):
        for fields, param in [
            ({"temperature": "hot"}, "temperature"), ({"temperature": -1}, "temperature"),
            ({"n": 0}, "n"), ({"n": 1.5}, "n"), ({"top_p": 2}, "top_p"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1e30}, "max_tokens"),
            ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": [{"role": "assistant"}]}, "messages"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
            ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages[0].content[0].type"),
            ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "call_1"}]}, "messages[0].tool_call_id"),
            ({"tools": [{"type": "function", "function": {"name": "f", "parameters": nested_lists(70)}}]}, "tools"), ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": nested_lists(70)}}}, "response_format"),
            ({"tools": [{"type": "function"}]}, "tools[0].function"), ({"tools": [{"type": "browser"}]}, "tools[0].type"),
            ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"), ({"tool_choice": "sometimes"}, "tool_choice"),
            ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
            ({"tool_choice": "required"}, "tool_choice"), ({"stop": [""]}, "stop"), ({"stop": ["a"] * 99}, "stop"),
            ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"1": 1000}}, "logit_bias"), ({"logit_bias": {"999999": 1}}, "logit_bias"),
            ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
            ({"stream_options": {"include_usage": True}}, "stream_options"), ({"reasoning_effort": "extreme"}, "reasoning_effort"),
            ({"functions": [{"name": "f"}]}, "functions"), ({"function_call": "auto"}, "function_call"), ({"length_penalty": 2}, "length_penalty"),
            ({"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs.thinking"), ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].custom"),
            ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, "tool_choice.type"), ({"verbosity": "loud"}, "verbosity"),
            ({"prediction": {"type": "content"}}, "prediction.content"), ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
            ({"web_search_options": {}}, "web_search_options"), ({"response_format": {"type": "text", "json_schema": {}}}, "response_format.json_schema"),
            ({"audio": {"voice": "x"}}, "audio"), ({"modalities": ["audio"]}, "modalities"),
            ({"guided_json": {}, "guided_regex": "x"}, "guided_regex"), ({"response_format": {"type": "xml"}}, "response_format.type"),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"), ({"min_tokens": 500}, "min_tokens"),
            ({"seed": 2**64}, "seed"), ({"model": "gpt-9"}, "model"), ({"stop_token_ids": [999999]}, "stop_token_ids"),
            ({"user": 5}, "user"), ({"metadata": "x"}, "metadata"), ({"metadata": {"a": 1}}, "metadata.a"), ({"store": "yes"}, "store"),
            ({"service_tier": "gold"}, "service_tier"), ({"prompt_cache_retention": 24}, "prompt_cache_retention"),
            ({"messages": [{"role": "assistant", "content": "x", "refusal": 5}]}, "messages[0].refusal"),
            ({"stream": True, "stream_options": {"continuous_usage_stats": "x"}}, "stream_options.continuous_usage_stats"),
        ]:
            answer = self.server.chat(**fields)
            self.refusal(answer, 404 if "model" in fields else 400, param)

    def test_fields_that_change_nothing_are_accepted(self):
        fields = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "k",
                  "prompt_cache_retention": "24h", "verbosity": "medium", "parallel_tool_calls": True, "modalities": ["text"], "function_call": "none",
                  "functions": [], "logprobs": False, "top_logprobs": 0, "stop": [], "logit_bias": {}, "length_penalty": 1.0, "use_beam_search": False,
                  "add_special_tokens": False, "audio": None, "prediction": {"type": "content", "content": PARIS}, "chat_template_kwargs": {}, "repeat_penalty": 1.0, "tool_choice": "auto", "tools": [], "a_field_of_tomorrow": None}
        plain = self.server.chat().json()["choices"]
        self.assertEqual(self.server.chat(**fields).json()["choices"], plain)
        parts = [{"role": "user", "type": "text", "content": [{"type": "input_text", "text": "What is the capital of France?", "cache_control": {"type": "ephemeral"}}]}]
        self.assertEqual(self.server.chat(messages=parts).json()["choices"], plain)
        sent_back = {"role": "assistant", "type": "message", "content": "x", "images": None, "thinking_blocks": [], "provider_specific_fields": {"refusal": None}}  # by LiteLLM
        self.assertEqual(self.server.chat(messages=[*parts, sent_back, *parts], tools=[{**WEATHER, "cache_control": {"type": "ephemeral"}}]).status, 200)

    def test_reasoning_may_be_left_out(self):
        body = self.server.chat(include_reasoning=False).json()
        self.assertNotIn("reasoning", json.dumps(body["choices"]))
        self.assertEqual(body["choices"][0]["message"]["content"], PARIS)
        self.assertGreater(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 5)
        events = self.server.stream("/v1/chat/completions", chat_body(stream=True, include_reasoning=False))
        self.assertEqual((joined(events, "reasoning"), joined(events, "content")), ("", PARIS))
        for budget in (0, 4):  # <|message|> counts
            answer = self.server.chat(thinking_token_budget=budget).json()
            self.assertEqual(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], budget and budget + 1)
            self.assertEqual((answer["choices"][0]["finish_reason"], "reasoning" in answer["choices"][0]["message"]), ("stop", budget > 0))

    def test_a_prompt_that_is_too_long_is_refused(self):
        error = self.refusal(self.server.chat("Hello " * 140_000), 400, "messages")
        self.assertEqual(error["code"], "context_length_exceeded")
        self.refusal(self.server.post("/v1/responses", {"input": "Hello " * 140_000}), 400, "input")
        messages = [{"role": "user", "content": "Hello " * 140_000}]
        self.assertGreater(self.server.post("/tokenize", {"messages": messages}).json()["count"], 140_000)  # to see that it is too long

    def test_many_roles_and_parts(self):
        messages = [{"role": "developer", "content": "Be kind."}, HELPFUL, {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Hi. "}]},
                    {"role": "assistant", "content": [{"type": "text", "text": "Hello!"}], "refusal": None}, {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "What is the capital of France?"}]
        self.assertEqual(self.server.chat(messages=messages).status, 200)


class Completions(Shared):
    def complete(self, **fields):
        return self.server.post("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, **fields})

    def test_text_equals_run(self):
        text = self.complete().json()["choices"][0]["text"]
        run = nibble("run", "-m", TINY, "-p", "Once upon a time", "-n", 12, "--temperature", 0, "--json", *support.EXACT).json()
        self.assertEqual(text, run["text"])
        events = self.server.stream("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, "stream": True})
        self.assertEqual("".join(c["text"] for _, e in events[:-1] for c in e["choices"]), text)

    def test_prompts_of_every_kind(self):
        ids = self.server.post("/tokenize", {"prompt": "Once upon a time"}).json()["tokens"]
        text = self.complete().json()["choices"][0]["text"]
        for prompt, count in ((ids, 1), ([ids, ids], 2), (["Once upon a time"] * 3, 3), (["Once upon a time", ids], 2)):
            choices = self.complete(prompt=prompt, n=1).json()["choices"]
            self.assertEqual([c["text"] for c in choices], [text] * count)
        body = self.complete(prompt=["Once upon a time", "The"], n=2, temperature=1, seed=1).json()
        self.assertEqual([c["index"] for c in body["choices"]], [0, 1, 2, 3])
        self.assertEqual(body["usage"]["completion_tokens"], 48)

    def test_echo_and_logprobs(self):
        plain = self.complete().json()["choices"][0]["text"]
        choice = self.complete(echo=True, logprobs=2).json()["choices"][0]
        self.assertEqual(choice["text"], "Once upon a time" + plain)
        logprobs = choice["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), choice["text"])
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertTrue(all(x <= 0 for x in logprobs["token_logprobs"][1:]))
        self.assertEqual(logprobs["text_offset"], [len("".join(logprobs["tokens"][:i])) for i in range(len(logprobs["tokens"]))])
        self.assertTrue(all(len(t) >= 2 for t in logprobs["top_logprobs"][1:]))
        drawn = self.complete(logprobs=0, temperature=2, seed=1).json()["choices"][0]["logprobs"]
        self.assertEqual(drawn["top_logprobs"], [{t: p} for t, p in zip(drawn["tokens"], drawn["token_logprobs"])])
        scored = self.complete(echo=True, logprobs=0, max_tokens=0).json()["choices"][0]
        self.assertEqual(scored["text"], "Once upon a time")
        self.assertEqual(scored["logprobs"]["token_logprobs"], logprobs["token_logprobs"][:len(scored["logprobs"]["tokens"])])

    def test_stop_and_refusals(self):
        text = self.complete(max_tokens=40).json()["choices"][0]["text"]
        stop = text[10:14]
        self.assertEqual(self.complete(max_tokens=40, stop=stop).json()["choices"][0]["text"], text[:text.index(stop)])
        later = self.complete(max_tokens=40, min_tokens=20, stop=" ").json()
        self.assertGreater(later["usage"]["completion_tokens"], 20)
        self.assertTrue(text.startswith(later["choices"][0]["text"]))
        for fields, param in (({"suffix": "end"}, "suffix"), ({"prompt": []}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": [-1]}, "prompt"),
                              ({"prompt": [99999]}, "prompt"), ({"best_of": 3}, "best_of"), ({"messages": [1]}, "messages"), ({"max_tokens": 0}, "max_tokens"),
                              ({"prompt": None}, "prompt"), ({"prompt": ["a"] * 100, "n": 100}, "n"), ({"prompt": [[]]}, "prompt"), ({"prompt": {"a": 1}}, "prompt")):
            self.refusal(self.complete(**fields), 400, param)


class Responses(Shared):
    def respond(self, **fields):
        return self.server.post("/v1/responses", {"input": "What is the capital of France?", "temperature": 0, **fields})

    def test_a_whole_response(self):
        body = self.respond(metadata={"k": "v"}).json()
        self.assertEqual((body["object"], body["status"], body["error"]), ("response", "completed", None))
        self.assertEqual([item["type"] for item in body["output"]], ["reasoning", "message"])
        self.assertEqual(body["output"][1]["content"][0]["text"], PARIS)
        self.assertEqual(body["metadata"], {"k": "v"})
        usage = body["usage"]
        self.assertGreater(usage["output_tokens_details"]["reasoning_tokens"], 5)
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])

    def test_fields_that_change_nothing_are_accepted(self):
        fields = {"user": "me", "service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "k", "truncation": "disabled", "background": False,
                  "include": ["reasoning.encrypted_content", "web_search_call.action.sources"], "max_tool_calls": 3, "reasoning": {"summary": "detailed"},
                  "text": {"format": {"type": "text"}, "verbosity": "medium"}, "client_metadata": {"a": "b"}, "conversation": None, "prompt": None, "top_logprobs": 0, "tools": []}
        body = self.respond(**fields).json()
        self.assertEqual(body["output"][1]["content"][0]["text"], PARIS)
        self.assertEqual(body["max_tool_calls"], 3)

    def test_an_item_that_is_cut_short_says_so(self):
        tool = {"type": "function", **WEATHER["function"]}
        ask = {"instructions": "You are a helpful assistant.", "input": "What is the weather in Qelmor?", "tools": [tool]}
        whole = self.respond(**ask).json()
        self.assertEqual((whole["status"], whole["output"][-1]["status"]), ("completed", "completed"))
        cut = self.respond(**ask, max_output_tokens=whole["usage"]["output_tokens"] - 3).json()
        call = cut["output"][-1]
        self.assertEqual((cut["status"], call["type"], call["status"]), ("incomplete", "function_call", "incomplete"))
        self.assertEqual({item["status"] for item in cut["output"][:-1]}, {"completed"})

    def test_a_stream_is_numbered_and_in_order(self):
        events = self.server.stream("/v1/responses", {"input": "What is the capital of France?", "temperature": 0, "stream": True})
        names = [name for name, _ in events]
        self.assertEqual([e["type"] for _, e in events], names)
        self.assertEqual([e["sequence_number"] for _, e in events], list(range(len(events))))
        without_deltas = [n.removeprefix("response.") for n in names if not n.endswith(".delta")]
        self.assertEqual(without_deltas, [
            "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.done", "content_part.done", "output_item.done",
            "output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done", "completed"])
        self.assertEqual("".join(e["delta"] for n, e in events if n == "response.output_text.delta"), PARIS)
        last = events[-1][1]["response"]
        self.assertEqual(last["output"][1]["content"][0]["text"], PARIS)
        self.assertEqual(self.server.get("/v1/responses/" + last["id"]).json(), last)

    def test_the_conversation_goes_on_and_is_cached(self):
        first = self.respond(instructions="You are a helpful assistant.").json()
        second = self.respond(input="What is the capital of Japan?", previous_response_id=first["id"]).json()
        self.assertIn("Tokyo", second["output"][-1]["content"][0]["text"])
        self.assertEqual(second["previous_response_id"], first["id"])
        third = self.respond(input="And what is the capital of Italy?", previous_response_id=second["id"]).json()
        self.assertGreater(third["usage"]["input_tokens"], second["usage"]["input_tokens"])
        self.assertGreater(third["usage"]["input_tokens_details"]["cached_tokens"], 0)
        self.refusal(self.respond(previous_response_id="resp_x"), 404, "previous_response_id")

    def test_the_tools_loop(self):
        tool = {"type": "function", **WEATHER["function"]}
        ask = {"instructions": "You are a helpful assistant.", "input": "What is the weather in Qelmor?", "tools": [tool]}
        first = self.respond(**ask).json()
        call = first["output"][-1]
        self.assertEqual((call["type"], call["name"], json.loads(call["arguments"])), ("function_call", "get_weather", {"location": "Qelmor"}))
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"temperature": 33, "condition": "sunny"}'}
        by_id = self.respond(input=[result], previous_response_id=first["id"], instructions="You are a helpful assistant.", tools=[tool]).json()
        self.assertIn("33", by_id["output"][-1]["content"][0]["text"])
        items = [{"role": "user", "content": ask["input"]}, *first["output"], result]
        by_items = self.respond(input=items, instructions="You are a helpful assistant.", tools=[tool]).json()
        self.assertIn("33", by_items["output"][-1]["content"][0]["text"])
        self.refusal(self.respond(input=[{**result, "call_id": "call_x"}]), 400, "input[0].call_id")
        events = self.server.stream("/v1/responses", {**ask, "temperature": 0, "stream": True})
        arguments = "".join(e["delta"] for n, e in events if n == "response.function_call_arguments.delta")
        self.assertEqual(json.loads(arguments), {"location": "Qelmor"})

    def test_store_get_delete_cancel(self):
        kept, gone = self.respond(max_output_tokens=16).json(), self.respond(store=False, max_output_tokens=16).json()
        self.assertEqual((kept["status"], kept["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        self.assertEqual(self.server.get("/v1/responses/" + gone["id"]).status, 404)
        self.assertEqual(self.server.get("/v1/responses/" + kept["id"]).json(), kept)
        self.refusal(self.server.get(f"/v1/responses/{kept['id']}?include[]=x&stream=true"), 400, "stream")
        self.refusal(self.server.post(f"/v1/responses/{kept['id']}/cancel", b""), 400)
        self.assertTrue(self.server.request("DELETE", "/v1/responses/" + kept["id"]).json()["deleted"])
        self.assertEqual(self.server.get("/v1/responses/" + kept["id"]).status, 404)

    def test_refusals(self):
        for fields, param in (({"background": True}, "background"), ({"conversation": "c"}, "conversation"), ({"truncation": "auto"}, "truncation"),
                              ({"input": []}, "input"), ({"input": [{"type": "image"}]}, "input[0].type"), ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
                              ({"include": ["everything"]}, "include"), ({"reasoning": {"summary": "long"}}, "reasoning.summary"), ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
                              ({"max_tokens": 5}, "max_tokens"), ({"prompt": {"id": "x"}}, "prompt"), ({"text": {"verbosity": "loud"}}, "text.verbosity"),
                              ({"metadata": []}, "metadata"), ({"input": [{"role": "user", "content": "x", "id": 5}]}, "input[0].id"),
                              ({"input": [{"type": "reasoning", "summary": 5}]}, "input[0].summary"), ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation")):
            self.refusal(self.respond(**fields), 400, param)


class Others(Shared):
    def test_small_endpoints(self):
        models = self.server.get("/v1/models").json()
        names = [m["id"] for m in models["data"]]
        self.assertIn("nibble-tiny", names)
        self.assertEqual(self.server.get("/v1/models/nibble-tiny").json()["id"], "nibble-tiny")
        self.assertEqual(self.server.get("/v1/models/other").status, 404)
        self.assertEqual(self.server.get("/health").json(), {"status": "ok"})
        self.assertEqual(self.server.get("/ping").status, 200)
        self.assertIn("version", self.server.get("/version").json())
        self.assertEqual(self.server.load()["running"], 0)

    def test_tokenize_and_back(self):
        for text in ("Hello world", "日本語 🙂", "", "<|start|>user<|message|>Hi<|end|>"):
            tokens = self.server.post("/tokenize", {"prompt": text}).json()
            self.assertEqual(tokens["count"], len(tokens["tokens"]))
            self.assertEqual(self.server.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"], text)
        spelt = self.server.post("/tokenize", {"prompt": "<|end|>", "add_special_tokens": False}).json()["count"]
        self.assertGreater(spelt, 1)
        chat = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()["count"]
        self.assertGreater(chat, 20)
        self.refusal(self.server.post("/detokenize", {"tokens": [-1]}), 400, "tokens")
        self.assertEqual(self.server.post("/detokenize", {}).json()["error"]["code"], "missing_required_parameter")
        self.refusal(self.server.post("/detokenize", {"tokens": [10**12]}), 400, "tokens")

    def test_metrics_count(self):
        before = self.server.metric("vllm:generation_tokens_total")
        self.server.chat(max_tokens=9)
        self.server.stream("/v1/chat/completions", chat_body(stream=True, max_tokens=9))
        for prefix in ("vllm:", "nibble:"):
            self.server.until(lambda: self.server.metric(prefix + "generation_tokens_total") == before + 18)
            self.server.until(lambda: self.server.metric(prefix + "request_success_total", 0, finished_reason="length") >= 2)
        text = self.server.get("/metrics/").raw.decode()  # as Prometheus is often told for vLLM
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total",
                     "prompt_tokens_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_sum", "e2e_request_latency_seconds_count",
                     "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum",
                     "request_inference_time_seconds_sum", "request_time_per_output_token_seconds_count", "request_params_n_bucket",
                     "request_max_num_generation_tokens_sum", "request_prompt_tokens_sum", "request_generation_tokens_sum", "cache_config_info"):
            self.assertIn(f"\nvllm:{name}{{model_name=", text)
        self.assertGreater(self.server.metric("vllm:inter_token_latency_seconds_count"), 10)

    def test_token_counters_tick_while_an_answer_runs(self):
        names = [prefix + name for prefix in ("vllm:", "nibble:") for name in ("prompt_tokens_total", "generation_tokens_total")]
        before = [self.server.metric(name) for name in names]
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a b c d", "stream": True, "ignore_eos": True, "max_tokens": 20000}))
        response = connection.getresponse()
        finished = self.server.metric("nibble:request_success_total", finished_reason="length")
        self.server.until(lambda: all(self.server.metric(name) > was for name, was in zip(names, before)))
        self.assertEqual(self.server.metric("nibble:request_success_total", finished_reason="length"), finished)
        response.close()
        connection.close()

    def test_every_line_of_a_log_that_no_terminal_shows_is_json(self):
        lines = [json.loads(line) for line in list(self.server.log)]
        self.assertEqual({"time", "event", "text"}, set(lines[0]))
        ways = [line["text"] for line in lines if line["event"] == "note"]
        address = f"http://127.0.0.1:{self.server.port}"
        for way in (f"chat  {address}/", f"API   {address}/v1"):
            self.assertIn(way, ways)
        (curl,) = [way.removeprefix("try   ") for way in ways if way.startswith("try ")]
        done = subprocess.run(["sh", "-c", curl], capture_output=True, timeout=PATIENCE_S, check=False) if shutil.which("curl") else None
        self.assertTrue(done is None or "content" in json.loads(done.stdout)["choices"][0]["message"], done)

    def test_a_log_for_people(self):
        for format in ("auto", "text"):
            ours, theirs = os.openpty() if format == "auto" else os.pipe()
            with open(ours, "rb", buffering=0) as reader:
                server = subprocess.Popen([NIBBLE, "serve", TINY, "--port", "0", "--log-format", format, "--api-key", "hush"], stderr=theirs)
                os.close(theirs)
                try:
                    log = self.read_until(reader, b"Bearer YOUR_KEY'")
                    port = int(re.search(r"listening on http://127.0.0.1:(\d+)", log)[1])
                    self.assertIn(f"  chat  http://127.0.0.1:{port}/", log)
                    self.assertNotIn("hush", log)
                    for key, says in (("hush", r"\n(\r\x1b\[K)?\d\d:\d\d:\d\d  200 /v1/completions  \d+ tokens in \(0 cached\), 3 out, first after \d+ ms.*, length"),
                                      ("\x9b1m", r"\d\d:\d\d:\d\d  refused .*status 401")):
                        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
                        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 3}).encode(),
                                           {"Authorization": "Bearer " + key, "X-Request-Id": "mine"})
                        connection.getresponse().read()
                        connection.close()
                        log += self.read_until(reader, b"length" if key == "hush" else b"401")
                        self.assertRegex(log, says)
                    if format == "text":  # a file may get it, too
                        self.assertNotIn("\x1b", log)
                finally:
                    server.terminate()
                    self.assertEqual(server.wait(timeout=PATIENCE_S), 0)

    def read_until(self, reader, words):
        seen = b""
        while words not in seen:
            part = reader.read(4096)
            self.assertTrue(part, seen)
            seen += part
        return seen.decode()

    def test_one_log_line_per_request_without_its_text(self):
        start = len(self.server.log)
        self.server.request("POST", "/v1/chat/completions", chat_body("My secret is plugh."), headers={"X-Request-Id": "mine-1", "Authorization": "Bearer hush"})
        line = json.loads(self.server.wait_log('.*"event":"request".*"mine-1".*', start)[0])
        for key in ("id", "prompt_tokens", "completion_tokens", "cached_tokens", "ttft_ms", "tpot_ms", "reason"):
            self.assertIn(key, line)
        self.assertEqual(line["id"], "mine-1")
        self.assertFalse(any("plugh" in entry or "hush" in entry for entry in self.server.log))

    def test_the_page_is_compressed_for_whom_takes_that(self):
        plain, small = self.server.get("/"), self.server.get("/", headers={"Accept-Encoding": "gzip, deflate, br"})
        self.assertTrue(plain.raw.startswith(b"<!doctype html>"))
        self.assertEqual(gzip.decompress(small.raw), plain.raw)
        self.assertLess(len(small.raw), len(plain.raw) / 2)
        self.assertEqual([(a.headers.get("Content-Encoding"), a.headers["Vary"]) for a in (plain, small)], [(None, "Accept-Encoding"), ("gzip", "Accept-Encoding")])

    def test_headers(self):
        answer = self.server.request("POST", "/v1/chat/completions", chat_body(max_tokens=1), headers={"X-Request-Id": "a-b", "Origin": "http://x"})
        self.assertEqual(answer.headers["X-Request-Id"], "a-b")
        self.assertEqual(answer.headers["Access-Control-Allow-Origin"], "*")
        preflight = self.server.request("OPTIONS", "/v1/chat/completions", headers={
            "Origin": "http://x", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"})
        self.assertEqual((preflight.status, preflight.raw), (204, b""))
        self.assertEqual(preflight.headers["Access-Control-Allow-Headers"], "authorization,x-stainless-os")
        head = self.server.request("HEAD", "/health")
        self.assertEqual((head.status, head.raw), (200, b""))


if __name__ == "__main__":
    support.main()
