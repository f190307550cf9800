#!/usr/bin/env python3
"""Grammars of JSON schemas beside the jsonschema package, which knows nothing of them. `make test-schemas` runs all:

    suite   JSON-Schema-Test-Suite 2020-12 (in jsonschema's source distribution): which schemas are enforced, widened or
            refused; no instance that is invalid passes where a schema is enforced
    fuzz    4,000 random schemas (or `fuzz N SEED`): what a grammar draws is valid, but for what it widened; valid
            instances of what is not widened are taken

env NIBBLE_SCHEMAS: the program schemas_main; NIBBLE_SUITE: the suite's folder draft2020-12."""
import collections
import copy
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

from jsonschema import Draft202012Validator, FormatChecker

KINDS = ("enforced", "widened", "refused")


def ask(questions, *words):
    """Questions are {schema, documents, draws}; answers {refused} or {widened, takes, drawn}."""
    lines = "\n".join(json.dumps(q) for q in questions)
    run = subprocess.run([os.environ["NIBBLE_SCHEMAS"], *words], input=lines, capture_output=True, text=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0 and len(answers) == len(questions), (run.returncode, run.stderr[-1000:],
                                                                    questions[len(answers)])
    return answers


def kind_of(answer):
    return "refused" if "refused" in answer else "widened" if answer["widened"] else "enforced"


def suite():
    root = Path(os.environ["NIBBLE_SUITE"])
    groups = [(path.relative_to(root), group) for path in sorted(root.rglob("*.json"))
              for group in json.loads(path.read_text())]
    answers = ask([{"schema": g["schema"], "documents": [t["data"] for t in g["tests"]], "draws": 0} for _, g in groups])
    table, widened, violated, valid = collections.Counter(), collections.Counter(), 0, collections.Counter()
    for (path, group), answer in zip(groups, answers):
        kind = kind_of(answer)
        table[str(path.parent), kind] += 1
        if kind == "refused":
            print(f"refused: {path}: {group['description']}: {answer['refused']}")
            continue
        for pointer in answer["widened"]:
            widened[pointer.split("/")[-1]] += 1
        for test, taken in zip(group["tests"], answer["takes"]):
            if test["valid"]:
                valid[taken] += 1
            elif taken and kind == "enforced":
                violated += 1
                print(f"VIOLATED: {path}: {group['description']}: {test['description']}")
    for folder in sorted({folder for folder, _ in table}):
        print(f"{folder:16}", ", ".join(f"{kind} {table[folder, kind]}" for kind in KINDS))
    print(f"{len(groups)} schemas:", ", ".join(f"{k} {sum(n for (_, kind), n in table.items() if kind == k)}" for k in KINDS))
    print("widened:", ", ".join(f"{part} {n}" for part, n in widened.most_common()))
    print(f"valid instances taken as they stand: {valid[True]} of {valid.total()}; violated: {violated}")
    assert violated == 0


def checker():
    formats = FormatChecker(["date", "ipv4", "uuid", "email"])  # what needs no other package
    return lambda schema: Draft202012Validator(schema, format_checker=formats)


def without(schema, pointers):
    """The schema without the keywords at these pointers."""
    schema = copy.deepcopy(schema)
    for pointer in pointers:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer[2:].split("/")]
        at = schema
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at.get(part, {})
        at.pop(last, None)
        if last == "if":
            at.pop("then", None), at.pop("else", None)
    return schema


PATTERNS = [("^[a-z]{1,4}$", ["a", "abcd"]), ("^[A-Z][0-9]+$", ["A1", "Z999"]), ("ab", ["ab", "xaby"]),
            ("^(?!b)[a-c]+$", ["ab", "cc"]), ("^(?=.*[0-9])[a-z0-9]{2,6}$", ["a1", "12"]), ("^$|^x$", ["", "x"])]
FORMATS = [("date", "2024-02-28"), ("ipv4", "10.0.0.1"), ("uuid", "6b2cfa7d-0fb3-4a4c-8d34-9b7d5f8a2e11"),
           ("email", "a@b.org")]
VALUES = [None, True, False, 0, 1, -3, 2.5, "a", "ab", "", [], [1], {}, {"a": 1}]
NAMES = ["a", "b", "ab", "c", "x1"]


