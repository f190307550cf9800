"""What OpenAI's compatibility test asks of whoever serves gpt-oss, as cases of our own: functions with arguments of many
shapes, called over chat completions, responses and messages, whole and streamed, on to a final answer, reasoning in its place.
Standard library only."""
import itertools
import json

import support
from serve_support import Server, joined
from support import SANITIZED, Case

SYSTEM = "You are a helpful assistant."


def function(name, description, properties, required=(), **more):
    return {"name": name, "description": description, "parameters": {"type": "object", "properties": properties, "required": list(required), **more}}


CLOSED = {"additionalProperties": False}
WEATHER = function("get_weather", "Get the current weather in a given location", {"location": {"type": "string", "description": "The city name"}}, ["location"])
FUNCTIONS = [
    WEATHER,
    function("get_status", "Tell how the service does", {}),
    function("translate", "Translate a text", {"text": {"type": "string", "maxLength": 40}, "to": {"enum": ["en", "de", "ja"]}}, ["text", "to"], **CLOSED),
    function("draw", "Draw a picture of some numbers", {
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "number", "minimum": -1000, "maximum": 1000}, "maxItems": 3}, "maxItems": 3},
        "kind": {"type": "string", "enum": ["bars", "dots"]}, "title": {"type": "string", "maxLength": 20, "default": ""}}, ["rows", "kind"], **CLOSED),
    function("select", "Read rows of a table", {
        "table": {"type": "string", "maxLength": 20}, "columns": {"type": "array", "items": {"type": "string", "maxLength": 10}, "minItems": 1, "maxItems": 4},
        "limit": {"type": "integer", "minimum": 1, "maximum": 500}, "descending": {"type": "boolean"}}, ["table", "columns"], **CLOSED),
    function("book", "Book a table", {
        "guest": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": ["integer", "null"], "minimum": 0, "maximum": 150}},
                  "required": ["name", "age"], **CLOSED},
        "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, "seats": {"$ref": "#/$defs/seats"}}, ["guest", "when", "seats"],
        **CLOSED, **{"$defs": {"seats": {"type": "integer", "minimum": 1, "maximum": 12}}}),
]
QUESTION = "What is the weather in Trondheim?"
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "number": (int, float), "integer": int}


