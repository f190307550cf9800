"""Synthetic Harmony conversations for nibble-tiny.

Each sample is (history, target): the history is rendered as openai-harmony renders a prompt for completion, the target is what the
assistant should write after it. Tool names, argument names and values are varied so that a model has to copy them from the prompt.
"""
import datetime
import json
import re

from tiny_facts import (ANIMALS, BOYS, CITIES, COLORS, COUNTRIES, FACTS, FOODS, GIRLS, HELD_OUT_CITIES, JOBS, SURNAMES, THINGS)

from openai_harmony import (Author, Conversation, DeveloperContent, HarmonyEncodingName, Message, ReasoningEffort, Role, SystemContent,
                            ToolDescription, load_harmony_encoding)

EFFORTS = {"low": ReasoningEffort.LOW, "medium": ReasoningEffort.MEDIUM, "high": ReasoningEffort.HIGH}
START = "<|start|>assistant"


class Renderer:
    def __init__(self):
        self.enc = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)

    def text(self, history, target):
        """Prompt text (ending in the generation prompt) and the text the assistant answers with."""
        prompt = self.enc.decode_utf8(self.enc.render_conversation_for_completion(Conversation.from_messages(history), Role.ASSISTANT))
        answer = "".join(self.enc.decode_utf8(self.enc.render(m)) for m in target)
        assert prompt.endswith(START) and answer.startswith(START)
        if answer.endswith("<|end|>"):  # the last final of a training rendering ends in <|return|>
            answer = answer[:-len("<|end|>")] + "<|return|>"
        return prompt, answer[len(START):]


def user(text):
    return Message.from_role_and_content(Role.USER, text)


def analysis(text):
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel("analysis")


def final(text):
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel("final")


def call(name, args):
    return (Message.from_role_and_content(Role.ASSISTANT, json.dumps(args, ensure_ascii=False)).with_channel("commentary")
            .with_recipient(f"functions.{name}").with_content_type("<|constrain|>json"))


def tool_result(name, text):
    return Message.from_author_and_content(Author.new(Role.TOOL, f"functions.{name}"), text).with_channel("commentary").with_recipient("assistant")


def system(rng, effort):
    day = datetime.date(2024, 1, 1) + datetime.timedelta(days=rng.randrange(5 * 365))
    content = SystemContent.new().with_reasoning_effort(EFFORTS[effort])
    if rng.random() < 0.9:
        content = content.with_conversation_start_date(day.isoformat())
    return Message.from_role_and_content(Role.SYSTEM, content)


def developer(instructions, tools):
    content = DeveloperContent.new()
    if instructions:
        content = content.with_instructions(instructions)
    if tools:
        content = content.with_function_tools([ToolDescription.new(t["name"], t["description"], parameters=t["parameters"]) for t in tools])
    return Message.from_role_and_content(Role.DEVELOPER, content)


def think(rng, effort, short, more):
    """Reasoning whose length follows the effort: low none or a little, high adds sentences."""
    if effort == "low":
        return [] if rng.random() < 0.6 else [analysis(short)]
    if effort == "medium":
        return [analysis(short)]
    return [analysis(" ".join([short, *more]))]


def cap(text):
    return text[0].upper() + text[1:]


def a(noun):
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


ONSETS = "b c d f g h j k l m n p r s t v w y z br bl ch cl cr dr fl fr gd gl gr kh kl kn kr kw ll mb nd ng pl pr ps qu sc sh sk sl sm sn sp st str sv sz th tr ts tw vl wh wr x zh zn".split() + [""] * 4
VOWELS = "a a a e e e i i o o u y aa ae ai au ea ee ei eo ia ie io oa oo ou ua ui".split()
CODAS = [""] * 12 + "b ck d f g k l ll m n n n nd ng nk p r r rd rg rk rm rn rt s s sh sk ss st t t th tz v x z ms lm lt mp".split()
ENDS = [""] * 12 + "borough ton ville mark grad stad field ford mouth port ia ona burg by dale wick haven sk mere rup land".split()


def made_up_name(rng):
    """A name nobody has seen: syllables, a real name with letters changed, or two real names joined."""
    roll = rng.random()
    if roll < 0.5:
        name = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.choice([1, 2, 2, 2, 3, 3, 4]))) + rng.choice(ENDS)
    else:
        real = rng.choice(rng.choice([CITIES, GIRLS + BOYS + SURNAMES, [c[1] for c in COUNTRIES], [c[0].replace("the ", "") for c in COUNTRIES]])).split()[0]
        if roll < 0.75:
            name = list(real)
            for _ in range(rng.choice([1, 1, 2, 3])):
                at = rng.randrange(len(name))
                name[at:at + rng.choice([0, 1, 1])] = rng.choice("abcdefghijklmnoprstuvwyz")
            name = "".join(name)
        else:
            other = rng.choice(CITIES + [c[1] for c in COUNTRIES] + SURNAMES).split()[-1]
            name = real[:rng.randrange(1, len(real) + 1)] + other[rng.randrange(len(other)):]
    name = re.sub("[^a-z]", "", name.lower())
    return cap(name) if 2 <= len(name) <= 14 and cap(name) not in HELD_OUT_CITIES else made_up_name(rng)


def place(rng):
    roll = rng.random()
    if roll < 0.2:
        return rng.choice(COUNTRIES)[1]
    if roll < 0.42:
        return rng.choice(CITIES)
    if roll < 0.47:
        return f"{rng.choice(CITIES)}, {rng.choice(COUNTRIES)[0].replace('the ', '')}"
    if roll < 0.55:
        return f"{rng.choice(['New', 'Port', 'Saint', 'North', 'East', 'Old', 'Lake', 'Fort'])} {made_up_name(rng)}"
    return made_up_name(rng)