class Random(random.Random):
    def maybe(self, share=0.5):
        return self.random() < share

    # Schemas with any keywords together.
    def wild(self, depth):
        out = {}
        if self.maybe(0.8):
            types = ["null", "boolean", "integer", "number", "string", "array", "object"]
            out["type"] = self.choice(types) if self.maybe(0.8) else self.sample(types, 2)
        kinds = out.get("type", self.choice(["string", "object", "array", "number"]))
        kinds = [kinds] if isinstance(kinds, str) else kinds
        for kind in kinds:
            getattr(self, "wild_" + {"integer": "number", "null": "any", "boolean": "any"}.get(kind, kind))(out, depth)
        if depth > 0 and self.maybe(0.3):
            key = self.choice(["anyOf", "oneOf", "allOf", "not", "if"])
            if key == "not":
                out["not"] = self.wild(depth - 1)
            elif key == "if":
                out.update({"if": self.wild(depth - 1), "then": self.wild(depth - 1)})
                if self.maybe():
                    out["else"] = self.wild(depth - 1)
            else:
                out[key] = [self.wild(depth - 1) for _ in range(self.randint(1, 3))]
        if self.maybe(0.08):
            out["enum"] = self.sample(VALUES, self.randint(1, 5))
        if self.maybe(0.04):
            out["const"] = self.choice(VALUES)
        if self.maybe(0.05):
            out["$ref"] = self.choice(["#/$defs/d", "#/$defs/e"])
        return out

    def wild_any(self, out, depth):
        pass

    def wild_number(self, out, depth):
        low = self.choice([-5, 0, 1, 2.5, 10])
        for key, value in [("minimum", low), ("maximum", low + self.choice([0, 1, 7.5, 100])), ("exclusiveMinimum", low),
                           ("exclusiveMaximum", low + self.choice([1, 10])), ("multipleOf", self.choice([1, 2, 3, 5]))]:
            if self.maybe(0.25):
                out[key] = value

    def wild_string(self, out, depth):
        for key, value in [("minLength", self.randint(0, 4)), ("maxLength", self.randint(2, 9)),
                           ("pattern", self.choice(PATTERNS)[0]), ("format", self.choice(FORMATS)[0])]:
            if self.maybe(0.25):
                out[key] = value

    def wild_array(self, out, depth):
        if depth > 0:
            for key, share in [("items", 0.6), ("contains", 0.1), ("unevaluatedItems", 0.05)]:
                if self.maybe(share):
                    out[key] = self.wild(depth - 1)
            if self.maybe(0.25):
                out["prefixItems"] = [self.wild(depth - 1) for _ in range(self.randint(1, 2))]
        for key, value in [("minItems", self.randint(0, 2)), ("maxItems", self.randint(1, 3)), ("uniqueItems", True)]:
            if self.maybe(0.25):
                out[key] = value

    def wild_object(self, out, depth):
        if depth > 0:
            if self.maybe(0.7):
                out["properties"] = {name: self.wild(depth - 1) for name in self.sample(NAMES, self.randint(1, 3))}
            if self.maybe(0.2):
                out["patternProperties"] = {self.choice(["^a", "b$", "[0-9]"]): self.wild(depth - 1)}
            for key, share in [("additionalProperties", 0.4), ("unevaluatedProperties", 0.1)]:
                if self.maybe(share):
                    out[key] = self.wild(depth - 1) if self.maybe(0.4) else self.maybe()
            if self.maybe(0.1):
                out["propertyNames"] = self.choice([{"enum": NAMES[:3]}, {"pattern": "^[a-z]+$"}, {"maxLength": 2}])
            if self.maybe(0.08):
                out["dependentRequired"] = {self.choice(NAMES): [self.choice(NAMES)]}
            if self.maybe(0.08):
                out["dependentSchemas"] = {self.choice(NAMES): self.wild(depth - 1)}
        if self.maybe(0.3):
            out["required"] = self.sample(NAMES, self.randint(0, 2))
        for key, value in [("minProperties", self.randint(0, 2)), ("maxProperties", self.randint(1, 3))]:
            if self.maybe(0.2):
                out[key] = value

    # A schema and instances, in the order and the forms that grammars write.
    def both(self, depth):
        kinds = ["number", "string", "enum", "format", "pattern", "boolean"]
        if depth > 0:
            kinds += ["object", "object", "array", "anyOf", "allOf", "map", "ref", "set", "not"]
        kind = self.choice(kinds)
        if kind == "number":
            low = self.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + 20}, [low, low + 20, low + 7]
        if kind == "string":
            least = self.randint(0, 3)
            return {"type": "string", "minLength": least, "maxLength": least + 6}, ["é" * least, "b" * (least + 6)]
        if kind == "enum":
            values = self.sample(VALUES, 3)
            return {"enum": values}, values
        if kind == "format":
            name, text = self.choice(FORMATS)
            return {"type": "string", "format": name, "pattern": ".", "maxLength": 60}, [text]
        if kind == "pattern":
            pattern, texts = self.choice(PATTERNS)
            return {"type": "string", "pattern": pattern, "maxLength": 8, "title": "x", "markdownDescription": "y"}, texts
        if kind == "boolean":
            return {"type": ["boolean", "null"]}, [True, None]
        if kind == "array":
            item, values = self.both(depth - 1)
            return {"type": "array", "items": item, "maxItems": 3}, [[], values[:3], [values[0]]]
        if kind == "set":
            values = self.sample(["a", "b", "c", 1, None], 3)
            return {"type": "array", "items": {"enum": values}, "uniqueItems": True}, [[], values, values[::-1]]
        if kind == "anyOf":
            parts = [self.both(depth - 1) for _ in range(2)]
            return {"anyOf": [schema for schema, _ in parts]}, [values[0] for _, values in parts]
        if kind == "not":
            return {"type": "string", "not": {"enum": ["a", "b"]}}, ["c", "ab", ""]
        if kind == "ref":
            return {"$ref": "#/$defs/d", "description": "x"}, [7]
        if kind == "map":
            value, values = self.both(depth - 1)
            return {"type": "object", "additionalProperties": value, "propertyNames": {"pattern": "^[a-z]{1,3}$"},
                    "minProperties": 1}, [{"a": values[0], "zz": values[-1]}]
        names = self.sample(NAMES, 3)
        parts = [self.both(depth - 1) for _ in names]
        full = {name: values[0] for name, (_, values) in zip(names, parts)}
        first = {names[0]: parts[0][1][-1]}
        if kind == "allOf":
            return {"allOf": [{"type": "object", "properties": {names[0]: parts[0][0]}, "required": [names[0]]},
                              {"properties": {n: p[0] for n, p in list(zip(names, parts))[1:]}}]}, [full, first]
        return {"type": "object", "properties": {n: p[0] for n, p in zip(names, parts)}, "required": [names[0]],
                "additionalProperties": False, "dependentRequired": {names[1]: [names[0]]}}, [full, first]