def fits(value, schema, root):
    """Whether a document follows a schema, as far as the schemas above go."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema and not any(fits(value, option, root) for option in schema["anyOf"]):
        return False
    kinds = schema.get("type", list(TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(isinstance(value, TYPES[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return (set(schema.get("required", ())) <= set(value) and (schema.get("additionalProperties", True) or set(value) <= set(known))
                and all(fits(item, known.get(name, {}), root) for name, item in value.items()))
    if isinstance(value, list):
        return schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)) and all(fits(item, schema.get("items", {}), root) for item in value)
    if isinstance(value, str):
        return len(value) <= schema.get("maxLength", len(value))
    return not isinstance(value, (int, float)) or schema.get("minimum", value) <= value <= schema.get("maximum", value)


class Answer:
    """One turn, the same for all endpoints: calls are {id, name, arguments}."""

    def __init__(self, calls, content, reasoning, back):
        self.calls, self.content, self.reasoning, self.back = calls, content, reasoning, back


class Chat:
    def __init__(self, server, stream):
        self.server, self.stream = server, stream

    def ask(self, test, functions, messages, choice="auto", **fields):
        tools = [{"type": "function", "function": f} for f in functions]
        if choice not in ("auto", "none", "required"):
            choice = {"type": "function", "function": {"name": choice}}
        body = {"messages": [{"role": "system", "content": SYSTEM}, *messages], "tools": tools, "tool_choice": choice, "max_tokens": 400, **fields}
        message, reason = (self.streamed if self.stream else self.whole)(test, body)
        calls = [{"id": c["id"], **c["function"]} for c in message.get("tool_calls", [])]
        test.assertEqual(reason, "tool_calls" if calls else "stop")
        return Answer(calls, message["content"], message["reasoning"], [message])

    def whole(self, test, body):
        choice = self.server.post("/v1/chat/completions", body).json()["choices"][0]
        message = choice["message"]
        test.assertEqual(message["role"], "assistant")
        test.assertEqual(message.get("reasoning"), message.get("reasoning_content"))
        return {**message, "reasoning": message.get("reasoning")}, choice["finish_reason"]

    def streamed(self, test, body):
        events = self.server.stream("/v1/chat/completions", {**body, "stream": True})
        test.assertEqual(events[-1][1], "[DONE]")
        choices = [c for _, e in events[:-1] for c in e["choices"]]
        calls = []
        for part in (d for c in choices for d in c["delta"].get("tool_calls", [])):
            if part["index"] == len(calls):  # opens a call: its id and name come once, and first
                calls.append({"id": part["id"], "type": part["type"], "function": {"name": part["function"]["name"], "arguments": ""}})
            test.assertEqual(part["index"], len(calls) - 1)
            calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        test.assertEqual(joined(events, "reasoning"), joined(events, "reasoning_content"))
        message = {"role": "assistant", "content": joined(events, "content") or None, "reasoning": joined(events, "reasoning") or None}
        return {**message, **({"tool_calls": calls} if calls else {})}, choices[-1]["finish_reason"]

    def result(self, call, text):
        return {"role": "tool", "tool_call_id": call["id"], "content": text}


class Responses:
    def __init__(self, server, stream):
        self.server, self.stream = server, stream

    def ask(self, test, functions, messages, choice="auto", **fields):
        tools = [{"type": "function", **f} for f in functions]
        if choice not in ("auto", "none", "required"):
            choice = {"type": "function", "name": choice}
        body = {"instructions": SYSTEM, "input": messages, "tools": tools, "tool_choice": choice, "max_output_tokens": 400, **fields}
        response = self.streamed(test, body) if self.stream else self.server.post("/v1/responses", body).json()
        test.assertEqual(response["status"], "completed", response)
        texts = {"reasoning": "", "message": ""}
        for item in response["output"]:
            for part in item.get("content", []):
                test.assertEqual(part["type"], "reasoning_text" if item["type"] == "reasoning" else "output_text")
                test.assertNotEqual(part["text"], "")
                texts[item["type"]] += part["text"]
        calls = [{"id": i["call_id"], "name": i["name"], "arguments": i["arguments"]} for i in response["output"] if i["type"] == "function_call"]
        return Answer(calls, texts["message"] or None, texts["reasoning"] or None, response["output"])

    def streamed(self, test, body):
        events = self.server.stream("/v1/responses", {**body, "stream": True})
        names = [name for name, _ in events]
        for kind in ("response.reasoning_text", "response.output_text", "response.function_call_arguments"):
            whole = {"response.function_call_arguments": "arguments"}.get(kind, "text")
            deltas = "".join(e["delta"] for n, e in events if n == kind + ".delta")
            test.assertEqual(deltas, "".join(e[whole] for n, e in events if n == kind + ".done"))
        test.assertEqual((names[0], names[-1]), ("response.created", "response.completed"))
        items = [e["item"] for n, e in events if n == "response.output_item.done"]
        test.assertEqual(items, events[-1][1]["response"]["output"])
        return events[-1][1]["response"]

    def result(self, call, text):
        return {"type": "function_call_output", "call_id": call["id"], "output": text}


class Messages:
    """Anthropic's."""

    def __init__(self, server, stream):
        self.server, self.stream = server, stream

    def ask(self, test, functions, messages, choice="auto", **fields):
        tools = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"], **({"strict": True} if "strict" in f else {})} for f in functions]
        choice = {"type": {"required": "any"}.get(choice, choice)} if choice in ("auto", "none", "required") else {"type": "tool", "name": choice}
        body = {"system": SYSTEM, "messages": messages, "tools": tools, "tool_choice": choice, "max_tokens": 400, "thinking": {"type": "adaptive"}, **fields}
        message = self.streamed(test, body) if self.stream else self.server.post("/v1/messages", body).json()
        test.assertEqual(message["type"], "message", message)
        blocks = message["content"]
        calls = [{"id": b["id"], "name": b["name"], "arguments": json.dumps(b["input"])} for b in blocks if b["type"] == "tool_use"]
        test.assertEqual(message["stop_reason"], "tool_use" if calls else "end_turn")
        text, thinking = ("\n\n".join(b[kind] for b in blocks if b["type"] == kind) or None for kind in ("text", "thinking"))
        return Answer(calls, text, thinking, [{"role": "assistant", "content": blocks}])

    def streamed(self, test, body):
        events = self.server.stream("/v1/messages", {**body, "stream": True})
        test.assertTrue(all(name == e["type"] for name, e in events))
        test.assertEqual((events[0][0], events[-2][0], events[-1][0]), ("message_start", "message_delta", "message_stop"))
        test.assertEqual(events[1], ("ping", {"type": "ping"}))
        message, text, open_block = events[0][1]["message"], "", False
        for name, e in events[2:-2]:
            test.assertEqual(e["index"], len(message["content"]) - open_block)
            test.assertEqual(open_block, name != "content_block_start")
            if name == "content_block_start":
                open_block, text = True, ""
                message["content"].append(e["content_block"])
            elif name == "content_block_delta":
                delta = e["delta"]
                if delta["type"] == "signature_delta":
                    message["content"][-1]["signature"] = delta["signature"]
                else:
                    field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[delta["type"]]
                    text += delta[field]
                    message["content"][-1]["input" if field == "partial_json" else field] = text
            else:
                open_block, block = False, message["content"][-1]
                if block["type"] == "tool_use":
                    block["input"] = json.loads(block["input"])
        usage = events[-2][1]["usage"]
        test.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], message["usage"]["input_tokens"])
        return {**message, **events[-2][1]["delta"], "usage": usage}

    def result(self, call, text):
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": text}]}


