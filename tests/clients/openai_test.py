"""The official openai client against nibble serve: chat, streams, tools to a final answer, schemas, responses, logprobs."""
import asyncio
import json
import pathlib
import sys
import unittest

import openai
import pydantic

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402
from serve_support import Server  # noqa: E402

MODEL = "nibble-tiny"
ASK = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather in a given location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string", "description": "The city name"}}, "required": ["location"]}}}
HELPFUL = {"role": "system", "content": "You are a helpful assistant."}


class Person(pydantic.BaseModel):
    name: str
    age: int


class GetWeather(pydantic.BaseModel):
    location: str


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k")
        cls.base = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.base, api_key="k", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_models(self):
        self.assertIn(MODEL, [m.id for m in self.client.models.list()])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)

    def test_chat_and_stream(self):
        whole = self.client.chat.completions.create(model=MODEL, messages=ASK, temperature=0)
        self.assertEqual(whole.choices[0].message.content, PARIS)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        text, usage = "", None
        for chunk in self.client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            text += "".join(c.delta.content or "" for c in chunk.choices)
        self.assertEqual(text, PARIS)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_the_streaming_helper(self):
        with self.client.chat.completions.stream(model=MODEL, messages=ASK, temperature=0) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_completion().choices[0].message.content, PARIS)

    def test_many_at_once(self):
        async def all_of_them():
            client = openai.AsyncOpenAI(base_url=self.base, api_key="k", timeout=120)
            asks = [client.chat.completions.create(model=MODEL, messages=ASK, temperature=0) for _ in range(32)]
            return [a.choices[0].message.content for a in await asyncio.gather(*asks)]

        self.assertEqual(set(asyncio.run(all_of_them())), {PARIS})

    def test_tools_to_a_final_answer(self):
        messages = [HELPFUL, {"role": "user", "content": "What is the weather in Trondheim?"}]
        for choice in ("auto", "required", {"type": "function", "function": {"name": "get_weather"}}):
            first = self.client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], tool_choice=choice, temperature=0)
            self.assertEqual(first.choices[0].finish_reason, "tool_calls")
            call = first.choices[0].message.tool_calls[0]
            self.assertEqual(json.loads(call.function.arguments), {"location": "Trondheim"})
            result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 33, "condition": "sunny"}'}
            final = self.client.chat.completions.create(model=MODEL, messages=[*messages, first.choices[0].message, result], tools=[WEATHER], temperature=0)
            self.assertIn("33", final.choices[0].message.content)

    def test_streamed_tools(self):
        with self.client.chat.completions.stream(model=MODEL, messages=[HELPFUL, {"role": "user", "content": "What is the weather in Oslo?"}],
                                                 tools=[openai.pydantic_function_tool(GetWeather, name="get_weather")], temperature=0) as stream:
            for _ in stream:
                pass
            call = stream.get_final_completion().choices[0].message.tool_calls[0]
        self.assertEqual(call.function.parsed_arguments, GetWeather(location="Oslo"))

    def test_a_schema_is_kept_to(self):
        for seed in range(5):
            done = self.client.chat.completions.parse(model=MODEL, messages=[{"role": "user", "content": "Make up a person."}], response_format=Person,
                                                      seed=seed, max_tokens=400)
            if done.choices[0].finish_reason == "stop":
                self.assertIsInstance(done.choices[0].message.parsed, Person)
        parsed = self.client.responses.parse(model=MODEL, input="Make up a person.", text_format=Person, temperature=0, max_output_tokens=400)
        if parsed.status == "completed":
            self.assertIsInstance(parsed.output_parsed, Person)
        some = self.client.chat.completions.create(model=MODEL, messages=ASK, response_format={"type": "json_object"}, temperature=0, max_tokens=200)
        if some.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(some.choices[0].message.content), dict)

    def test_logprobs(self):
        done = self.client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, logprobs=True, top_logprobs=2)
        entries = done.choices[0].logprobs.content
        self.assertEqual("".join(e.token for e in entries), PARIS)
        self.assertEqual({len(e.top_logprobs) for e in entries}, {2})
        text = self.client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5, logprobs=2, echo=True, temperature=0)
        self.assertEqual("".join(text.choices[0].logprobs.tokens), text.choices[0].text)

    def test_responses(self):
        first = self.client.responses.create(model=MODEL, input="What is the capital of France?", temperature=0)
        self.assertEqual(first.output_text, PARIS)
        self.assertGreater(first.usage.output_tokens_details.reasoning_tokens, 0)
        second = self.client.responses.create(model=MODEL, input="What is the capital of Japan?", temperature=0, previous_response_id=first.id)
        self.assertIn("Tokyo", second.output_text)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, PARIS)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)

    def test_streamed_responses(self):
        with self.client.responses.stream(model=MODEL, input="What is the capital of France?", temperature=0) as stream:
            events = [event.type for event in stream]
            self.assertEqual(stream.get_final_response().output_text, PARIS)
        self.assertEqual((events[0], events[-1]), ("response.created", "response.completed"))

    def test_responses_tools(self):
        tool = {"type": "function", "strict": True, **WEATHER["function"]}
        tool["parameters"] = {**tool["parameters"], "additionalProperties": False}
        items = [{"role": "user", "content": "What is the weather in Qelmor?"}]
        first = self.client.responses.create(model=MODEL, instructions="You are a helpful assistant.", input=items, tools=[tool], temperature=0)
        call = first.output[-1]
        self.assertEqual(json.loads(call.arguments), {"location": "Qelmor"})
        items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 33, "condition": "sunny"}'}]
        final = self.client.responses.create(model=MODEL, instructions="You are a helpful assistant.", input=items, tools=[tool], temperature=0)
        self.assertIn("33", final.output_text)

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model=MODEL, messages=ASK, extra_body={"bad_words": ["a"]})
        self.assertEqual(caught.exception.param, "bad_words")
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-9", messages=ASK)
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.base, api_key="wrong", max_retries=0).models.list()


if __name__ == "__main__":
    support.main()
