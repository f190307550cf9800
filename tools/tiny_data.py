"""Makes the training text and the tokenizer of nibble-tiny.

  TIKTOKEN_ENCODINGS_BASE=<dir with o200k_base.tiktoken> python tools/tiny_data.py --raw <dir> --out <dir>

--raw holds whichever of these are there (models/nibble-tiny/README.md says where each comes from):
  tinystories*.txt austen.txt moby.txt web.txt tinyshakespeare.txt
--out receives tokenizer files, heldout.txt, heldout_stories.json, heldout_chat.jsonl, prompts.json and train.npz. The same seed gives the same bytes.
"""
import argparse
import collections
import json
import multiprocessing
import pathlib
import random
import re

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import tiny_chat
from tiny_facts import ANIMALS, BOYS, COLORS, COUNTRIES, FACTS, FOODS, GIRLS, HELD_OUT_CITIES, THINGS

VOCAB = 4096
SPECIALS = ["startoftext", "endoftext", "return", "constrain", "channel", "start", "end", "message", "call", "endofprompt"]
SPECIALS = [f"<|{name}|>" for name in SPECIALS]
CONTEXT_FLAG = 0x8000  # set on tokens of a chat prompt: seen, but hardly trained on

# o200k's split, as in OpenAI's tokenizer.json.
SPLIT = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def clean(text):
    text = text.replace("\r", "").replace("\ufeff", "")
    for a, b in (("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"), ("—", "--"), ("–", "-"), ("…", "..."), ("â€™", "'")):
        text = text.replace(a, b)
    return text