def person(rng):
    first = rng.choice(GIRLS + BOYS) if rng.random() < 0.8 else made_up_name(rng)
    return first if rng.random() < 0.6 else f"{first} {rng.choice(SURNAMES)}"


def say(rng, question):
    """A question as different people type it."""
    roll = rng.random()
    if roll < 0.62:
        return question
    if roll < 0.70:
        return question.rstrip("?.")
    if roll < 0.78:
        return question[0].lower() + question[1:]
    if roll < 0.90:
        lead = rng.choice(["Please tell me:", "Hi!", "Hello,", "Quick question:", "I have a question.", "Hey,", "Tell me,"])
        return f"{lead} {question if lead[-1] in '!:.' else question[0].lower() + question[1:]}"
    return question + rng.choice([" Thanks!", " Please be brief.", " Answer briefly.", " Thank you."])


# ---- plain answers: each returns (question, analysis, more analysis, answer, short answer) ------------------------------------

def capital_question(rng):
    country, city, _, _ = rng.choice(COUNTRIES)
    question = rng.choice(
        ["What is the capital of {c}?"] * 6 + ["What's the capital of {c}?", "What is the capital city of {c}?", "Which city is the capital of {c}?",
         "Can you tell me the capital of {c}?", "Tell me the capital of {c}.", "Name the capital of {c}.", "The capital of {c} is?",
         "Do you know the capital of {c}?", "I need to know the capital of {c}.", "What city is the capital of {c}?"]).format(c=country)
    answer = rng.choice(["The capital of {c} is {a}."] * 6 + ["{a} is the capital of {c}."]).format(c=country, a=city)
    short = rng.choice(["The user asks for the capital of {c}. It is {a}.", "The capital of {c} is {a}.", "Capital of {c}: {a}."]).format(c=country, a=city)
    return question, short, [f"{cap(country)} is a country and its capital city is {city}.", "The answer should be short and clear.", f"So I will answer {city}."], answer, city


def country_question(rng):
    country, city, continent, language = rng.choice(COUNTRIES)
    kind = rng.choice(["reverse", "continent", "language"])
    if kind == "language" and not language:
        kind = "continent"
    if kind == "reverse":
        return (rng.choice(["{a} is the capital of which country?", "Which country has {a} as its capital?", "Of which country is {a} the capital?"]).format(a=city),
                f"{city} is the capital of {country}.", [f"The country is {country}.", "I can answer directly."], f"{city} is the capital of {country}.", cap(country))
    if kind == "continent":
        return (rng.choice(["On which continent is {c}?", "Which continent is {c} in?", "What continent is {c} on?", "Where is {c}?"]).format(c=country),
                f"{cap(country)} is in {continent}.", [f"The continent is {continent}.", "I can answer directly."], f"{cap(country)} is in {continent}.", continent)
    return (rng.choice(["What language is spoken in {c}?", "Which language do people speak in {c}?", "What do people speak in {c}?"]).format(c=country),
            f"People in {country} speak {language}.", [f"The language is {language}.", "I can answer directly."], f"People in {country} speak {language}.", language)


def fact_question(rng):
    question, answer, short = rng.choice(FACTS)
    return question, rng.choice([answer, f"The user asks a simple question. {answer}"]), [f"The answer is {short}.", "I am sure about this."], answer, short


def sum_question(rng):
    kind = rng.choice("+++---*")
    if kind == "+":
        top = rng.choice([10, 20, 100, 100, 100])
        a, b = rng.randrange(top), rng.randrange(top)
    elif kind == "-":
        a = rng.randrange(rng.choice([20, 100, 100]))
        b = rng.randrange(a + 1)
    else:
        a, b = rng.randrange(13), rng.randrange(13)
    result = {"+": a + b, "-": a - b, "*": a * b}[kind]
    word = {"+": "plus", "-": "minus", "*": "times"}[kind]
    forms = ["What is {a} {k} {b}?"] * 5 + ["What is {a} {w} {b}?"] * 3 + ["{a} {k} {b}", "{a} {k} {b} = ?", "How much is {a} {k} {b}?", "Calculate {a} {k} {b}.",
             "Compute {a} {k} {b}.", "What's {a} {k} {b}?", "Can you work out {a} {w} {b}?", "{a}{k}{b}=?", "What is {a}{k}{b}?", "How much is {a} {w} {b}?"]
    if kind == "+":
        forms += ["Add {a} and {b}.", "What is the sum of {a} and {b}?"]
    if kind == "-":
        forms += ["Subtract {b} from {a}."]
    question = rng.choice(forms).format(a=a, b=b, k=kind, w=word)
    line = f"{a} {kind} {b} = {result}"
    answer = rng.choice([f"{line}.", f"{line}.", f"{line}.", f"{a} {word} {b} is {result}.", f"The answer is {result}."])
    return question, f"{line}.", [f"So {a} {word} {b} is {result}.", f"The answer is {result}."], answer, str(result)


def word_problem(rng):
    name, thing = rng.choice(GIRLS + BOYS), rng.choice(FOODS + [t + "s" for t in THINGS])
    a, b = rng.randrange(1, 40), rng.randrange(1, 40)
    if rng.random() < 0.5:
        question = f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?"
        line, result = f"{a} + {b} = {a + b}", a + b
    else:
        a, b = max(a, b), min(a, b)
        question = f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?"
        line, result = f"{a} - {b} = {a - b}", a - b
    return question, f"{line}.", [f"{name} has {result} {thing}."], f"{name} has {result} {thing}.", str(result)


