"""The official anthropic client against nibble serve: messages, streams, thinking, tools to a final answer, counts, errors."""
import pathlib
import sys
import unittest

import anthropic

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402
from serve_support import Server  # noqa: E402

MODEL = "nibble-tiny"
ASK = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
GREEDY = {"extra_body": {"temperature": 0}}  # no argument of the client any more
SYSTEM = [{"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}]
WEATHER = {"name": "get_weather", "description": "Get the current weather in a given location", "input_schema": {
    "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
    "properties": {"location": {"type": "string", "description": "The city name"}}, "required": ["location"]}}


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k")
        cls.client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{cls.server.port}", api_key="k", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def create(self, **fields):
        return self.client.messages.create(**{"model": MODEL, "max_tokens": 400, "messages": ASK, **GREEDY, **fields})

    def test_a_message_and_its_stream(self):
        whole = self.create()
        self.assertEqual([b.type for b in whole.content], ["thinking", "text"])
        self.assertEqual([(b.type, b.text) for b in self.create(thinking={"type": "disabled"}).content], [("text", PARIS)])
        self.assertEqual(whole.stop_reason, "end_turn")
        thinking = self.create(thinking={"type": "enabled", "budget_tokens": 1024}, stop_sequences=["of France"])
        self.assertEqual([b.type for b in thinking.content], ["thinking", "text"])
        self.assertEqual((thinking.stop_reason, thinking.stop_sequence, thinking.content[1].text), ("stop_sequence", "of France", "The capital "))
        with self.client.messages.stream(model=MODEL, max_tokens=400, messages=ASK, thinking={"type": "adaptive"}, **GREEDY) as stream:
            self.assertEqual("".join(stream.text_stream), PARIS)
            final = stream.get_final_message()
        self.assertEqual([b.type for b in final.content], ["thinking", "text"])
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        self.assertEqual(final.usage.input_tokens + final.usage.cache_read_input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens)

    def test_a_call_and_its_result(self):
        asked = [{"role": "user", "content": [{"type": "text", "text": "What is the weather in Trondheim?"}]}]
        fields = {"system": SYSTEM, "tools": [WEATHER], "thinking": {"type": "adaptive"}}
        first = self.create(messages=asked, **fields)
        self.assertEqual(first.stop_reason, "tool_use")
        call = first.content[-1]
        self.assertEqual((call.name, call.input), ("get_weather", {"location": "Trondheim"}))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": '{"temperature": 33, "condition": "sunny"}'}]}
        final = self.create(messages=[*asked, first.to_param(), {"role": "user", "content": [result]}], **fields)
        self.assertIn("33", final.content[-1].text)
        with self.client.messages.stream(model=MODEL, max_tokens=400, messages=asked, system=SYSTEM, tools=[WEATHER],
                                         tool_choice={"type": "tool", "name": "get_weather"}, **GREEDY) as stream:
            self.assertEqual(stream.get_final_message().content[-1].input, {"location": "Trondheim"})
        counted = self.client.messages.count_tokens(model=MODEL, messages=asked, system=SYSTEM, tools=[WEATHER])
        self.assertEqual(counted.input_tokens, first.usage.input_tokens + first.usage.cache_read_input_tokens)

    def test_errors(self):
        for fields, kind in (({"model": "x"}, anthropic.NotFoundError), ({"messages": []}, anthropic.BadRequestError), ({"max_tokens": 0}, anthropic.BadRequestError)):
            with self.assertRaises(kind) as caught:
                self.create(**fields)
            self.assertEqual(caught.exception.body["type"], "error")
        with self.assertRaises(anthropic.AuthenticationError):
            self.client.with_options(api_key="z").messages.create(model=MODEL, max_tokens=1, messages=ASK)


if __name__ == "__main__":
    support.main()