class Compatibility(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs", 8)
        cls.apis = [api(cls.server, stream) for api, stream in itertools.product((Chat, Responses, Messages), (False, True))]

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.log[-5:]

    def valid_call(self, answer, functions):
        """The answer's call, which follows its function's schema."""
        self.assertEqual(len(answer.calls), 1)
        call = answer.calls[0]
        schema = {f["name"]: f["parameters"] for f in functions}[call["name"]]
        arguments = json.loads(call["arguments"])
        self.assertTrue(fits(arguments, schema, schema), call)
        return call, arguments

    def test_every_shape_of_arguments_follows_its_schema(self):
        ids, answers = set(), []
        for api in self.apis:
            for function, strict in itertools.product(FUNCTIONS, (False,) if SANITIZED else (False, True)):
                wanted = {**function, **({"strict": True} if strict else {})}
                answer = api.ask(self, [wanted], [{"role": "user", "content": QUESTION}], choice=function["name"], seed=1 + strict)
                call, _ = self.valid_call(answer, FUNCTIONS)
                ids.add(call["id"])
                answers.append(answer)
        self.assertEqual(len(ids), len(answers))

    def test_a_call_is_required_of_several_functions(self):
        for api in self.apis:
            for seed in range(1 if SANITIZED else 2):
                answer = api.ask(self, FUNCTIONS, [{"role": "user", "content": "Tell me something."}], choice="required", seed=seed)
                self.valid_call(answer, FUNCTIONS)

    def test_a_forced_turn_reasons_within_its_bound(self):
        """Asked what no function fits, this model reasons again and again rather than call."""
        note = function("note", "Record a person", {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
                        ["name", "age"], **CLOSED)
        tools = {"tools": [{"type": "function", "function": note}]}
        forced = [{**tools, "tool_choice": "required"}, {**tools, "tool_choice": {"type": "function", "function": {"name": "note"}}},
                  {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": note["parameters"]}}}]
        for fields, (sampling, room) in itertools.product(forced, (({"temperature": 0}, None), ({"temperature": 0}, 100), ({"temperature": 1, "seed": 1, "n": 24}, 400))):
            body = {"messages": [{"role": "user", "content": "Tell me about the sea."}], **fields, **sampling, **({"max_tokens": room} if room else {})}
            answer = self.server.post("/v1/chat/completions", body).json()
            for choice in answer["choices"]:
                message = choice["message"]
                self.assertEqual(choice["finish_reason"], "tool_calls" if "tools" in fields else "stop", choice)
                document = json.loads(message["tool_calls"][0]["function"]["arguments"] if "tools" in fields else message["content"])
                self.assertTrue(fits(document, note["parameters"], note["parameters"]), document)
            reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
            self.assertLessEqual(reasoning, len(answer["choices"]) * (room // 2 if room else 8192))
        end = self.server.post("/tokenize", {"prompt": "<|end|>"}).json()["tokens"][0]
        body = {"messages": [{"role": "user", "content": "Tell me about the sea."}], **forced[0], "max_tokens": 200, "n": 8, "seed": 1, "logit_bias": {end: -100}}
        answer = self.server.post("/v1/chat/completions", body).json()  # no reasoning ends by itself
        self.assertEqual({c["finish_reason"] for c in answer["choices"]}, {"tool_calls"})
        self.assertEqual(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 8 * 101)  # <|message|> counts

    def test_the_model_calls_of_its_own_accord_and_goes_on_to_an_answer(self):
        for api in self.apis:
            for functions in ([WEATHER], FUNCTIONS[:2]):
                messages = [{"role": "user", "content": QUESTION}]
                first = api.ask(self, functions, messages, temperature=0)
                call, arguments = self.valid_call(first, functions)
                self.assertEqual((call["name"], arguments), ("get_weather", {"location": "Trondheim"}))
                self.assertTrue(first.reasoning)
                messages += [*first.back, api.result(call, '{"temperature": 33, "condition": "sunny"}')]
                final = api.ask(self, functions, messages, temperature=0)
                self.assertEqual(final.calls, [])
                self.assertIn("33", final.content)

    def test_none_forbids_calls(self):
        for api in self.apis:
            answer = api.ask(self, [WEATHER], [{"role": "user", "content": QUESTION}], choice="none", temperature=0)
            self.assertEqual(answer.calls, [])
            self.assertTrue(answer.content)

    def test_reasoning_has_its_place_in_an_answer_without_tools(self):
        for api in self.apis:
            answer = api.ask(self, [], [{"role": "user", "content": "What is the capital of France?"}], temperature=0)
            self.assertEqual(answer.content, "The capital of France is Paris.")
            self.assertIn("France", answer.reasoning)

    def test_a_call_and_its_result_may_be_given_by_hand(self):
        """By a client that never got the call from us, with and without its reasoning."""
        call = {"id": "call_7", "name": "get_weather", "arguments": '{"location": "Oslo"}'}
        for api in self.apis:
            for reasoning in (None, "The user wants the weather in Oslo."):
                if isinstance(api, Chat):
                    made = [{"role": "assistant", "content": None, "reasoning": reasoning,
                             "tool_calls": [{"id": "call_7", "type": "function", "function": {"name": "get_weather", "arguments": call["arguments"]}}]}]
                elif isinstance(api, Messages):
                    thought = [{"type": "thinking", "thinking": reasoning, "signature": ""}] if reasoning else []
                    made = [{"role": "assistant", "content": [*thought, {"type": "tool_use", "id": "call_7", "name": "get_weather", "input": {"location": "Oslo"}}]}]
                else:
                    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": reasoning}]}
                    made = [*([thought] if reasoning else []), {"type": "function_call", "call_id": "call_7", "name": "get_weather", "arguments": call["arguments"]}]
                messages = [{"role": "user", "content": "What is the weather in Oslo?"}, *made, api.result(call, '{"temperature": 21, "condition": "windy"}')]
                self.assertIn("21", api.ask(self, [WEATHER], messages, temperature=0).content)


if __name__ == "__main__":
    support.main()