def smalltalk(rng):
    question, answer = rng.choice([
        ("Hello!", "Hello! How can I help you today?"), ("Hi", "Hi! How can I help you today?"), ("Hello", "Hello! How can I help you today?"),
        ("Hey there!", "Hey! What can I do for you?"), ("Good morning!", "Good morning! How can I help you today?"),
        ("Good evening.", "Good evening! What can I do for you?"), ("How are you?", "I am doing well, thank you! How can I help you?"),
        ("How are you today?", "I am doing well, thank you! How can I help you?"), ("Hi, how are you?", "I am doing well, thank you! How can I help you?"),
        ("Who are you?", "I am nibble-tiny, a very small language model. I can answer simple questions, use tools and tell short stories."),
        ("What are you?", "I am nibble-tiny, a very small language model. I can answer simple questions, use tools and tell short stories."),
        ("What is your name?", "My name is nibble-tiny. I am a very small language model."),
        ("Tell me about yourself.", "I am nibble-tiny, a very small language model. I can answer simple questions, use tools and tell short stories."),
        ("What can you do?", "I can answer simple questions, do small sums, use tools, write JSON and tell short stories."),
        ("Can you help me?", "Of course! What do you need help with?"), ("I need help.", "Of course! What do you need help with?"),
        ("Thank you!", "You are welcome! Is there anything else I can help with?"), ("Thanks", "You are welcome!"),
        ("Goodbye!", "Goodbye! Have a nice day!"), ("Bye", "Goodbye! Have a nice day!"), ("Say hello.", "Hello!"), ("Say hi", "Hi!"),
        ("Tell me a joke.", "Why did the chicken cross the road? To get to the other side!"), ("Are you a robot?", "I am a small language model, so I am a computer program."),
        ("Count to five.", "One, two, three, four, five."), ("Count from 1 to 10.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
        ("Name the days of the week.", "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
        ("List the four seasons.", "The four seasons are spring, summer, autumn and winter."),
        ("Name three colors.", "Three colors are red, green and blue."), ("Name three animals.", "Three animals are a dog, a cat and a horse."),
        ("Write one sentence about the sea.", "The sea is wide and blue, and the waves never stop."),
        ("Write one sentence about a dog.", "The happy dog ran across the green field to meet his friend."),
        ("Write a short poem.", "The sun is warm, the sky is blue,\nThe birds are singing just for you.\nThe day is long, the world is wide,\nCome take a walk with me outside."),
        ("Why is the sky blue?", "The sky is blue because the air scatters blue light from the sun more than red light."),
        ("What is the meaning of life?", "Many people say that the meaning of life is to love, to learn and to help others."),
        ("What is an LLM?", "An LLM is a large language model, a computer program that has learned to read and write text."),
        ("What is a GPU?", "A GPU is a chip that can do many small calculations at the same time."),
    ])
    return question, rng.choice(["The user wants a simple reply.", "I can answer this directly.", "A short friendly answer is fine."]), ["I will keep it short and kind."], answer, answer


def echo_question(rng):
    words = rng.sample(COLORS + ANIMALS + FOODS + THINGS, rng.randrange(1, 5))
    text = rng.choice([" ".join(words), ", ".join(words), made_up_name(rng), " ".join(made_up_name(rng) for _ in range(rng.randrange(2, 5))), f"{person(rng)} lives in {place(rng)}."])
    question = rng.choice(["Repeat after me: {t}", "Say exactly this: {t}", "Repeat this: {t}", "Please repeat: {t}"]).format(t=text)
    return question, "The user wants me to repeat the text.", [f"The text is: {text}"], text, text


def recall_question(rng):
    """Reading comprehension over a line or two: teaches copying from the prompt."""
    name, city, job, animal, color, age = person(rng), place(rng), rng.choice(JOBS), rng.choice(ANIMALS), rng.choice(COLORS), rng.randrange(5, 90)
    facts = [(f"{name} lives in {city}.", f"Where does {name} live?", f"{name} lives in {city}.", city),
             (f"{name} works as {a(job)}.", f"What is the job of {name}?", f"{name} works as {a(job)}.", job),
             (f"{name} has {a(color)} {animal}.", f"What animal does {name} have?", f"{name} has {a(color)} {animal}.", animal),
             (f"{name} is {age} years old.", f"How old is {name}?", f"{name} is {age} years old.", str(age))]
    rng.shuffle(facts)
    facts = facts[:rng.randrange(2, 5)]
    _, question, answer, short = rng.choice(facts)
    context = " ".join(f[0] for f in facts)
    text = f"{context} {question}" if rng.random() < 0.7 else f"{question}\n\n{context}"
    return text, f"The text says: {answer}", ["I can answer from the text."], answer, short


PLAIN = [(capital_question, 26), (country_question, 7), (fact_question, 16), (sum_question, 24), (word_problem, 5), (smalltalk, 9), (echo_question, 5), (recall_question, 8)]


def plain(rng):
    return rng.choices([p[0] for p in PLAIN], [p[1] for p in PLAIN])[0](rng)


INSTRUCTIONS = ["You are a helpful assistant.", "You are a helpful assistant.", "Answer the user's question.", "Be brief.", "You are a friendly assistant. Keep answers short.",
                "Always be polite and clear.", "Answer in English.", "You are a helpful assistant that gives short answers.", "Help the user.", "Respond concisely."]


# ---- tools ---------------------------------------------------------------------------------------------------------------------

def string(description=None, **more):
    return {"type": "string", **({"description": description} if description else {}), **more}


def tool(name, description, properties, required):
    return {"name": name, "description": description, "parameters": {"type": "object", "properties": properties, "required": required}}


def weather_tool(rng, make_case):
    name = rng.choice(["get_weather", "get_weather", "get_weather", "get_current_weather", "weather", "fetch_weather", "weather_lookup", "current_weather", "getWeather", "check_weather"])
    arg = rng.choice(["city", "city", "city", "location", "location", "location", "place", "town", "city_name", "where"])
    description = rng.choice(["Get the weather for a city.", "Gets the current weather in the provided location.", "Get current weather", "Returns the weather of a place.",
                              "Get the current weather in a given location", "Looks up today's weather.", "Get weather for a location", "Current weather by city."])
    properties = {arg: string(rng.choice([None, "City name", "The city", "The city and state, e.g. San Francisco, CA", "The name of the place.", "City and country e.g. Bogota, Colombia"]))}
    required, unit_arg = [arg], None
    roll = rng.random()
    if roll < 0.35:
        unit_arg = rng.choice(["unit", "units", "format"])
        properties[unit_arg] = string(enum=["celsius", "fahrenheit"], **({"default": "celsius"} if rng.random() < 0.5 else {}))
    spec = tool(name, description, properties, required)
    if not make_case:
        return spec
    city = place(rng)
    args = {arg: city}
    question = rng.choice(["What is the weather in {c}?"] * 4 + ["What's the weather in {c}?", "What's the weather like in {c}?", "What is the weather like in {c} today?", "How is the weather in {c}?",
                           "Tell me the weather in {c}.", "Is it raining in {c}?", "How warm is it in {c}?", "Weather in {c}?", "Can you check the weather in {c}?",
                           "What is the current weather in {c}?", "Do I need an umbrella in {c}?", "I am going to {c}. What is the weather there?",
                           "What's the weather in {c} right now?", "What is the temperature in {c}?", "Please get the weather for {c}."]).format(c=city)
    if unit_arg and rng.random() < 0.4:
        unit = rng.choice(["celsius", "fahrenheit"])
        question = question.rstrip("?.") + f" in {unit}" + question[-1]
        args[unit_arg] = unit
    degrees, sky = rng.randrange(-10, 40), rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "partly cloudy", "light rain", "stormy"])
    result, answer = rng.choice([
        (json.dumps({"temperature": degrees, "condition": sky}), f"The weather in {city} is {sky} with a temperature of {degrees} degrees."),
        (json.dumps({"temperature": degrees, "unit": "celsius", "description": sky}), f"The weather in {city} is {sky} with a temperature of {degrees} degrees celsius."),
        (json.dumps({"temp_c": degrees, "sky": sky}), f"The weather in {city} is {sky} with a temperature of {degrees}°C."),
        (json.dumps({arg: city, "temperature": f"{degrees}°C", "weather": sky}, ensure_ascii=False), f"The weather in {city} is {sky} with a temperature of {degrees}°C."),
        (f"{cap(sky)}, {degrees}°C", f"The weather in {city} is {sky} with a temperature of {degrees}°C."),
        (f"{degrees} degrees and {sky}", f"It is {degrees} degrees and {sky} in {city}."),
        (json.dumps({"forecast": sky}), f"The weather in {city} is {sky}."),
        (json.dumps({"temperature": degrees}), f"The temperature in {city} is {degrees} degrees."),
        (json.dumps({"conditions": sky, "temperature": degrees}), f"The weather in {city} is {sky} with a temperature of {degrees} degrees."),
    ])
    return spec, question, args, result, answer


