"""As much of JSON Schema as docs/result-schema.json uses. Standard library only."""
import json

from support import SOURCE

SCHEMA = json.loads((SOURCE / "docs/result-schema.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
KNOWN = {"type", "required", "properties", "additionalProperties", "items", "enum", "$ref", "description", "title", "$schema", "$defs"}


def has_type(value, name):
    if name in ("integer", "number"):
        return not isinstance(value, bool) and isinstance(value, int if name == "integer" else (int, float))
    return isinstance(value, TYPES[name])


def problems(value, schema=SCHEMA, path="result"):
    """What is wrong with a result, a line each."""
    assert set(schema) <= KNOWN, f"{path}: this checker does not know {set(schema) - KNOWN}"
    if "$ref" in schema:
        return problems(value, SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]], path)
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path}: {value!r} is none of {schema['enum']}"]
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(has_type(value, name) for name in types):
        return [f"{path}: {value!r} is no {' or '.join(types)}"]
    found = []
    if isinstance(value, dict):
        found += [f"{path}: no {name}" for name in schema.get("required", []) if name not in value]
        for name, part in value.items():
            rule = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            found += [f"{path}: {name} is not in the schema"] if rule is False else problems(part, rule, f"{path}.{name}")
    if isinstance(value, list):
        for at, part in enumerate(value):
            found += problems(part, schema.get("items", {}), f"{path}[{at}]")
    return found