def fuzz(count=4000, seed=1):
    validator, rng, questions = checker(), Random(seed), []
    for i in range(count):
        schema, documents = rng.both(3) if i % 2 else (rng.wild(3), [])
        schema = dict(schema)
        schema["$defs"] = {"d": {"type": "integer"}, "e": {"type": "object", "properties": {"a": {"type": "string"}}}}
        documents = [d for d in documents if validator(schema).is_valid(d)]
        questions.append({"schema": schema, "documents": documents, "draws": 4})
    answers = ask(questions)
    kinds, drawn, taken, failures = collections.Counter(map(kind_of, answers)), 0, 0, []
    for question, answer in zip(questions, answers):
        if "refused" in answer:
            if question["documents"]:
                failures.append(("refused", question, answer))
            continue
        if any(re.search("/(oneOf|not|if)/", pointer) for pointer in answer["widened"]):
            continue  # less of a part of these is not less of the whole
        judge = validator(without(question["schema"], answer["widened"]))
        for text in filter(None, answer["drawn"]):
            drawn += 1
            try:
                good = judge.is_valid(json.loads(text))
            except json.JSONDecodeError:
                good = False
            if not good:
                failures.append(("drawn " + text, question, answer["widened"]))
        for document, takes in zip(question["documents"], answer["takes"]):
            taken += takes
            if not takes:
                failures.append((f"not taken {json.dumps(document)}", question["schema"], answer["widened"]))
    print(f"{count} schemas of seed {seed}:", ", ".join(f"{k} {kinds[k]}" for k in KINDS),
          f"; {drawn} drawn documents, {taken} instances taken; {len(failures)} failures")
    for what, *rest in failures[:15]:
        print("FAILED:", what, *(json.dumps(r)[:1500] for r in rest))
    assert not failures


if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    {"suite": suite, "fuzz": fuzz}[part](*map(int, rest))