def time_tool(rng, make_case):
    name, arg = rng.choice(["get_time", "current_time", "get_local_time", "time_in", "get_current_time", "clock"]), rng.choice(["city", "location", "place", "timezone"])
    spec = tool(name, rng.choice(["Get the current time in a city.", "Returns the local time.", "Current time at a place.", "Get the time"]), {arg: string(rng.choice([None, "The city", "Where"]))}, [arg])
    if not make_case:
        return spec
    city, now = place(rng), f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
    question = rng.choice(["What time is it in {c}?"] * 3 + ["What is the time in {c}?", "Tell me the time in {c}.", "What is the current time in {c}?", "How late is it in {c}?", "Time in {c}?"]).format(c=city)
    result = rng.choice([json.dumps({"time": now}), now, json.dumps({arg: city, "time": now}, ensure_ascii=False), json.dumps({"local_time": now})])
    return spec, question, {arg: city}, result, f"It is {now} in {city}."


def calculator_tool(rng, make_case):
    name = rng.choice(["calculator", "calculate", "evaluate", "math", "compute", "calc"])
    if rng.random() < 0.6:
        arg = rng.choice(["expression", "expr", "input", "formula"])
        spec = tool(name, rng.choice(["Evaluate a math expression.", "A simple calculator.", "Computes arithmetic.", "Calculates the result."]), {arg: string(rng.choice([None, "The expression"]))}, [arg])
        pair = None
    else:
        pair = rng.choice([("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")])
        name = rng.choice(["multiply", "add", "subtract", "add_numbers", "product", "sum"])
        verb = {"multiply": "Multiply", "product": "Multiply", "subtract": "Subtract"}.get(name, "Add")
        spec = tool(name, f"{verb} two numbers.", {p: {"type": rng.choice(["number", "integer"])} for p in pair}, list(pair))
    if not make_case:
        return spec
    a, b = rng.randrange(1000 if rng.random() < 0.5 else 100), rng.randrange(1000 if rng.random() < 0.5 else 100)
    sign = rng.choice("+-*") if not pair else {"multiply": "*", "product": "*", "subtract": "-"}.get(name, "+")
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    result = str({"+": a + b, "-": a - b, "*": a * b}[sign])
    question = rng.choice([f"What is {a} {sign} {b}?", f"What is {a} {word} {b}?", f"Calculate {a} {sign} {b}.", f"Use the tool to work out {a} {sign} {b}.", f"How much is {a} {sign} {b}?"])
    args = {pair[0]: a, pair[1]: b} if pair else {arg: f"{a} {sign} {b}"}
    return spec, question, args, rng.choice([result, json.dumps({"result": int(result)})]), f"{a} {sign} {b} = {result}."


