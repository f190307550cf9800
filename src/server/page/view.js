"use strict";
// Drawing the open conversation. What is drawn of a message is kept and patched, so that a streamed answer moves nothing
// above it, and a selection or an unfolded thought stays as it is.

let chat = null;        // the open conversation; null: a new one that nothing was said in
let editing = "";       // the message being edited
let page_notice = null; // {text}: of no conversation
const parts = new WeakMap();     // message → {turn, body, inner, label}
const unfolded = new WeakSet();  // messages whose thoughts are shown
const isBusy = (c) => Boolean(c) && (runs.has(c.id) || elsewhere.has(c.id));
const isLive = (c, m) => m.role === "assistant" && !m.ended && isBusy(c);
function warn(text) { page_notice = {text}; draw(); }

function pretty(text) { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; } }
function drawCall(c, line, call, idx) {
  const answer = line.find((m, i) => i > idx && m.role === "tool" && m.tool_call_id === call.id);
  const card = el("div", {class: "tool"}, el("div", {class: "name"}, icon("tool"), call.function.name), el("pre", {tabindex: 0}, pretty(call.function.arguments || "{}")));
  if (answer) card.append(el("div", {class: "label"}, "Result"), el("pre", {tabindex: 0}, pretty(answer.content)));
  else if (!isBusy(c)) {
    const area = el("textarea", {class: "field mono", rows: 2, id: "result-" + call.id, placeholder: '{"temperature": 21}'});
    card.append(el("label", {class: "label", for: "result-" + call.id}, "You are the tool: what does it return?"), area,
      el("div", {class: "row"}, el("button", {class: "btn main", type: "button", onclick: () => giveResult(c, call, area.value)}, "Send result")));
  }
  return card;
}
// ‹ 2 of 3 ›
function drawVersions(c, m) {
  const all = versions(c, m.parent);
  if (all.length < 2) return null;
  const at = all.indexOf(m);
  const show = (to) => { if (all[to]) { choose(c, all[to]); keep(c); draw(); } };
  const go = (name, label, to) => button(name, label, () => show(to), {"aria-disabled": all[to] ? "false" : "true", "data-focus": label + m.parent});
  return el("span", {class: "versions"}, go("left", "Earlier version", at - 1), el("span", {}, `${at + 1}/${all.length}`), go("right", "Later version", at + 1));
}
function drawEditor(c, m) {
  const area = el("textarea", {class: "field", "aria-label": "Edit the message"});
  area.value = m.content;
  const leave = () => { editing = ""; draw(); };
  const done = () => {
    const text = area.value.trim();
    editing = "";
    if (text || m.files) ask(c, text, m.files, m.parent); else draw();
  };
  area.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); done(); }
    if (e.key === "Escape") { e.stopPropagation(); leave(); }
  });
  setTimeout(() => area.focus());
  return el("div", {class: "turn user"}, el("div", {class: "edit"}, area, el("div", {class: "row"}, el("button", {class: "btn", type: "button", onclick: leave}, "Cancel"), el("button", {class: "btn main", type: "button", onclick: done}, "Send"))));
}
const drawFile = ({name, text}) => el("details", {class: "file"}, el("summary", {}, icon("file"), el("span", {}, name), el("small", {}, size(text))), el("pre", {tabindex: 0}, text));
const size = (text) => { const bytes = new Blob([text]).size; return bytes < 1024 ? bytes + " B" : number.format(Math.round(bytes / 1024)) + " KiB"; };
function drop(c, m) {
  if (!confirm(versions(c, m.id).length ? "Delete this message and all that follows it?" : "Delete this message?")) return;
  dropFrom(c, m);
  c.notice = null;
  if (c.messages.length) { keep(c); draw(); } else removeNow(c.id);
}
const drawDrop = (c, m) => button("trash", "Delete the message", () => drop(c, m));
function drawUser(c, m) {
  if (editing === m.id) return drawEditor(c, m);
  const acts = el("div", {class: "acts"}, drawVersions(c, m), button("copy", "Copy", () => copyText(m.content)), button("edit", "Edit and ask again", () => { editing = m.id; draw(); }), drawDrop(c, m));
  return el("div", {class: "turn user"}, el("span", {class: "sr"}, "You:"), ...(m.files ?? []).map(drawFile), el("div", {class: "own"}, m.content && el("div", {class: "said"}, m.content), acts));
}
const thoughtLabel = (c, m) => isLive(c, m) && !m.content ? "Thinking…" : m.thought_s >= 1 ? `Thought for ${Math.round(m.thought_s)} s` : m.thought_s ? "Thought for a moment" : "Thoughts";
function drawAnswer(c, m, line, idx) {
  const live = isLive(c, m);
  const body = parts.get(m)?.body ?? el("div");
  body.className = "md" + (live ? " caret" : "");
  drawMarkdown(body, m.content);
  const label = el("span", {}, thoughtLabel(c, m));
  const inner = el("div", {class: "inner"}, m.reasoning ?? "");
  const fold = (e) => {
    if (e.target.open) unfolded.add(m); else unfolded.delete(m);
    keepEnd(e.target);
  };
  const think = m.reasoning && el("details", {class: "think" + (live && !m.content ? " live" : ""), open: unfolded.has(m), ontoggle: fold}, el("summary", {}, icon("right"), label), inner);
  const stats = m.stats ? `${number.format(m.stats.tokens)} tokens${m.stats.speed ? " · " + rate(m.stats.speed) : ""}` : "";
  const why = {length: "cut at the token limit", stopped: "stopped", lost: "cut off"}[m.ended];
  const turn = el("div", {class: "turn assistant", "aria-busy": live ? "true" : "false"}, el("span", {class: "sr"}, "Nibble:"), think,
    runs.get(c.id)?.waiting && live ? drawWaiting() : body, ...(live ? [] : m.tool_calls ?? []).map((call) => drawCall(c, line, call, idx)),
    el("div", {class: "acts" + (live ? " away" : "")}, drawVersions(c, m), m.content && button("copy", "Copy the answer", () => copyText(m.content)),
      button("again", "Answer again", () => again(c, m)), ["stopped", "lost", "length"].includes(m.ended) && m.content && line.at(-1) === m && button("go", "Continue the answer", () => goOn(c, m)),
      drawDrop(c, m), el("span", {}, [stats, why].filter(Boolean).join(" · "))));
  parts.set(m, {turn, body, label: think && label, inner, think});
  return turn;
}
// Only what a streamed piece changes; false: the turn must be drawn anew.
function patchAnswer(c, m) {
  const part = parts.get(m);
  if (!part?.turn.isConnected || Boolean(part.think) !== Boolean(m.reasoning) || !part.body.isConnected) return false;
  if (part.think) {
    const text = part.inner.firstChild;
    if (m.reasoning.startsWith(text.data)) text.appendData(m.reasoning.slice(text.length));
    else text.data = m.reasoning;
    part.label.textContent = thoughtLabel(c, m);
    part.think.classList.toggle("live", !m.content);
  }
  drawMarkdown(part.body, m.content);
  return true;
}
function drawWaiting() {
  return el("div", {class: "waiting"}, el("span", {class: "loading-text"}, loadingText()), el("progress", {max: 100, value: model.percent, "aria-label": "Loading the model"}));
}
const loadingText = () => `The model is loading (${model.phase || "starting"}, ${model.percent} %). Your message goes out when it is ready.`;
function drawEmpty() {
  const mark = document.querySelector(".brand > svg").cloneNode(true);
  return el("div", {class: "empty"}, mark, el("h2", {}, "What is on your mind?"), el("p", {}, "Nothing you write leaves this server."));
}
function drawNotice(notice) {
  return el("div", {class: "note", role: "alert"}, el("p", {}, notice.text), ...(notice.actions ?? []).map(({label, action}) => el("button", {class: "btn", type: "button", onclick: action}, label)));
}
// A message that nobody answered, and nothing says why: a reload came between.
function drawUnanswered(c, last) {
  return el("div", {class: "row"}, el("button", {class: "btn", type: "button", onclick: () => again(c, last)}, "Answer"));
}
function draw() {
  const c = chat;
  const line = c ? shown(c) : [];
  const held = document.activeElement?.dataset.focus;
  const at = scroller.scrollTop;  // before the turns take over what is drawn
  const turns = line.flatMap((m, idx) => [m.id === c.from && el("p", {class: "cut"}, "The model no longer reads what is above."),
    m.role === "user" ? drawUser(c, m) : m.role === "assistant" && drawAnswer(c, m, line, idx)]).filter(Boolean);
  const last = line.at(-1);
  const unanswered = last && last.role !== "assistant" && !isBusy(c) && !c.notice && !openCalls(line).length;
  $("log").replaceChildren(...(turns.length ? turns : [drawEmpty()]), ...(unanswered ? [drawUnanswered(c, last)] : []), ...[c?.notice, page_notice].filter(Boolean).map(drawNotice));
  scroller.scrollTop = at;
  if (held) document.querySelector(`[data-focus="${CSS.escape(held)}"]`)?.focus();
  const busy = isBusy(c);
  document.body.classList.toggle("busy", busy);
  $("send").setAttribute("aria-label", busy ? "Stop" : "Send");
  $("title").textContent = c?.title ?? "New chat";
  document.title = c ? c.title + " · Nibble" : "Nibble";
  drawSend();
  drawChats();
  drawUse();
  drawOwn();
}
const drawSend = () => { $("send").disabled = !isBusy(chat) && !$("input").value.trim() && !attached.length; };
function drawUse() {
  const run = chat && runs.get(chat.id);
  const stats = run || !chat ? null : shown(chat).findLast((m) => m.stats)?.stats;
  if (run) {
    const seconds = (performance.now() - run.first) / 1000;
    $("speed").textContent = run.first && seconds > 0.4 && !run.taken_up ? rate((run.pieces - 1) / seconds) : run.first || run.waiting ? "" : `reading…${run.read ? ` ${Math.floor(100 * run.read.processed / run.read.total)} %` : ""}`;
  } else $("speed").textContent = stats?.speed ? rate(stats.speed) : "";
  const used = stats?.context ?? 0;
  $("context").textContent = used ? `${number.format(used)}${model.context ? " of " + number.format(model.context) : ""} tokens` : "";
  document.querySelector(".gauge").hidden = !used || !model.context;
  $("gauge").style.width = Math.min(100, 100 * used / (model.context || 1)) + "%";
}
function drawModel(was) {
  $("model").dataset.state = model.state;
  $("model").textContent = {ready: model.id, loading: `loading, ${model.percent} %`, away: "no connection", locked: settings.key ? "API key refused" : "API key needed"}[model.state];
  for (const text of document.querySelectorAll(".loading-text")) text.textContent = loadingText();
  for (const bar of document.querySelectorAll(".waiting progress")) bar.value = model.percent;
  if (was !== model.state) draw(); else drawUse();
}

// ---- While an answer is written: at most once per frame, only that answer ----
const scroller = $("scroll");
let following = true;  // the end, until the reader scrolls away
const toEnd = () => { following = true; scroller.scrollTop = scroller.scrollHeight; };
// What opens pushes the end out of sight: brings it back as far as the top of what was opened stays.
function keepEnd(opened) {
  if (!following) return;
  const below = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
  const above = opened.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
  scroller.scrollTop += Math.max(0, Math.min(below, above));
}
scroller.addEventListener("scroll", () => {
  following = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
  $("down").hidden = following;
});
$("down").addEventListener("click", toEnd);
let pending = false;
function drawRun(run) {
  if (run.c !== chat || pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    if (run.c !== chat || !runs.has(chat.id)) return;
    const m = runs.get(chat.id).message;
    if (runs.get(chat.id).waiting || !patchAnswer(chat, m)) {
      const line = shown(chat);
      const idx = line.indexOf(m);
      if (idx >= 0) parts.get(m)?.turn.replaceWith(drawAnswer(chat, m, line, idx));
    }
    drawUse();
    if (following) toEnd();
  });
}
