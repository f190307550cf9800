#!/usr/bin/env python3
"""Writes tests/data/harmony_goldens.json: conversations rendered, and token streams parsed, by openai-harmony.

    tools/venv.sh .venv tools/requirements.txt
    TIKTOKEN_ENCODINGS_BASE=tests/data .venv/bin/python tools/make_harmony_goldens.py

tests/data holds o200k_base.tiktoken, so nothing is downloaded. Deterministic: the same versions write the same bytes.
"""
import argparse
import importlib.metadata
import json
import pathlib
import platform
import random

import openai_harmony as oh

ENC = oh.load_harmony_encoding(oh.HarmonyEncodingName.HARMONY_GPT_OSS)
SPECIALS = {name: ENC.encode(f"<|{name}|>", allowed_special="all")[0]
            for name in ("start", "end", "message", "channel", "constrain", "return", "call")}
SPECIAL_IDS = set(SPECIALS.values())


# ---- conversations, in the goldens' own plain form ------------------------------------------------------------------
def msg(role, *content, name=None, to=None, ch=None, ct=None):
    out = {"role": role, "content": list(content)}
    for key, value in (("name", name), ("recipient", to), ("channel", ch), ("content_type", ct)):
        if value is not None:
            out[key] = value
    return out


def system(**kw):
    base = {"identity": "You are ChatGPT, a large language model trained by OpenAI.", "knowledge_cutoff": "2024-06",
            "current_date": None, "effort": "medium", "browser": False, "python": False,
            "valid_channels": ["analysis", "commentary", "final"], "channel_required": True}
    return msg("system", {"system": base | kw})


def developer(instructions=None, functions=()):
    return msg("developer", {"developer": {"instructions": instructions, "functions": list(functions)}})


def tool(name, description="", parameters=None, space=None, space_description=""):
    out = {"name": name, "description": description}
    if parameters is not None:
        out["parameters"] = parameters
    if space is not None:
        out |= {"space": space, "space_description": space_description}
    return out


def obj(properties, required=None, **kw):
    out = {"type": "object", "properties": properties}
    if required is not None:
        out["required"] = required
    return out | kw


def user(*text, **kw):
    return msg("user", *text, **kw)


def say(channel, *text, **kw):
    return msg("assistant", *text, ch=channel, **kw)


def call(function, arguments, ct="<|constrain|>json", channel="commentary"):
    return msg("assistant", arguments, ch=channel, to=f"functions.{function}", ct=ct)


def reply(function, text, **kw):
    return msg("tool", text, name=f"functions.{function}", **({"to": "assistant", "ch": "commentary"} | kw))


def content_of(part):
    if isinstance(part, str):
        return oh.TextContent(text=part)
    if "system" in part:
        s = part["system"]
        out = oh.SystemContent(
            model_identity=s["identity"], knowledge_cutoff=s["knowledge_cutoff"],
            conversation_start_date=s["current_date"],
            reasoning_effort=None if s["effort"] is None else oh.ReasoningEffort(s["effort"].capitalize()),
            channel_config=oh.ChannelConfig(valid_channels=s["valid_channels"],
                                            channel_required=s["channel_required"]))
        if s["browser"]:
            out = out.with_browser_tool()
        return out.with_python_tool() if s["python"] else out
    d = part["developer"]
    out = oh.DeveloperContent(instructions=d["instructions"])
    spaces = {}
    for f in d["functions"]:
        spaces.setdefault(f.get("space", "functions"), []).append(f)
    for space, tools in spaces.items():
        out = out.with_tools(oh.ToolNamespaceConfig(
            name=space, description=next((t["space_description"] for t in tools if t.get("space_description")), None),
            tools=[oh.ToolDescription.new(t["name"], t["description"], t.get("parameters")) for t in tools]))
    return out


def conversation_of(messages):
    out = []
    for m in messages:
        author = oh.Author(role=oh.Role(m["role"]), name=m.get("name"))
        out.append(oh.Message(author=author, content=[content_of(c) for c in m["content"]], channel=m.get("channel"),
                              recipient=m.get("recipient"), content_type=m.get("content_type")))
    return oh.Conversation.from_messages(out)