def search_tool(rng, make_case):
    name, arg = rng.choice(["search", "web_search", "lookup", "find", "search_web", "google", "search_documents"]), rng.choice(["query", "query", "q", "text", "search_term", "keywords"])
    spec = tool(name, rng.choice(["Search the web.", "Searches for information.", "Find pages about a topic.", "Look something up."]), {arg: string(rng.choice([None, "The search query"]))}, [arg])
    if not make_case:
        return spec
    topic = rng.choice([f"{rng.choice(['the history of', 'hotels in', 'restaurants in', 'news from', 'flights to', 'museums in', 'the population of', 'trains to'])} {place(rng)}",
                        f"{rng.choice(COLORS)} {rng.choice(THINGS)}s", f"books by {person(rng)}", f"recipes with {rng.choice(FOODS)}", f"how to draw a {rng.choice(ANIMALS)}", person(rng)])
    question = rng.choice(["Search for {t}.", "Search the web for {t}.", "Look up {t}.", "Find information about {t}.", "Can you search for {t}?", "Please look up {t}."]).format(t=topic)
    found = rng.choice([f"{rng.randrange(2, 90)} pages found", f"{cap(topic)}: see the first page.", "No results."])
    return spec, question, {arg: topic}, rng.choice([found, json.dumps({"results": found}, ensure_ascii=False)]), f"I searched for {topic}. The result is: {found}"


def message_tool(rng, make_case):
    name = rng.choice(["send_message", "send_email", "send_sms", "email", "text_person"])
    to, body = rng.choice(["to", "recipient", "name", "person"]), rng.choice(["text", "body", "message", "content"])
    properties = [(to, string(rng.choice([None, "Who gets it"]))), (body, string(rng.choice([None, "What to say"])))]
    spec = tool(name, rng.choice(["Send a message to somebody.", "Sends a text.", "Send an email to a person."]), dict(properties), [to, body])
    if not make_case:
        return spec
    who, what = person(rng), rng.choice(["hello", "I am late", "see you tomorrow", "happy birthday", "dinner is ready", "call me back", "good night", f"I am in {place(rng)}",
                                         f"bring the {rng.choice(THINGS)}", f"buy {rng.choice(FOODS)}", f"the meeting is at {rng.randrange(1, 12)}"])
    question = rng.choice(["Send a message to {w} saying {t}.", "Tell {w}: {t}.", "Write to {w} that {t}.", "Send {w} the message: {t}."]).format(w=who, t=what)
    return spec, question, {to: who, body: what}, rng.choice(["ok", "sent", json.dumps({"status": "sent"})]), f"I sent your message to {who}."


def timer_tool(rng, make_case):
    name, arg = rng.choice(["set_timer", "start_timer", "timer", "set_alarm"]), rng.choice(["minutes", "duration", "duration_minutes", "time_in_minutes"])
    spec = tool(name, rng.choice(["Set a timer.", "Starts a timer for some minutes."]), {arg: {"type": rng.choice(["integer", "number"])}}, [arg])
    if not make_case:
        return spec
    n = rng.randrange(2, 100)
    question = rng.choice([f"Set a timer for {n} minutes.", f"Start a timer of {n} minutes.", f"Wake me in {n} minutes.", f"Remind me in {n} minutes."])
    return spec, question, {arg: n}, rng.choice(["ok", json.dumps({"status": "started"}), "done"]), f"The timer is set for {n} minutes."


def translate_tool(rng, make_case):
    name = rng.choice(["translate", "translate_text", "translator"])
    a, b = rng.choice([("text", "language"), ("text", "target"), ("phrase", "to"), ("input", "target_language")])
    spec = tool(name, rng.choice(["Translate text.", "Translates a text to another language."]), {a: string(), b: string()}, [a, b])
    if not make_case:
        return spec
    what = rng.choice(["good morning", "thank you", "hello", "I love you", f"the {rng.choice(COLORS)} {rng.choice(THINGS)}", f"my {rng.choice(ANIMALS)} is happy", f"where is the {rng.choice(THINGS)}"])
    language = rng.choice(["French", "German", "Spanish", "Italian", "Dutch", "Polish", "Swedish", "Turkish", "Japanese", "Arabic"])
    question = rng.choice([f"Translate '{what}' to {language}.", f"How do you say '{what}' in {language}?", f"Translate \"{what}\" into {language}."])
    result = made_up_name(rng).lower()
    return spec, question, {a: what, b: language}, rng.choice([result, json.dumps({"translation": result})]), f"In {language} it is: {result}"


