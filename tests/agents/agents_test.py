"""Agents and clients from PyPI, as they are, against nibble: a line per case. Runs in the namespace of in_namespace.sh: NIBBLE is the program,
VENV the environment of requirements.txt."""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import time

NIBBLE, HOME = os.environ["NIBBLE"], pathlib.Path(os.environ["HOME"])
PROGRAMS = {"codex": "codex_cli_bin/bin/codex", "claude": "claude_agent_sdk/_bundled/claude"}
URL = "http://127.0.0.1:8000"
failed = 0


def case(name, test):
    global failed
    try:
        wrong = test()
    except Exception as e:  # any: this line says so, and the next case runs
        wrong = f"{type(e).__name__}: {str(e)[:300]}"
    print("FAIL" if wrong else "PASS", name, wrong or "", flush=True)
    failed |= bool(wrong)


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
      a: one
      b: two
    """
    return a + b


def of_ollama():
    import ollama
    client = ollama.Client(host=URL)
    model = client.list().models[0].model
    shown, user = client.show(model), [{"role": "user", "content": "Hello"}]
    options = {"num_predict": 40, "temperature": 0}
    parts = list(client.chat(model, messages=user, stream=True, options=options, think="low"))
    whole = client.chat(model + ":latest", messages=user, options=options, think="low")
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]}
    after = client.chat(model, messages=[*user, call, {"role": "tool", "tool_name": "add", "content": "3"}], tools=[add], options=options)
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    document = client.generate(model, prompt="A digit", format=schema, options={**options, "num_predict": 300})
    try:
        client.embed(model, input="x")
        return "embed was answered"
    except ollama.ResponseError as e:
        refused = e.status_code == 400 and "not served" in e.error
    text = "".join(p.message.content or "" for p in parts)
    checks = {"tools": "tools" in shown.capabilities, "stream": text == whole.message.content and parts[-1].done, "result": after.done,
              "format": json.loads(document.response)["n"] in range(10), "embed": refused, "ps": client.ps().models[0].model == model}
    return [name for name, right in checks.items() if not right]


def of_openai_agents():
    from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI
    set_tracing_disabled(True)
    model = OpenAIResponsesModel(model="nibble-tiny", openai_client=AsyncOpenAI(base_url=URL + "/v1", api_key="none"))
    agent = Agent(name="t", instructions="Be brief.", tools=[function_tool(add)], model=model, model_settings=ModelSettings(max_tokens=200))
    return "" if asyncio.run(Runner.run(agent, "Hello", max_turns=3)).final_output is not None else "no output"


def of_launch(name, context, *arguments):
    """The program asks a server that was started for it and gets an answer, which nibble-tiny may end where the context does: so whatever the
    program's exit code."""
    result = subprocess.run([NIBBLE, "launch", name, "--port", "8100", "--", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False,
                            env={**os.environ, "NIBBLE_MAX_MODEL_LEN": str(context), "NIBBLE_TEMPERATURE": "0", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "200"})
    log = HOME / ".local/state/nibble/launch" / name / "server.log"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    answered = [e for e in events if e["event"] == "request" and e["status"] == 200 and e["completion_tokens"] > 0]
    refused = [e for e in events if e["event"] == "refused" and e["param"] != "safeguards"]  # Claude Code does without
    if not answered or refused:
        return f"exit code {result.returncode}, {len(answered)} answers, refused {refused[:2]}: {(result.stdout + result.stderr)[-300:]}"
    return ""


def main():
    site = pathlib.Path(sys.prefix) / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    (HOME / "bin").mkdir()
    for name, path in PROGRAMS.items():
        (HOME / "bin" / name).symlink_to(site / path)
    os.environ.update(PATH=f"{HOME}/bin:{os.environ['PATH']}")
    server = subprocess.Popen([NIBBLE, "serve", "--port", "8000"], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if "serving " in line:
            break
    case("ollama's client", of_ollama)
    case("openai-agents", of_openai_agents)
    server.kill()
    case("Codex, by nibble launch", lambda: of_launch("codex", 10000, "exec", "--skip-git-repo-check", "-s", "read-only", "Say hello"))
    case("Claude Code, by nibble launch", lambda: of_launch("claude", 32768, "--permission-mode", "plan", "-p", "Say hello"))
    return failed


if __name__ == "__main__":
    sys.exit(main())
