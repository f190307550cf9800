"use strict";
// Answers being written, one per conversation at most, and the API they come from. They go on whatever is shown.

const runs = new Map();  // conversation id → {c, message, controller, started, first, pieces, read, usage, finish, waiting, had}
let model = {id: "", context: 0, state: "connecting", phase: "", percent: 0};
const isWritingHere = (m) => [...runs.values()].some((run) => run.message === m);
function headers() {
  if (/[^ -~]/.test(settings.key)) throw new Refusal(401, "");  // no header holds it, so no server has such a key
  return {"Content-Type": "application/json", ...(settings.key && {Authorization: "Bearer " + settings.key})};
}

function withFiles(m) {
  if (!m.files?.length) return m.content;
  const quoted = m.files.map(({name, text}) => {
    let longest = 2;
    for (const [ticks] of text.matchAll(/`+/g)) longest = Math.max(longest, ticks.length);
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...quoted, m.content].filter(Boolean).join("\n\n");
}
function requestBody(c, line, going_on) {
  const messages = sent(c, line).map((m) => m.role === "user" ? {role: m.role, content: withFiles(m)} : m.role === "tool" ? {role: m.role, content: m.content, tool_call_id: m.tool_call_id}
    : {role: m.role, content: m.content || (m.tool_calls ? null : ""), ...(m.tool_calls && {tool_calls: m.tool_calls}), ...(m.reasoning && {reasoning_content: m.reasoning})});
  const system = c.system?.trim() ? c.system : settings.system;
  if (system.trim()) messages.unshift({role: "system", content: system});
  const list = tools();
  const whole = (name) => (String(settings[name]) === "" ? {} : {[name === "max_tokens" ? "max_completion_tokens" : name]: Number(settings[name])});
  return {model: model.id || undefined, messages, stream: true, stream_options: {include_usage: true}, return_progress: true, background: true, reasoning_effort: settings.effort, temperature: Number(settings.temperature),
    ...(settings.top_p !== 1 && {top_p: Number(settings.top_p)}), ...(settings.min_p !== 0 && {min_p: Number(settings.min_p)}), ...whole("top_k"), ...whole("seed"), ...whole("max_tokens"),
    ...(list.length && {tools: list}), ...(going_on && {continue_final_message: true, add_generation_prompt: false})};
}
class Refusal extends Error { constructor(status, text, wait, code) { super(text); Object.assign(this, {status, wait, code}); } }
async function refusal(response) {
  const {message, code} = await response.json().then((json) => json.error ?? {}, () => ({}));  // no JSON
  return new Refusal(response.status, message ?? "", Number(response.headers.get("Retry-After")) || 0, code);
}
// The server keeps a running answer under its id: after a reload, or where the connection was lost, it gives all of it.
const kept = async (id, method, signal) => fetch("v1/chat/completions/" + id, {method, headers: headers(), signal, keepalive: method === "DELETE"});
// The response to `body`. While the model is loading the message waits for it.
async function reach(run, body) {
  for (;;) {
    const signal = run.controller.signal;
    const response = await fetch("v1/chat/completions", {method: "POST", headers: {...headers(), "X-Request-Id": run.message.run}, body, signal});
    if (response.ok) return response;
    const error = await response.clone().json().then((json) => json.error, () => null);
    if (response.status !== 503 || error?.code !== "loading") throw await refusal(response);
    run.waiting = true;
    drawRun(run);
    probe();
    await modelReady(signal);
    run.waiting = false;
    run.started = performance.now();
    drawRun(run);
  }
}
function take(run, chunk) {
  if (chunk.error) throw new Refusal(500, chunk.error.message ?? "the server gave up");
  const m = run.message;
  if (chunk.usage) run.usage = chunk.usage;
  if (chunk.prompt_progress) run.read = chunk.prompt_progress;
  const choice = chunk.choices?.[0];
  if (!choice) { drawRun(run); return; }
  const delta = choice.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (thought || delta.content || delta.tool_calls) { run.first ||= performance.now(); run.pieces++; }
  if (thought) m.reasoning = (m.reasoning ?? "") + thought;
  if ((delta.content || delta.tool_calls) && m.reasoning && !m.thought_s && !run.taken_up) m.thought_s = (performance.now() - run.started) / 1000;
  if (delta.content) m.content += delta.content;
  for (const part of delta.tool_calls ?? []) {
    m.tool_calls ??= [];
    const call = m.tool_calls[part.index ?? 0] ??= {id: "", type: "function", function: {name: "", arguments: ""}};
    call.id ||= part.id ?? "";
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }
  if (choice.finish_reason) run.finish = choice.finish_reason;
  touch(run.c, m);
  keepSoon(run.c);
  drawRun(run);
}
async function stream(run, response) {
  const decoder = new TextDecoder();
  let rest = "";
  for (const reader = response.body.getReader();;) {
    const {done, value} = await reader.read();
    rest += decoder.decode(value, {stream: !done});
    const lines = rest.split(/\r?\n/);
    rest = done ? "" : lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      take(run, JSON.parse(data));
    }
    if (done) break;
    if (run.c.to_stop) run.controller.abort("stopped");  // said while nobody wrote: with what came by then
  }
  if (!run.finish) throw new TypeError("the stream ended early");
}
// Answers the message `parent` of `c`: a new version where there is an answer already.
function answer(c, parent) {
  if (!runs.has(c.id)) write(c, addMessage(c, parent, {role: "assistant", content: ""}), lineTo(c, parent));
}
// Goes on with an answer that ended too early.
function goOn(c, m) {
  if (isBusy(c)) return;
  m.base = m.content.length;
  write(c, m, lineTo(c, m.id), {ended: m.ended, stats: m.stats});
}
// Takes the answer `m` up again, which the server went on with alone; if it has not, `m` is left as it is.
async function resume(c, m) {
  if (!runs.has(c.id)) await write(c, m);
}
// `line`: the messages to send; without it the answer is taken up. `had`: what it was before it goes on.
async function write(c, m, line, had) {
  const run = {c, message: m, controller: new AbortController(), started: performance.now(), first: 0, pieces: 0, had, taken_up: !line};
  runs.set(c.id, run);
  c.notice = null;
  delete m.ended;
  if (line) m.run = newId();
  touch(c, m);
  keep(c);
  draw();
  if (c === chat && line) toEnd();
  try {
    let response;
    if (line) {
      let body;
      try { body = JSON.stringify(requestBody(c, line, had)); } catch { throw new Refusal(0, "The list of tools in the settings is not valid JSON."); }
      response = await reach(run, body);
    } else {
      response = await kept(m.run, "GET", run.controller.signal);
      if (!response.ok) throw await refusal(response);
      m.content = m.content.slice(0, m.base ?? 0);
      if (!m.base) delete m.reasoning;
      delete m.tool_calls;
    }
    await stream(run, response);
    m.ended = run.finish;
    say(c === chat ? "The answer is complete." : `The answer in “${c.title}” is complete.`);
  } catch (error) {
    m.ended = run.controller.signal.aborted ? "stopped" : error instanceof Refusal && had ? had.ended : "lost";
    if (m.ended === "stopped" || run.taken_up) delete m.tool_calls;
    if (m.ended !== "stopped" && !(run.taken_up && [404, 503].includes(error.status))) explain(c, error, m);
  }
  finish(run);
}
function finish(run) {
  const {c, message: m} = run;
  const tokens = run.usage?.completion_tokens ?? run.pieces;
  const seconds = (performance.now() - run.first) / 1000;
  if (run.first) m.stats = {tokens: tokens + (run.had?.stats?.tokens ?? 0), speed: !run.taken_up && tokens > 1 && seconds > 0.05 ? (tokens - 1) / seconds : 0, context: run.usage?.total_tokens ?? 0};
  runs.delete(c.id);
  c.to_stop = false;
  const id = m.run;
  if (!c.notice?.lost) { delete m.run; delete m.base; }
  if (m.content || m.reasoning || m.tool_calls) touch(c, m);
  else dropMessage(c, m);
  const saved = keep(c);
  if (!m.run) saved.then(() => kept(id, "DELETE")).catch(() => {});  // not before it is kept here; if it is away, it forgets by itself
  draw();
  if (c !== chat) return;
  if (following) toEnd();
  if (m.tool_calls) document.querySelector(".tool textarea")?.focus();
  else if (document.activeElement === document.body || document.activeElement === $("send")) $("input").focus();
}
const aboutKey = () => settings.key ? "The server does not take this API key." : "The server asks for an API key.";
function explain(c, error, m) {
  const retry = {action: () => again(c), label: "Try again"};
  const notice = (text, ...actions) => { c.notice = {text, actions}; };
  if (!(error instanceof Refusal)) {
    const action = async () => {
      if (c.messages.includes(m)) await resume(c, m);
      if (!c.messages.includes(m) || (m.ended === "lost" && !c.notice)) again(c);
    };
    notice("The connection to the server was lost.", {action, label: "Try again"});
    c.notice.lost = m;
    probe();
    return;
  }
  const {status, wait} = error;
  if (status === 0) notice(error.message, {action: () => showSettings("tools"), label: "Settings"});
  else if (status === 401 || status === 403) {
    notice(aboutKey(), {action: () => showSettings("key"), label: "Enter key"});
    c.notice.locked = true;
  } else if (error.code === "context_length_exceeded") {
    const line = sent(c, lineTo(c, m.parent));
    const [, has, most] = /(\d+) tokens > (\d+)/.exec(error.message) ?? [];
    const size = has ? ` It has ${number.format(has)} tokens; the model takes ${number.format(most)}.` : "";
    const fresh = {action: newChat, label: "New chat"};
    if (line.filter((m) => m.role === "user").length > 1) notice("The conversation has become too long." + size, {action: () => leaveOut(c, line, has ? most / has : 0.5), label: "Leave out the oldest"}, fresh);
    else notice("This message is too long for the model." + size, {action: () => { editing = line.findLast((m) => m.role === "user").id; draw(); }, label: "Edit"}, fresh);
  }
  else if (status === 429) notice(wait ? `The server is busy. Try again in ${wait} s.` : "The server is busy with other conversations.", retry);
  else if (status === 503) notice("The server is shutting down.", retry);
  else notice(error.message || `The server answered with status ${status}.`, retry);
}

// ---- What a person does ----
function openCalls(line) {
  const last = line.findLastIndex((m) => m.role === "assistant");
  const results = line.slice(last + 1).map((m) => m.tool_call_id);
  return (line[last]?.tool_calls ?? []).filter((call) => !results.includes(call.id));
}
// A new message after `after`, the end of what is shown where it is not given; it is a new version where one stands there already.
function ask(c, text, files = [], after = shown(c).at(-1)?.id ?? "") {
  if (!c.messages.length && !c.named) c.title = (text || files[0].name).split("\n")[0].slice(0, 60);
  // Calls left without a result are answered for: the API wants one for each.
  for (const call of openCalls(lineTo(c, after))) after = addMessage(c, after, {role: "tool", tool_call_id: call.id, content: "The user gave no result."}).id;
  answer(c, addMessage(c, after, {role: "user", content: text, ...(files.length && {files})}).id);
}
function giveResult(c, call, text) {
  const line = shown(c);
  const result = addMessage(c, line.at(-1).id, {role: "tool", tool_call_id: call.id, content: text});
  if (openCalls([...line, result]).length) { keep(c); draw(); } else answer(c, result.id);
}
// Without `m`: the last answer once more, or the last message where none came.
function again(c, m = shown(c).at(-1)) {
  if (m && !isBusy(c)) answer(c, m.role === "assistant" ? m.parent : m.id);
}
const sent = (c, line) => line.slice(Math.max(0, line.findIndex((m) => m.id === c.from)));
// Answers with the newest messages of `line` only, about this `share` of it and a little room.
function leaveOut(c, line, share) {
  const length = (list) => list.reduce((sum, m) => sum + withFiles(m).length + (m.reasoning ?? "").length, 0);
  const most = 0.8 * share * length(line);
  const users = line.map((m, n) => (m.role === "user" ? n : 0)).filter(Boolean);
  c.from = line[users.find((n) => length(line.slice(n)) <= most) ?? users.at(-1)].id;
  c.headed = true;
  again(c);
}
function stop(c) {
  runs.get(c.id)?.controller.abort("stopped");
  if (!elsewhere.has(c.id)) return;
  c.to_stop = true;
  tabs.postMessage({kind: "stop", id: c.id});
}

// ---- The server's state ----
let probing = 0;
let waiting_for_model = [];
const modelReady = (signal) => new Promise((resolve, reject) => {
  waiting_for_model.push(resolve);
  signal.addEventListener("abort", reject);
});
async function probe() {
  clearTimeout(probing);
  let state = "away";
  try {
    const response = await fetch("v1/models", {headers: headers()});
    if (response.ok) {
      const first = (await response.json()).data?.[0];
      model.id = first?.id ?? "";
      model.context = first?.max_model_len ?? 0;
      state = "ready";
    } else state = response.status === 503 ? "loading" : response.status === 401 ? "locked" : "away";
    if (state === "loading") {
      const health = await (await fetch("health")).json();
      model.phase = health.phase ?? "loading";
      model.percent = health.percent ?? 0;
    }
  } catch (error) {  // away, or loaded since
    if (error instanceof Refusal) state = "locked";
  }
  const was = model.state;
  model.state = state;
  if (state === "locked" && chat?.notice?.locked && chat.notice.text !== aboutKey()) {
    chat.notice.text = aboutKey();
    draw();
  }
  if (state === "ready") {
    for (const go of waiting_for_model.splice(0)) go();
    const {locked, lost} = chat?.notice ?? {};
    if (was === "locked" && locked) again(chat);
    if (was === "away" && lost && !runs.has(chat.id)) {
      chat.notice = null;
      if (chat.messages.includes(lost)) resume(chat, lost);
    }
  }
  drawModel(was);
  clearTimeout(probing);
  probing = setTimeout(probe, state === "ready" ? 60000 : state === "loading" ? 1000 : 2500);
}