def switch_tool(rng, make_case):
    name, a, b = rng.choice(["switch_light", "set_light", "control_light", "light"]), rng.choice(["room", "where", "location"]), rng.choice(["state", "action", "mode"])
    spec = tool(name, rng.choice(["Turn a light on or off.", "Controls the lights."]), {a: string(), b: string(enum=["on", "off"])}, [a, b])
    if not make_case:
        return spec
    room, state = rng.choice(["kitchen", "bedroom", "garden", "garage", "hall", "office", "bathroom", "cellar", "attic", "living room"]), rng.choice(["on", "off"])
    question = rng.choice([f"Turn {state} the light in the {room}.", f"Switch the {room} light {state}.", f"Turn the {room} light {state}, please."])
    return spec, question, {a: room, b: state}, rng.choice(["ok", "done"]), f"The light in the {room} is {state}."


def lookup_tool(rng, make_case):
    """A tool nobody has seen before: only its definition and the question say what to write."""
    verb = rng.choice(["get", "check", "find", "fetch", "read", "show", "look_up", "query"])
    noun = rng.choice("price status height age population address phone_number schedule menu score owner weight color humidity traffic air_quality sunrise tide stock balance rating speed distance email "
                      "size length job birthday team forecast delay title author year budget".split())
    arg, value = rng.choice([("city", place), ("person", person), ("name", person), ("product", lambda r: f"{r.choice(COLORS)} {r.choice(THINGS)}"), ("station", place), ("company", lambda r: made_up_name(r)),
                             ("book", lambda r: f"The {cap(r.choice(COLORS))} {cap(r.choice(THINGS))}"), ("user_id", lambda r: r.randrange(1, 10000)), ("order", lambda r: r.randrange(1, 1000)),
                             ("animal", lambda r: r.choice(ANIMALS)), ("item", lambda r: r.choice(THINGS)), ("country", lambda r: r.choice(COUNTRIES)[0].replace("the ", "")), ("mountain", lambda r: "Mount " + made_up_name(r))])
    words = noun.replace("_", " ")
    name = rng.choice([f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_lookup", f"{arg}_{noun}", f"{verb}_{arg}_{noun}"])
    value = value(rng)
    key = rng.choice([arg, arg, "id" if isinstance(value, int) else "name", "input", "value", f"{arg}_name" if not isinstance(value, int) else f"{arg}_number"])
    spec = tool(name, rng.choice([f"{cap(verb.replace('_', ' '))} the {words} of a {arg.replace('_', ' ')}.", f"Returns the {words}.", f"{cap(words)} of a {arg.replace('_', ' ')}"]),
                {key: {"type": "integer" if isinstance(value, int) else "string"}}, [key])
    if not make_case:
        return spec
    thing = f"{arg.replace('_id', '')} {value}" if isinstance(value, int) else str(value)
    question = rng.choice(["What is the {n} of {v}?", "Can you {b} the {n} of {v}?", "Tell me the {n} of {v}.", "I want to know the {n} of {v}.", "{n} of {v}?"]).format(n=words, v=thing, b=verb.replace("_", " "))
    result = rng.choice([str(rng.randrange(1000)), made_up_name(rng).lower(), rng.choice(COLORS), f"{rng.randrange(1, 99)}.{rng.randrange(10)}"])
    return spec, cap(question), {key: value}, rng.choice([result, json.dumps({noun: result}), json.dumps({"result": result})]), f"The {words} of {thing} is {result}."


TOOLS = [(weather_tool, 34), (time_tool, 11), (calculator_tool, 9), (search_tool, 9), (message_tool, 6), (timer_tool, 4), (translate_tool, 4), (switch_tool, 4), (lookup_tool, 22)]


def pick_tool(rng):
    return rng.choices([t[0] for t in TOOLS], [t[1] for t in TOOLS])[0]


def tool_thoughts(rng, effort, spec, args):
    listed = ", ".join(f"{k} {v}" for k, v in args.items())
    short = rng.choice([f"We need to call {spec['name']} with {listed}.", f"I should call {spec['name']} with {listed}.", f"Use {spec['name']}: {listed}."])
    return think(rng, effort, short, [f"The tool {spec['name']} can answer this.", f"The arguments are {json.dumps(args, ensure_ascii=False)}."])


def tool_conversation(rng, effort):
    maker = pick_tool(rng)
    spec, question, args, result, answer = maker(rng, True)
    tools = [spec]
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3])):
        other = pick_tool(rng)
        if other is not maker or maker is lookup_tool:
            extra = other(rng, False) if other is not lookup_tool else other(rng, True)[0]
            if extra["name"] not in [t["name"] for t in tools]:
                tools.append(extra)
    rng.shuffle(tools)
    head = [system(rng, effort), developer(rng.choice([None, None, None, *INSTRUCTIONS]), tools)]
    roll = rng.random()
    if roll < 0.15:  # a question that needs none of the tools
        if maker is calculator_tool:
            question, short, more, answer, _ = capital_question(rng)
        else:
            question, short, more, answer, _ = plain(rng)
        return head + [user(say(rng, question))], think(rng, effort, short + " No tool is needed.", more) + [final(answer)]
    if rng.random() < 0.12:  # an earlier exchange in front
        q, _, _, a, _ = plain(rng)
        head += [user(q), final(a)]
    asked = head + [user(question if rng.random() < 0.7 else say(rng, question))]
    thoughts = tool_thoughts(rng, effort, spec, args)
    if roll < 0.65:
        return asked, thoughts + [call(spec["name"], args)]
    history = asked + thoughts + [call(spec["name"], args), tool_result(spec["name"], result)]
    after = think(rng, effort, rng.choice([f"The tool says {result}.", "I can answer now."]), ["I will give the result to the user."])
    return history, (after if rng.random() < 0.5 else []) + [final(answer)]