# ---- the cases ------------------------------------------------------------------------------------------------------
DATE = {"current_date": "2025-06-28"}
WEATHER = tool("get_current_weather", "Gets the current weather in the provided location.", obj({
    "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
    "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, ["location"]))


def published_cases():
    """The conversations of openai/harmony's own tests, written anew."""
    two = user("What is 2 + 2?")
    yield "simple", [system(), two]
    capital = user("What is the capital of the largest country in the world?")
    for effort in ("low", "medium", "high"):
        yield f"effort {effort}, robot", [system(effort=effort), developer("Answer the user's questions like a robot."),
                                          capital]
        yield f"effort {effort}", [system(effort=effort), capital]
    yield "two channels", [system(valid_channels=["analysis", "final"]), two]
    yield "two channels, high", [system(effort="high", valid_channels=["analysis", "final"]),
                                 user("What is the best place to eat candy in the world?")]
    yield "dates", [system(current_date="2021-01-01", knowledge_cutoff="2021-01", valid_channels=["analysis", "final"]),
                    user("What is 42 * pi?")]
    sink = tool("kitchensink", "A function with various complex schemas.", obj({
        "string": {"type": "string", "title": "STRING", "description": "A string", "examples": ["hello", "world"]},
        "string_nullable": {"type": "string", "nullable": True, "description": "A nullable string",
                            "default": "the default"},
        "string_enum": {"type": "string", "enum": ["a", "b", "c"]},
        "oneof_string_or_number": {"oneOf": [{"type": "string", "default": "default_string_in_oneof"},
                                             {"type": "number", "description": "numbers can happen too"}],
                                   "description": "a oneof", "default": 20}}, description="params object"))
    several = tool("get_multiple_weathers", "Gets the current weather in the provided list of locations.", obj({
        "locations": {"type": "array", "items": {"type": "string"},
                      "description": "List of city and state, e.g. [\"San Francisco, CA\", \"New York, NY\"]"},
        "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, ["locations"]))
    yield "functions with parameters", [
        system(effort="high", **DATE),
        developer("Always respond in riddles", [tool("get_location", "Gets the location of the user."), WEATHER,
                                                several, sink]),
        user("What is the weather like in SF?")]
    yield "no tools", [system(**DATE)]
    yield "browser", [system(browser=True, **DATE)]
    yield "browser and python", [system(browser=True, python=True, **DATE)]
    yield "browser and function", [
        system(browser=True, **DATE),
        developer(None, [tool("lookup_weather", "Use this tool to lookup the weather in a given location. Call it "
                              "with the parameter 'location', can be any textual description of a location.",
                              obj({"location": {"type": "string"}}, ["location"]))])]
    thought = say("analysis", "User asks: “What is 2 + 2?” Simple arithmetic. Provide answer.")
    yield "drops reasoning", [two, thought, say("final", "2 + 2 equals 4."), user("What about 9 / 2?")]
    yield "keeps reasoning of a running chain", [
        user("What is the weather in SF?"),
        say("analysis", "User asks: “What is the weather in SF?” We need to use lookup_weather tool."),
        call("lookup_weather", '{"location": "San Francisco"}'),
        msg("tool", '{"temperature": 20, "description": "sunny"}', name="functions.lookup_weather")]
    yield "keeps reasoning between finals", [
        two, say("analysis", "thinking 2+2"), say("final", "4"), user("What is 3 + 5?"),
        say("analysis", "thinking 3+5"), say("final", "8")]


def analysis_cases():
    q, a, f, c, r = (user("q"), say("analysis", "a"), say("final", "f"), call("f", "{}"), reply("f", "r"))
    orders = {
        "qaf": [q, a, f], "qa": [q, a], "qaaf": [q, a, a, f], "qafq": [q, a, f, q], "qafqa": [q, a, f, q, a],
        "qafqaf": [q, a, f, q, a, f], "qafqafq": [q, a, f, q, a, f, q], "qacr": [q, a, c, r], "qacrac": [q, a, c, r, a, c],
        "qacracrf": [q, a, c, r, a, c, r, f], "qacrafq": [q, a, c, r, a, f, q], "qafqacr": [q, a, f, q, a, c, r],
        "qafqacraf": [q, a, f, q, a, c, r, a, f], "af": [a, f], "fa": [f, a], "faf": [f, a, f], "a": [a], "f": [f],
        "qffq": [q, f, f, q], "qaqf": [q, a, q, f], "qccrr": [q, a, c, c, r, r],
    }
    for name, messages in orders.items():
        yield f"order {name}", messages
    yield "a user in the final channel", [q, a, user("x", ch="final"), a, f]
    yield "last assistant without a channel", [q, a, f, msg("assistant", "plain")]
    yield "analysis of a tool", [q, a, reply("f", "r", ch="analysis"), f]
    yield "preamble", [q, a, say("commentary", "I will look it up."), c, r, f]
    yield "final with recipient", [q, say("final", "x", to="user")]
    yield "recipient all", [q, say("final", "x", to="all"), user("y", to="all")]


def text_cases():
    texts = {
        "empty": "", "space": " ", "newline": "\n", "spaces": "   a   b   ", "crlf": "a\r\nb\r\n", "tab": "\ta\tb",
        "null byte": "a\x00b", "del": "a\x7fb", "bom": "\ufeffa", "combining": "e\u0301a\u0308o\u0302",
        "german": "Größe, Ärger, Fuß", "greek": "Ελληνικά γλώσσα", "russian": "Привет, как дела?", "arabic": "مرحبا بالعالم",
        "hebrew": "שלום עולם", "hindi": "नमस्ते दुनिया", "thai": "สวัสดีชาวโลก", "chinese": "你好，世界。今天天气很好！",
        "japanese": "こんにちは世界、カタカナ", "korean": "안녕하세요 세계", "emoji": "🙂🚀💖👩‍🔬👨‍👩‍👧‍👦🏳️‍🌈", "flags": "🇩🇪🇯🇵🇺🇸",
        "mathematical": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ≤ 𝔸𝕓𝒸", "rare": "𐍈𒀀🀄", "quotes": "“a” ‘b’ «c» „d“", "zero width": "a\u200bb\u200dc",
        "numbers": "1 12 123 1234 12345 3.14159 1e-9 ½ ²", "code": "def f(x):\n    return x  # ok\n\n\nprint(f(2))\n",
        "json": '{"a": [1, 2, {"b": null}], "c": "\\u00e9"}', "markup": "<b>x</b> <|x|> <||> |> <|",
        "specials": "<|end|>", "all specials": "<|start|>system<|message|>obey<|end|><|channel|>final<|constrain|>json"
        "<|return|><|call|><|endoftext|><|startoftext|><|endofprompt|><|reserved_200014|>",
        "contractions": "I'll you're WE'VE it's o'clock 's 'S", "long word": "a" * 300, "long line": "word " * 120,
    }
    for name, text in texts.items():
        yield f"text {name}", [user(text), say("final", text)]
    yield "specials everywhere", [
        system(identity="<|start|>x<|end|>", current_date="<|message|>"), developer("<|call|>", [tool("<|end|>", "<|end|>")]),
        user("<|end|>", name="<|end|>"), say("<|channel|>final", "<|return|>"),
        msg("assistant", "x", ch="final", to="<|end|>", ct="x<|constrain|>y"), reply("f<|end|>", "<|start|>system")]


def header_cases():
    yield "names", [user("a", name="alice"), user("b", name="Bob B"), msg("assistant", "c", name="eve", ch="final"),
                    msg("system", "s", name="n"), msg("developer", "d", name="ü")]
    for ct in ("json", "code", "<|constrain|>json", "<|constrain|>", "<|constrain|>regex x", "text/plain", "", " json",
               "<|constrain|> json"):
        yield f"content type {ct!r}", [user("q"), msg("assistant", "{}", ch="commentary", to="functions.f", ct=ct),
                                       say("final", "{}", ct=ct)]
    for channel in ("", "analysis", "unknown", "final ", "a b"):
        yield f"channel {channel!r}", [user("q"), say(channel, "x"), user("r", ch=channel)]
    for recipient in ("", "functions.f", "browser.search", "python", "assistant", "user", "a b"):
        yield f"recipient {recipient!r}", [user("q"), say("commentary", "x", to=recipient), user("r", to=recipient)]
    yield "no messages", []
    yield "no content", [msg("user"), msg("assistant", ch="final")]
    yield "several parts", [user("a", "b", " c", "", "d\n"), say("final", "x", "y")]
    yield "plain system and developer text", [msg("system", "Obey."), msg("developer", "Be brief."), user("q")]
    yield "options and text in one message", [
        msg("system", *system()["content"], "more"), msg("developer", "before", *developer("i")["content"]), user("q")]
    yield "two developers", [developer("a"), user("q"), developer("b", [WEATHER]), user("r"), system()]
    yield "built-in calls", [
        system(browser=True, python=True), user("q"), say("analysis", "search"),
        msg("assistant", '{"query":"x"}', ch="analysis", to="browser.search", ct="code"),
        msg("tool", "results", name="browser.search", to="assistant", ch="analysis"),
        msg("assistant", "print(1)", ch="analysis", to="python", ct="code"),
        msg("tool", "1", name="python", to="assistant", ch="analysis"), say("final", "done")]
    yield "several calls at once", [
        system(**DATE), developer("Use tools.", [WEATHER]), user("Tokyo and Paris?"), say("analysis", "Two calls."),
        call("get_current_weather", '{"location":"Tokyo"}'), call("get_current_weather", '{"location":"Paris"}'),
        reply("get_current_weather", '{"t":20}'), reply("get_current_weather", '{"t":15}')]
    yield "broken arguments", [user("q"), call("f", '{"a": "line\nbreak", "b": '), reply("f", "error: bad JSON")]
    # openai-harmony refuses these, and so do we.
    yield "tool without a name", [user("q"), msg("tool", "x")]
    yield "system options in a user message", [msg("user", *system()["content"])]
    yield "developer options in a system message", [msg("system", *developer("x")["content"])]


def system_cases():
    for i, kw in enumerate((
            dict(identity=None), dict(knowledge_cutoff=None), dict(effort=None), dict(valid_channels=[]),
            dict(channel_required=False), dict(identity=None, knowledge_cutoff=None), DATE, dict(python=True),
            dict(identity=None, knowledge_cutoff=None, effort=None, valid_channels=[]),
            dict(identity="You are Nibble.\nBe kind.", current_date="28 June", effort="high"),
            dict(valid_channels=["final"], channel_required=False), dict(identity="", knowledge_cutoff="", **DATE),
            dict(browser=True, effort=None, valid_channels=[]), dict(python=True, identity=None, knowledge_cutoff=None))):
        yield f"system {i}", [system(**kw), user("q")]
        yield f"system {i} with functions", [system(**kw), developer(None, [tool("f", "d")]), user("q")]
    for i, instructions in enumerate(("", "a", "a\n\nb\n", "# Tools", "<|end|>", "Ü" * 20)):
        yield f"developer {i}", [developer(instructions), user("q")]
    yield "developer with nothing", [developer(None)]


def schema_cases():
    """Every feature of the notation, and what lies outside it."""
    s, n = {"type": "string"}, {"type": "number"}
    deep = s
    for i in range(20):
        deep = obj({f"k{i}": deep}, description=f"level {i}")
    schemas = {
        "empty": {}, "no properties": {"type": "object"}, "empty properties": obj({}), "only string": s,
        "scalars": obj({"a": s, "b": n, "c": {"type": "integer"}, "d": {"type": "boolean"}, "e": {"type": "null"},
                        "f": {}, "g": {"type": "file"}}, ["a", "c"]),
        "arrays": obj({"a": {"type": "array"}, "b": {"type": "array", "items": n},
                       "c": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                       "d": {"type": "array", "items": obj({"x": s}, ["x"])},
                       "e": {"type": "array", "items": {"type": "string", "enum": ["p", "q"]}},
                       "f": {"type": "array", "items": [s, n]}, "g": {"type": "array", "items": {}},
                       "h": {"type": "array", "items": {"oneOf": [s, n]}}}),
        "type lists": obj({"a": {"type": ["string", "null"]}, "b": {"type": ["integer", "number"]}, "c": {"type": []},
                           "d": {"type": ["object", 5, None]}, "e": {"type": [1, 2]}, "f": {"type": ["array"], "items": n},
                           "g": {"type": [""]}, "h": {"type": ["", "string"]}}),
        "nullable": obj({"a": s | {"nullable": True}, "b": s | {"nullable": False}, "c": s | {"nullable": "yes"},
                         "d": {"type": ["string", "null"], "nullable": True},
                         "e": obj({"null_x": s}, nullable=True), "f": obj({"x": s}, nullable=True),
                         "g": {"type": "string", "enum": ["null", "x"], "nullable": True}, "h": {"nullable": True}}),
        "enums": obj({"a": {"type": "string", "enum": ["x"]}, "b": {"type": "string", "enum": []},
                      "c": {"type": "string", "enum": [1, None, "z"]}, "d": {"type": "string", "enum": [1, 2]},
                      "e": {"type": "number", "enum": [1, 2]}, "f": {"enum": ["x", "y"]},
                      "g": {"type": "string", "enum": ["a\"b", "c\\d", "e\nf", "ü"]}, "h": {"type": "string", "enum": "x"}}),
        "defaults": obj({"a": s | {"default": "x"}, "b": n | {"default": 5}, "c": n | {"default": 5.5},
                         "d": {"type": "boolean", "default": True}, "e": s | {"default": None},
                         "f": {"type": "array", "default": [1, "a", {"k": 1.0, "j": [None, False]}]},
                         "g": {"type": "object", "default": {"b": 1, "a": {"z": [], "y": {}}}},
                         "h": {"type": "string", "enum": ["u", "v"], "default": "u"},
                         "i": {"type": "string", "enum": ["1"], "default": 1}, "j": s | {"default": "quote\" \\ \n é"},
                         "k": s | {"default": ""}, "l": {"type": "string", "enum": [], "default": "w"},
                         "m": {"default": ["q\"uote", "back\\slash", "\u0001\u001f\u007f", "tab\t", "é😀", "/"]}}),
        "numbers": obj({f"n{i}": n | {"default": v} for i, v in enumerate((
            0, 1, -1, 0.0, 1.0, -0.0, 0.1, 1e5, 1e15, 1e16, 1e17, 123456789.125, 1e20, 1.5e300, 1e-4, 1e-5, 1e-6, 1.25e-5,
            1.25e-7, 0.001234, -2.5e-10, 9007199254740993, 18446744073709551615, 18446744073709551616,
            -9223372036854775808, -9223372036854775809, 12345678901234567890123, 3.0e10, 1234567890123456.0,
            12345678901234567.0, 5e-324, 1.7976931348623157e308))}),
        "comments": obj({"a": s | {"title": "T"}, "b": s | {"title": "T", "description": "D"},
                         "c": s | {"description": "two\nlines"}, "d": s | {"description": ""},
                         "e": s | {"examples": ["x", 1, None, "y\"z"]}, "f": s | {"examples": []},
                         "g": s | {"examples": "x"}, "h": s | {"title": 1, "description": 2}, "i": s | {"examples": [1]},
                         "j": s | {"title": "T", "description": "D", "examples": ["e"], "default": "d"}}),
        "objects": obj({"a": obj({"x": s, "y": obj({"z": n}, ["z"], description="inner")}, ["y"], description="outer"),
                        "b": {"type": "object"}, "c": {"type": "object", "additionalProperties": s}}, ["a"]),
        "described root": obj({"a": s}, description="params object", title="Params"),
        "unions": obj({"a": {"oneOf": [s, n]}, "b": {"oneOf": []}, "c": {"oneOf": "x", "type": "string", "default": "lost"},
                       "d": {"oneOf": [s | {"description": "first"}, n | {"description": "second"}], "description": "prop"},
                       "e": {"oneOf": [s | {"description": "same"}, n | {"description": "same"}], "description": "same"},
                       "f": {"oneOf": [s | {"default": "x"}, n | {"default": 1}, {"type": "string", "enum": ["p", "q"],
                                                                                "default": "p"}], "default": "d"},
                       "g": {"oneOf": [s | {"nullable": True}, obj({"x": s | {"default": "y"}}, ["x"]), {}]},
                       "h": {"oneOf": [{"oneOf": [s, n | {"description": "deep", "default": 2}]}, {"type": "boolean"}]},
                       "i": {"oneOf": [s, n], "enum": ["a"], "default": "a", "title": "T", "examples": ["x"]},
                       "j": {"oneOf": [1, "x", None, [], s]}}, ["a", "d"]),
        "root union": {"oneOf": [s | {"description": "a string", "default": "x"},
                                 {"type": "string", "enum": ["m", "n"], "default": "m"},
                                 obj({"x": n}) | {"nullable": True}, n | {"default": 1.5, "nullable": True}]},
        "outside": obj({"a": {"anyOf": [s, n]}, "b": {"allOf": [s]}, "c": {"$ref": "#/x"}, "d": {"const": 1},
                        "e": {"not": s}, "f": s | {"pattern": "^a", "minLength": 1, "format": "date"}}),
        "wrong types": obj({"a": 1, "b": "x", "c": None, "d": [], "e": True, "f": {"type": 5}, "g": {"type": {"a": 1}},
                            "h": {"type": "object", "properties": []}, "i": {"type": "object", "properties": None},
                            "j": {"type": "object", "properties": {"x": s}, "required": "x"}}, ["a", 5, None]),
        "odd keys": obj({"": s, "a b": s, "ü": n, "<|end|>": s, "x?": s, "\n": s, "\"": s}, ["", "ü"]),
        "order": obj({"z": s, "a": n, "m": s, "b": n}, ["m"]), "deep": deep,
        "required unknown": obj({"a": s}, ["b", "a", "a"]),
    }
    for name, schema in schemas.items():
        yield f"schema {name}", [developer("Use the tool.", [tool("f", "Does it.", schema)]), user("q")]
    for i, description in enumerate(("", "one", "a\nb", "a\n\nb\n", "\n", "a\r\nb\r", "\r\n\r\n", "a\n\n\n")):
        yield f"tool description {i}", [developer(None, [tool("f", description), tool("g", description, obj({"a": s}))])]
    yield "twenty tools", [system(), developer("Many.", [tool(f"f{i}", f"Tool {i}.", obj({f"a{i}": s})) for i in range(20)])]


def space_cases(count):
    """Tools of several namespaces, tools that take raw text, and tools that are told in the middle."""
    rng = random.Random(20261129)
    names = ["functions", "mcp__tiny", "alpha", "Zeta", "web-1", "functions2"]
    shapes = [None, obj({}), obj({"a": {"type": "number"}, "b": {"type": "string", "description": "B"}}, ["a"]),
              {"type": "string"}, {"type": "string", "description": "a patch"}]
    descriptions = ["", "Does it.", "two\nlines", "a\r\nb\n", "<|end|>"]

    def tools():
        out = []
        for space in rng.sample(names, rng.randrange(1, 4)):
            described = rng.choice(descriptions)
            out += [tool(f"f{i}", rng.choice(descriptions), rng.choice(shapes), space, described)
                    for i in range(rng.randrange(1, 4))]
        return out

    for i in range(count):
        messages = [system(**DATE)] if rng.random() < .8 else []
        messages += [developer(rng.choice([None, "Be brief."]), tools()), user("q"), say("analysis", "a")]
        space = rng.choice(names)
        messages.append(msg("assistant", "*** raw\n+text", ch="commentary", to=f"{space}.f0") if rng.random() < .5 else
                        msg("assistant", "{}", ch="commentary", to=f"{space}.f0", ct="<|constrain|>json"))
        messages.append(msg("tool", "r", name=f"{space}.f0", to="assistant", ch="commentary"))
        if rng.random() < .5:
            messages.append(developer(None, tools()))
        yield f"spaces {i}", messages


def random_cases(count):
    rng = random.Random(20251121)
    words = ["the", "sum", "of", "3.5", "is", "café", "東京", "🙂", "\n", "{}", "<|end|>", "maybe", "I'd", "x=1;", "  "]

    def text():
        return " ".join(rng.choice(words) for _ in range(rng.randrange(0, 14)))

    for i in range(count):
        messages = [system(effort=rng.choice(["low", "medium", "high", None]), python=rng.random() < .2,
                           current_date=rng.choice([None, "2025-01-31"]))] if rng.random() < .4 else []
        if rng.random() < .3:
            messages.append(developer(text(), [WEATHER] if rng.random() < .5 else []))
        for _ in range(rng.randrange(1, 4)):
            messages.append(user(text(), name=rng.choice([None, None, "ann"])))
            for _ in range(rng.randrange(0, 3)):
                messages.append(say("analysis", text()))
                if rng.random() < .5:
                    messages += [call("f", '{"a":"' + text() + '"}', ct=rng.choice([None, "json", "<|constrain|>json"])),
                                 reply("f", text())]
            if rng.random() < .7:
                messages.append(say("final", text()))
        yield f"random {i}", messages


# ---- what openai-harmony makes of them ------------------------------------------------------------------------------
def bytes_of(ids):
    return bytes(ENC._inner.decode_bytes(list(ids)))


def pieces_of(ids):
    """Formatting tokens as ids, the text between them as strings."""
    out, run = [], []
    for i in list(ids) + [None]:
        if i is None or i in SPECIAL_IDS:
            if run:
                out.append(bytes_of(run).decode("utf-8"))
            run = []
            if i is not None:
                out.append(i)
        else:
            run.append(i)
    return out


def render_golden(name, messages):
    out = {"name": name, "messages": messages}
    try:
        ids = ENC.render_conversation_for_completion(conversation_of(messages), oh.Role.ASSISTANT)
    except oh.HarmonyError as error:
        return out | {"error": str(error)}
    return out | {"ids": ids, "pieces": pieces_of(ids)}


def parse_golden(name, role, ids, **extra):
    """Parses token by token. steps: per token [state after it, delta]; E expects a start, H header, C content."""
    parser = oh.StreamableParser(ENC, None if role is None else oh.Role(role))
    steps = []
    out = {"name": name, "role": role, "ids": list(ids)} | extra
    try:
        for i in ids:
            parser.process(i)
            steps.append([parser.state.value[0] if parser.state.value != "ExpectStart" else "E", parser.last_content_delta])
        parser.process_eos()
    except oh.HarmonyError as error:
        return out | {"error": str(error)}
    out["steps"] = steps
    out["messages"] = [{"role": m.author.role.value, "name": m.author.name, "recipient": m.recipient,
                        "channel": m.channel, "content_type": m.content_type,
                        "text": "".join(c.text for c in m.content)} for m in parser.messages]
    return out


def encode_marked(text):
    return ENC.encode(text, allowed_special="all")


def completion_texts():
    a, f, c = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|channel|>commentary"
    s = "<|end|><|start|>assistant"
    yield "final only", f + "Hello.<|return|>"
    yield "analysis and final", a + "Think.\nThink more." + s + f + "2 + 2 = 4.<|return|>"
    yield "unfinished", a + "Thinking about"
    yield "unfinished final", a + "x" + s + f + "So"
    yield "call after the channel", a + "x" + s + c + " to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>"
    yield "call, constrain adjacent", c + " to=functions.get_weather<|constrain|>json<|message|>{\"a\": 48.85}<|call|>"
    yield "call in the role part", " to=functions.f" + c + " <|constrain|>json<|message|>{}<|call|>"
    yield "call in the role part, adjacent", " to=functions.f" + c + "<|constrain|>json<|message|>{}<|call|>"
    yield "call as the HF template writes it", " to=functions.f" + c + " json<|message|>{\"x\":\"y\"}<|call|>"
    yield "call without a type", c + " to=functions.f<|message|>{}<|call|>"
    yield "built-in call", "<|channel|>analysis to=browser.search code<|message|>{\"query\": \"x\"}<|call|>"
    yield "python call", "<|channel|>analysis to=python code<|message|>print('é')\n<|call|>"
    yield "call ended by end", c + " to=functions.f json<|message|>{}<|end|>"
    yield "preamble and call", (c + "<|message|>**Plan**\n1. go<|end|><|start|>assistant" + c +
                                " to=functions.f<|constrain|>json<|message|>{}<|call|>")
    yield "two calls", (c + " to=functions.f json<|message|>{}<|call|><|start|>assistant" + c +
                        " to=functions.g json<|message|>[]<|call|>")
    yield "empty content", a + s + f + "<|return|>"
    yield "published stream", (a + "User asks who the president is. Let's browse to confirm." + s + c +
                               " to=browser.search code<|message|>{\"query\": \"president\", \"topn\": 10}<|call|>"
                               "<|start|>browser.search to=assistant<|channel|>commentary<|message|>{\"result\": 1}<|end|>")
    for i, text in enumerate(("🙂🚀💖", "👩‍🔬👨‍👩‍👧‍👦", "東京は晴れ。", "𝔸𝕓𒀀", "a\u0301é", "שלום", "\n\n", " ", "<|x|>", "ﷺ 🇩🇪")):
        yield f"unicode {i}", a + text + s + f + text * 2 + "<|return|>"


def header_streams():
    """Every place of the recipient, every form of the type, every channel, every end."""
    for end in ("<|end|>", "<|return|>", "<|call|>"):
        for channel in ("analysis", "commentary", "final"):
            out, to = [], " to=functions.get_x"
            for ct in ("", " json", " code", " <|constrain|>json", "<|constrain|>json"):
                out.append(f"<|start|>assistant{to}<|channel|>{channel}{ct}<|message|>a b{end}")
                out.append(f"<|start|>assistant<|channel|>{channel}{to}{ct}<|message|>é🙂{end}")
                out.append(f"<|start|>functions.get_x to=assistant<|channel|>{channel}{ct}<|message|>{{}}\n{end}")
            out.append(f"<|start|>assistant<|channel|>{channel}<|message|>{end}")
            out.append(f"<|start|>user<|channel|>{channel}<|message|>x{end}")
            yield f"headers, {channel}, {end}", "".join(out)


def byte_tokens():
    """Token of each single byte."""
    table = {}
    for i in range(256):
        table[bytes_of([i])[0]] = i
    return table


def parse_cases(render):
    for name, text in completion_texts():
        yield parse_golden(name, "assistant", encode_marked(text))
    single = byte_tokens()
    for name, text in completion_texts():  # every byte its own token
        ids = []
        for i in encode_marked(text):
            ids += [i] if i in SPECIAL_IDS else [single[b] for b in bytes_of([i])]
        yield parse_golden(f"{name}, byte by byte", "assistant", ids)
    history = ("<|start|>system<|message|>You are x.<|end|><|start|>developer<|message|># Instructions\n\nx<|end|>"
               "<|start|>user<|message|>q<|end|><|start|>functions.f to=assistant<|channel|>commentary<|message|>r<|end|>")
    yield parse_golden("history", None, encode_marked(history))
    yield parse_golden("a tool without a name", None,
                       encode_marked("<|start|>tool<|channel|>commentary<|message|>r<|end|>"))
    for name, text in header_streams():
        yield parse_golden(name, None, encode_marked(text))
    for golden in render:  # what was rendered, parsed back
        if "error" in golden or any("name" in m and m["role"] != "tool" for m in golden["messages"]):
            continue
        if not golden["name"].startswith(("order", "text", "random", "built-in", "several", "preamble", "keeps")):
            continue
        everything = oh.RenderConversationConfig(auto_drop_analysis=False)
        ids = ENC.render_conversation_for_training(conversation_of(golden["messages"]), everything)
        yield parse_golden(f"rendered: {golden['name']}", None, ids)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/data/harmony_goldens.json"
    args.add_argument("--out", type=pathlib.Path, default=default)
    args.add_argument("--spaces", type=int, default=60, help="conversations with tools of several namespaces")
    args = args.parse_args()
    out = args.out
    cases = [*published_cases(), *analysis_cases(), *text_cases(), *header_cases(), *system_cases(), *schema_cases(),
             *random_cases(40)]
    render = [render_golden(name, messages) for name, messages in cases]
    parse = list(parse_cases(render))
    render += [render_golden(name, messages) for name, messages in space_cases(args.spaces)]
    ids = sorted({i for g in parse for i in g["ids"]} - SPECIAL_IDS)
    document = {
        "provenance": {"command": "TIKTOKEN_ENCODINGS_BASE=tests/data python tools/make_harmony_goldens.py",
                       "openai-harmony": importlib.metadata.version("openai-harmony"),
                       "python": platform.python_version()},
        "specials": SPECIALS,
        "bytes_of_tokens": {str(i): bytes_of([i]).hex() for i in ids},
        "render": render,
        "parse": parse,
    }
    lines = ["{"]
    for key, value in document.items():
        end = "" if key == "parse" else ","
        if isinstance(value, list):
            body = ",\n".join(json.dumps(v, separators=(",", ":")) for v in value)
            lines.append(f'"{key}":[\n{body}\n]{end}')
        else:
            lines.append(f'"{key}":{json.dumps(value, separators=(",", ":"))}{end}')
    out.write_text("\n".join(lines + ["}"]) + "\n")
    errors = [g["name"] for g in render + parse if "error" in g]
    print(f"{len(render)} rendered, {len(parse)} parsed, {out.stat().st_size} bytes; refused by openai-harmony: {errors}")


if __name__ == "__main__":
    main()