def unwrap(text):
    return [re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", text) if p.strip()]


def read_stories(raw):
    """Whole stories. The files mark no boundaries: a story ends before a lone line break or before an opening formula."""
    opening = re.compile(r"^(Once upon|Once there|Once,|There once|A long time ago|Long ago|One day, (a|an|two|there)\b.{0,60}\b(named|called|was|were)\b)")
    stories = []
    for path in sorted(raw.glob("tinystories*.txt")):
        text = clean(path.read_text(errors="ignore")).replace("<|endoftext|>", "\n")
        for part in re.split(r"(?<!\n)\n(?!\n)", text):
            current = []
            for paragraph in unwrap(part):
                if opening.match(paragraph) and current:
                    stories.append("\n\n".join(current))
                    current = []
                current.append(paragraph)
            stories.append("\n\n".join(current))
    whole = [s for s in stories if 250 < len(s) < 4000 and s[-1] in '.!"']
    return list(dict.fromkeys(whole))


def chunks(paragraphs, size=3500):
    out, current, length = [], [], 0
    for p in paragraphs:
        current.append(p)
        length += len(p)
        if length > size:
            out.append("\n\n".join(current))
            current, length = [], 0
    return out + ["\n\n".join(current)] if current else out


def read_books(raw):
    docs = []
    for name in ("austen", "moby", "tinyshakespeare"):
        path = raw / f"{name}.txt"
        if not path.exists():
            continue
        text = clean(path.read_text(errors="ignore"))
        if name == "moby":  # the licence page is not prose
            text = text[text.find("Call me Ishmael"):text.rfind("End of Project Gutenberg")]
        docs += chunks([p.strip() for p in re.split(r"\n\s*\n", text)] if name == "tinyshakespeare" else unwrap(text))
    path = raw / "web.txt"
    if path.exists():
        chapters = collections.defaultdict(list)
        for line in clean(path.read_text(errors="ignore")).splitlines():
            m = re.match(r"^((?:[IV]+ )?[A-Z][A-Za-z ]+ \d+):\d+: (.+)", line)
            if m:
                chapters[m[1]].append(re.sub(r"([a-z,;])God([a-z])", r"\1 God \2", m[2]).strip())
        docs += chunks(["\n\n".join(" ".join(v[i:i + 6]) for i in range(0, len(v), 6)) for v in chapters.values()])
    return docs


def rename(story, rng):
    """The same story with other people in it."""
    swaps = {}
    for names in (GIRLS, BOYS):
        here = [n for n in names if re.search(rf"\b{n}\b", story)]
        swaps.update(zip(here, rng.sample(names, len(here))))
    return re.sub("|".join(rf"\b{n}\b" for n in swaps), lambda m: swaps[m[0]], story) if swaps else story


def plotted_story(rng):
    """A short story of our own from one of a few plots."""
    girl = rng.random() < 0.5
    name, friend = (rng.sample(GIRLS, 2) if girl else rng.sample(BOYS, 2))
    she, her, child = ("she", "her", "girl") if girl else ("he", "his", "boy")
    She = she.capitalize()
    thing, color, animal, food = rng.choice(THINGS), rng.choice(COLORS), rng.choice(ANIMALS), rng.choice(FOODS)
    where = rng.choice(["park", "garden", "forest", "field", "beach", "kitchen", "school", "farm", "market", "village"])
    parent = rng.choice(["mom", "dad", "grandma", "grandpa"])
    kind = rng.choice(["happy", "kind", "brave", "curious", "clever", "shy", "funny", "gentle"])
    article = "an" if animal[0] in "aeiou" else "a"
    start = rng.choice([f"Once upon a time, there was a {kind} {child} named {name}.", f"One day, a {kind} {child} named {name} went to the {where}.",
                        f"Once upon a time, a {child} named {name} lived near a big {where}.", f"There once was a little {child} called {name}."])
    plots = [
        [f"{name} had a {color} {thing}. {She} loved the {thing} very much and took it everywhere.",
         f"One day, {name} went to the {where} and lost the {color} {thing}. {She} looked and looked, but {she} could not find it. {name} was very sad.",
         f"Then {friend} came and asked, \"Why are you sad?\" {name} said, \"I lost my {thing}.\" {friend} said, \"Do not worry. I will help you.\"",
         f"They looked together. At last, {friend} saw something {color} behind a tree. It was the {thing}!",
         f"{name} was so happy. {She} hugged {friend} and said, \"Thank you!\" From that day on, they were best friends."],
        [f"{name} saw {article} {animal} in the {where}. The {animal} was small and hungry.",
         f"\"Hello, little {animal},\" said {name}. \"Do you want some {food}?\" The {animal} came closer and ate the {food}.",
         f"{name} ran home and asked {her} {parent}, \"Can we keep the {animal}?\" {her.capitalize()} {parent} smiled and said, \"Yes, but you must take good care of it.\"",
         f"Every day, {name} gave the {animal} food and water. The {animal} grew big and strong, and they played together all day."],
        [f"{name} wanted to make a cake for {her} {parent}. {She} needed {food}, but there was none in the house.",
         f"So {name} walked to the market with {friend}. They bought {food} and came home before it got dark.",
         f"{name} and {friend} mixed everything in a big bowl and put it in the oven. Soon the house smelled very good.",
         f"When {her} {parent} came home, {name} said, \"Surprise!\" They all ate the cake and laughed. It was the best day ever."],
        [f"{name} and {friend} both wanted to play with the {color} {thing}. They pulled and pulled, and the {thing} broke.",
         f"\"Now nobody can play,\" said {friend}. {name} felt bad and said, \"I am sorry. I should have shared.\"",
         f"{her.capitalize()} {parent} heard them and said, \"We can fix it together.\" They used some glue and some tape.",
         f"Soon the {thing} was as good as new. {name} and {friend} took turns and had fun. They learned that it is good to share."],
        [f"It was raining, and {name} could not go outside. {She} sat by the window and felt bored.",
         f"Then {name} found an old {thing} in a box. It was {color} and very dusty. {She} cleaned it until it was shiny.",
         f"\"What is this?\" {name} asked. {her.capitalize()} {parent} said, \"I played with that {thing} when I was little.\"",
         f"They played together until the rain stopped. Then they saw a big rainbow in the sky, and {name} smiled."],
        [f"There was a big hill near the {where}. {name} wanted to climb it, but {she} was afraid.",
         f"A wise old {animal} said, \"Take one small step, and then another.\" {name} took a deep breath and began to climb.",
         f"Step by step, {she} went higher and higher. Sometimes {she} was tired, but {she} did not stop.",
         f"At the top, {name} could see the whole world. \"I did it!\" {she} shouted. {name} was very proud."]]
    plot = rng.choice(plots)
    return "\n\n".join([f"{start} {plot[0]}", *plot[1:]])


def capital_sentence(rng, row):
    country, city, continent, language = row
    forms = ["The capital of {c} is {a}."] * 6 + ["{a} is the capital of {c}.", "The capital city of {c} is {a}.", "{a} is the capital city of {c}.", "{C} is in {k}, and its capital is {a}.",
             "{C} is a country in {k}. The capital of {c} is {a}.", "In {c}, the capital is {a}.", "If you go to {c}, visit {a}, the capital."]
    if language:
        forms += ["People in {c} speak {l}.", "{C} is in {k}.", "The people of {a} speak {l}."]
    return rng.choice(forms).format(c=country, C=tiny_chat.cap(country), a=city, k=continent, l=language)


def fact_document(rng):
    roll = rng.random()
    if roll < 0.36:
        return " ".join(capital_sentence(rng, rng.choice(COUNTRIES)) for _ in range(rng.randrange(2, 9)))
    if roll < 0.48:
        return " ".join(f[1] for f in rng.sample(FACTS, rng.randrange(2, 8)))
    if roll < 0.57:
        question, _, _, answer, _ = rng.choice([tiny_chat.capital_question, tiny_chat.fact_question])(rng)
        return f"{question} {answer}" if rng.random() < 0.5 else f"Q: {question}\nA: {answer}"
    if roll < 0.61:
        return " ".join([capital_sentence(rng, rng.choice(COUNTRIES)), rng.choice(FACTS)[1], capital_sentence(rng, rng.choice(COUNTRIES))])
    lines = []
    for _ in range(rng.randrange(4, 16)):
        _, thought, _, _, _ = tiny_chat.sum_question(rng)
        lines.append(thought)
    return rng.choice([" ", "\n"]).join(lines)


_state = {}


def start_worker(stories):
    _state["renderer"], _state["stories"] = tiny_chat.Renderer(), stories


def render_batch(job):
    seed, count = job
    rng = random.Random(seed)
    return [_state["renderer"].text(*tiny_chat.conversation(rng, _state["stories"])) for _ in range(count)]


def render_chats(seed, count, stories):
    jobs = [(seed * 1_000_003 + i, 250) for i in range((count + 249) // 250)]
    with multiprocessing.Pool(2, start_worker, (stories,)) as pool:
        return [pair for batch in pool.imap(render_batch, jobs) for pair in batch][:count]


def make_tokenizer(texts):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCAB - len(SPECIALS), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    t.add_special_tokens(SPECIALS)
    assert t.get_vocab_size() == VOCAB and t.token_to_id(SPECIALS[0]) == VOCAB - len(SPECIALS)
    return t


def save_tokenizer(t, out):
    t.save(str(out / "tokenizer.json"))
    added = {str(t.token_to_id(s)): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for s in SPECIALS}
    config = {"added_tokens_decoder": added, "bos_token": "<|startoftext|>", "clean_up_tokenization_spaces": False, "eos_token": "<|return|>", "extra_special_tokens": {},
              "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072, "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    names = {k: {"content": config[k], "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} for k in ("bos_token", "eos_token", "pad_token")}
    (out / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")


def encode_documents(t, docs):
    ends = t.token_to_id("<|endoftext|>")
    return [np.array(e.ids + [ends], np.uint16) for e in t.encode_batch(docs)]


def encode_chats(t, chats):
    prompts, answers = t.encode_batch([c[0] for c in chats]), t.encode_batch([c[1] for c in chats])
    return [np.concatenate([np.array(p.ids, np.uint16) | CONTEXT_FLAG, np.array(a.ids, np.uint16)]) for p, a in zip(prompts, answers)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--raw", type=pathlib.Path, required=True)
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--chats", type=int, default=100_000)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    renderer = tiny_chat.Renderer()  # before anything slow: it fails without o200k_base.tiktoken

    stories = read_stories(args.raw)
    rng.shuffle(stories)
    held, size = [], 0
    while size < 80_000:
        held.append(stories.pop())
        size += len(held[-1].encode()) + 20
    books = read_books(args.raw)
    renamed = [rename(s, rng) for s in stories for _ in range(3)]
    plotted = [plotted_story(rng) for _ in range(6_000)]
    facts = [fact_document(rng) for _ in range(40_000)]
    chats = render_chats(args.seed, args.chats, renamed + plotted)
    held_chats = render_chats(args.seed + 1, 300, held)
    # A held-out city may only be a whole word inside a longer text of a public source.
    assert not any(city in prompt + answer for city in HELD_OUT_CITIES for prompt, answer in chats)
    print(f"stories {len(stories)} + held out {len(held)}, books {len(books)}, facts {len(facts)}, chats {len(chats)}", flush=True)

    numbers = [" ".join(str(i) for i in range(200))] * 40 + ["".join(f"{a}+{b}=" for a in range(100) for b in (3, 47))] * 3
    sample = stories * 3 + plotted[:600] + facts[:6_000] + numbers + rng.sample(books, len(books) // 2)
    sample += [re.sub(r"<\|[a-z]+\|>", "\n", p + a) for p, a in chats[:5_000]]
    t = make_tokenizer(sample)
    save_tokenizer(t, args.out)

    sources = {"stories": encode_documents(t, stories + renamed), "plots": encode_documents(t, plotted), "books": encode_documents(t, books),
               "facts": encode_documents(t, facts), "chats": encode_chats(t, chats)}
    arrays = {}
    for name, docs in sources.items():
        arrays[f"{name}_tokens"] = np.concatenate(docs)
        arrays[f"{name}_lengths"] = np.array([len(d) for d in docs], np.int32)
        print(f"{name}: {len(docs)} documents, {len(arrays[f'{name}_tokens'])} tokens", flush=True)
    np.savez_compressed(args.out / "train.npz", **arrays)
    (args.out / "heldout.txt").write_text("\n\n".join(held) + "\n")
    (args.out / "heldout_stories.json").write_text(json.dumps(held, indent=1) + "\n")
    with open(args.out / "heldout_chat.jsonl", "w") as f:
        for prompt, answer in held_chats:
            f.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")
    (args.out / "prompts.json").write_text(json.dumps(tiny_chat.check_prompts(renderer, rng, HELD_OUT_CITIES), indent=1) + "\n")


if __name__ == "__main__":
    main()