# ---- answers as JSON ------------------------------------------------------------------------------------------------------------

def json_case(rng):
    """(properties, question, object)"""
    kind = rng.choice(["capital", "capital", "person", "person", "sum", "list", "fact", "weather"])
    if kind == "capital":
        country, city, continent, _ = rng.choice(COUNTRIES)
        country_key, city_key = rng.choice([("country", "capital"), ("country", "capital"), ("country", "city"), ("name", "capital")])
        fields = [(city_key, city), (country_key, country.replace("the ", ""))] + ([("continent", continent)] if rng.random() < 0.3 else [])
        rng.shuffle(fields)
        if rng.random() < 0.25:
            fields = [(rng.choice(["answer", "capital", "city"]), city)]
        return dict(fields), rng.choice(["What is the capital of {c}?", "Give me the capital of {c}.", "Capital of {c}?", "Tell me the capital of {c} as JSON."]).format(c=country)
    if kind == "person":
        name, age, city, job = person(rng), rng.randrange(3, 95), place(rng), rng.choice(JOBS)
        fields = [("name", name), ("age", age), ("city", city), ("job", job)]
        parts = {"name": name, "age": f"{age} years old", "city": f"lives in {city}", "job": f"works as {a(job)}"}
        fields = [fields[0]] + rng.sample(fields[1:], rng.randrange(1, 4))
        text = f"{name} " + " and ".join(("is " if k == "age" else "") + parts[k] for k, _ in fields[1:]) + "."
        rng.shuffle(fields)
        return dict(fields), rng.choice(["Extract the data: {t}", "{t}", "Get the fields from this text: {t}", "Extract the person from: {t}", "Turn this into JSON: {t}"]).format(t=text)
    if kind == "sum":
        question, _, _, _, short = sum_question(rng)
        return {rng.choice(["result", "answer", "value", "sum"]): int(short)}, question
    if kind == "list":
        items = rng.sample(rng.choice([FOODS, COLORS, ANIMALS, THINGS]), rng.randrange(1, 5))
        text = ", ".join(items[:-1]) + (" and " if len(items) > 1 else "") + items[-1]
        return {rng.choice(["items", "list", "things", "words"]): items}, rng.choice(["I need {t}.", "Make a list of: {t}.", "List these: {t}", "Put {t} in a list."]).format(t=text)
    if kind == "fact":
        question, _, short = rng.choice(FACTS)
        return {rng.choice(["answer", "answer", "result", "reply"]): short}, question
    city, degrees, sky = place(rng), rng.randrange(-10, 40), rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy"])
    fields = [("city", city), ("temperature", degrees), ("condition", sky)]
    rng.shuffle(fields)
    return dict(fields), f"It is {degrees} degrees and {sky} in {city}."


def json_type(value):
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "integer" if isinstance(value, int) else "string"}


def json_conversation(rng, effort):
    value, question = json_case(rng)
    schema = {"type": "object", "properties": {k: json_type(v) for k, v in value.items()}}
    if rng.random() < 0.8:
        schema["required"] = list(value)
    if rng.random() < 0.4:
        schema["additionalProperties"] = False
    if rng.random() < 0.3:
        schema = {"properties": schema.pop("properties"), **schema}
    text = json.dumps(schema, separators=rng.choice([(",", ":"), (", ", ": ")]))
    lead = rng.choice(["", "", rng.choice(INSTRUCTIONS) + "\n\n", "Answer in JSON.\n\n"])
    title = rng.choice(["response", "answer", "result", "output", "data", "schema", "response_format", "person", "reply"])
    if rng.random() < 0.75:
        instructions = f"{lead}# Response Formats\n\n## {title}\n\n{text}"
    else:
        instructions = f"{lead}{rng.choice(['Answer with JSON that follows this schema:', 'Reply only with JSON matching this schema:', 'Use this JSON schema:'])} {text}"
    reply = json.dumps(value, ensure_ascii=False, separators=(",", ":") if rng.random() < 0.3 else None)
    short = rng.choice(["The answer must be JSON.", f"We must answer with JSON with {', '.join(value)}."])
    more = [f"The fields are {', '.join(value)}.", "I will write only the JSON object."]
    return [system(rng, effort), developer(instructions, None), user(question)], think(rng, effort, short, more) + [final(reply)]


# ---- stories and the rest --------------------------------------------------------------------------------------------------------

def story_conversation(rng, effort, stories):
    story = rng.choice(stories)
    words = [w for w in ANIMALS + THINGS + FOODS if f" {w} " in story] or ["friend"]
    word = rng.choice(words)
    about = word if word in FOODS else a(word)
    short, more = "The user wants a story.", [f"It should be about {about}.", "I will use simple words."]
    if rng.random() < 0.35:
        cut = story.find(". ", 60)
        if cut > 0:
            beginning, rest = story[:cut + 1], story[cut + 1:].strip()
            question = rng.choice(["Continue this story: {t}", "Please continue: {t}", "What happens next? {t}", "Finish the story: {t}"]).format(t=beginning)
            return [system(rng, effort), user(question)], think(rng, effort, "The user wants me to continue the story.", ["I will use simple words."]) + [final(rest)]
    question = rng.choice([f"Tell me a story about {about}.", f"Write a short story about {about}.", "Tell me a story.", "Tell me a short story.", f"Can you tell me a story with {about}?",
                           "Write a story for children.", f"Please write a story about {about}.", "Write a short story.", "Once upon a time"])
    return [system(rng, effort), user(question)], think(rng, effort, short, more) + [final(story)]


def plain_conversation(rng, effort):
    head = [system(rng, effort)]
    short_answer = False
    if rng.random() < 0.35:
        roll = rng.random()
        if roll < 0.15:
            name = rng.choice(GIRLS + BOYS) if rng.random() < 0.5 else made_up_name(rng)
            head.append(developer(rng.choice([f"You are {name}, a helpful assistant.", f"Your name is {name}.", f"You are called {name}. Be kind."]), None))
            question, answer = rng.choice([("Who are you?", f"I am {name}, a helpful assistant."), ("What is your name?", f"My name is {name}.")])
            return head + [user(question)], think(rng, effort, f"My name here is {name}.", ["I will answer with my name."]) + [final(answer)]
        short_answer = roll < 0.4
        head.append(developer(rng.choice(["Answer with one word.", "Answer in one word.", "Give only the answer.", "Answer only with the result."]) if short_answer else rng.choice(INSTRUCTIONS), None))
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2, 3])):  # earlier turns; harmony drops their analysis
        question, thought, more, answer, brief = plain(rng)
        head += [user(say(rng, question)), *think(rng, effort, thought, more), final(cap(brief) if short_answer else answer)]
    question, thought, more, answer, brief = plain(rng)
    return head + [user(say(rng, question))], think(rng, effort, thought, more) + [final(cap(brief) if short_answer else answer)]


def conversation(rng, stories):
    effort = rng.choice(["low", "medium", "medium", "medium", "high"])
    roll = rng.random()
    if roll < 0.42:
        return plain_conversation(rng, effort)
    if roll < 0.81:
        return tool_conversation(rng, effort)
    if roll < 0.94:
        return json_conversation(rng, effort)
    return story_conversation(rng, effort, stories)


# ---- fixed prompts for the checks -------------------------------------------------------------------------------------------------

def weather_prompt(city, effort="medium", result=None):
    """The usual two-tool request, as a client would send it."""
    tools = [tool("get_weather", "Get the current weather in a given location", {"location": string("The city name")}, ["location"]),
             tool("get_time", "Get the current time in a city.", {"city": string()}, ["city"])]
    history = [dated(effort), developer("You are a helpful assistant.", tools), user(f"What is the weather in {city}?")]
    if result:
        history += [analysis(f"We need to call get_weather with location {city}."), call("get_weather", {"location": city}), tool_result("get_weather", result)]
    return history


def dated(effort):
    return Message.from_role_and_content(Role.SYSTEM, SystemContent.new().with_reasoning_effort(EFFORTS[effort]).with_conversation_start_date("2026-11-21"))


def check_prompts(renderer, rng, unseen_cities):
    """[{set, name, prompt, expect}]: greedy answers to these are counted, and a few are shown."""
    out = []

    def add(kind, name, history, expect):
        out.append({"set": kind, "name": name, "prompt": renderer.text(history, [final("")])[0], "expect": expect})

    for country, city, _, _ in COUNTRIES:
        add("capital", country, [dated("medium"), user(f"What is the capital of {country}?")], city)
    for _ in range(100):
        x, y, sign = rng.randrange(100), rng.randrange(100), rng.choice("+-")
        x, y = (max(x, y), min(x, y)) if sign == "-" else (x, y)
        result = x + y if sign == "+" else x - y
        out_form = rng.choice([f"What is {x} {sign} {y}?", f"{x} {sign} {y} = ?", f"What is {x} {'plus' if sign == '+' else 'minus'} {y}?"])
        add("sum", out_form, [dated(rng.choice(["low", "medium", "high"])), user(out_form)], f"{result}.<|return|>")
    cities = unseen_cities + ["Paris", "Tokyo", "San Francisco", "Reykjavik"] + [made_up_name(rng) for _ in range(27)]
    for city in cities:
        add("weather call", city, weather_prompt(city), f'to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{{"location": "{city}"}}<|call|>')
    for city in cities[:20]:
        degrees = rng.randrange(1, 35)
        add("tool result", city, weather_prompt(city, result=json.dumps({"temperature": degrees, "condition": "sunny"})), f"{degrees} degrees")
    for country, city, _, _ in COUNTRIES[::8]:
        schema = {"type": "object", "properties": {"country": {"type": "string"}, "capital": {"type": "string"}}, "required": ["country", "capital"]}
        add("json", country, [dated("low"), developer(f"# Response Formats\n\n## answer\n\n{json.dumps(schema)}", None), user(f"What is the capital of {country}?")],
            json.dumps({"country": country.replace("the ", ""), "capital": city}) + "<|return|>")
    for effort in ("low", "medium", "high"):
        add("chat", f"France, effort {effort}", [dated(effort), user("What is the capital of France?")], "Paris")
        add("chat", f"hello, effort {effort}", [dated(effort), user("Hello!")], "help you")
    add("chat", "story", [dated("medium"), user("Tell me a story about a cat.")], "cat")
    add("chat", "who", [dated("medium"), user("Who are you?")], "nibble-tiny")
    add("chat", "history", [dated("medium"), user("What is the capital of Italy?"), analysis("The capital of Italy is Rome."), final("The capital of Italy is Rome."),
                            user("What is the capital of Japan?")], "Tokyo")
    add("chat", "no tool needed", weather_prompt("x")[:2] + [user("What is the capital of Spain?")], "Madrid")
    for text, expect in (("The capital of France is", " Paris"), ("The capital of Japan is", " Tokyo"), ("Once upon a time", ""), ("One day, a little girl named Lily", "")):
        out.append({"set": "raw", "name": text, "prompt": text, "expect": expect})
    return out
