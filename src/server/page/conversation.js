"use strict";
// A conversation is a tree of messages: answering again and editing add a version beside the old one.
//   conversation {id, title, named, updated, messages, chosen, system?, from?}  +  {changed, headed, kept, saves, …}, of this tab
//   message      {id, parent, role, content, reasoning?, thought_s?, tool_calls?, tool_call_id?, files?, stats?, ended?, run?, base?}
// `parent` is the message before it, "" for a first one. `chosen` says which version follows a parent; else the newest.
// `system`: instructions of its own. `from`: the first message that is sent; without it, all are. `headed`: this tab changed
// one of these, or the name. An answer without `ended` is being written, by one tab: under the id `run` on the server, after
// the first `base` characters of its content.

function newConversation(fields = {}) {
  return {id: newId(), title: "New chat", named: false, updated: Date.now(), messages: [], chosen: {}, changed: new Set(), kept: false, saves: 0, ...fields};
}
const versions = (c, parent) => c.messages.filter((m) => m.parent === parent);

// The messages that are shown: one version at each step.
function shown(c) {
  const after = new Map();
  for (const m of c.messages) after.set(m.parent, [...(after.get(m.parent) ?? []), m]);
  const out = [];
  for (let list, at = ""; (list = after.get(at)); at = out.at(-1).id) out.push(list.find((m) => m.id === c.chosen[at]) ?? list.at(-1));
  return out;
}
// The messages up to and with `id`.
function lineTo(c, id) {
  const by_id = new Map(c.messages.map((m) => [m.id, m]));
  const out = [];
  for (let m = by_id.get(id); m; m = by_id.get(m.parent)) out.unshift(m);
  return out;
}
function addMessage(c, parent, fields) {
  const m = {id: newId(), parent, ...fields};
  c.messages.push(m);
  choose(c, m);
  touch(c, m);
  return m;
}
function dropMessage(c, m) {
  c.messages.splice(c.messages.indexOf(m), 1);
  if (c.chosen[m.parent] === m.id) delete c.chosen[m.parent];
  c.changed.add(m.id);
}
// Drops `m` and all that follows it, in every version.
function dropFrom(c, m) {
  for (const next of versions(c, m.id)) dropFrom(c, next);
  dropMessage(c, m);
  touch(c, m);
}
function choose(c, m) { c.chosen[m.parent] = m.id; }
function touch(c, m) {
  c.changed.add(m.id);
  c.updated = Date.now();
}
// What is stored of `c` when the record `stored` is there: this tab's changed messages over the stored ones.
function mergedRecord(c, stored, changed) {
  const mine = new Map(c.messages.map((m) => [m.id, m]));
  const messages = (stored?.messages ?? []).filter((m) => !changed.has(m.id) || mine.has(m.id)).map((m) => (changed.has(m.id) ? mine.get(m.id) : m));
  const there = new Set(messages.map((m) => m.id));
  messages.push(...c.messages.filter((m) => changed.has(m.id) && !there.has(m.id)));
  const {title, named, system, from} = stored && !c.headed ? stored : c;
  const there_too = new Set([""]);  // another tab may have dropped what these follow
  return {id: c.id, title, named, system, from, updated: Math.max(c.updated, stored?.updated ?? 0), chosen: {...stored?.chosen, ...c.chosen}, messages: messages.filter((m) => there_too.has(m.parent) && there_too.add(m.id))};
}
// Takes over what another tab stored; messages that this tab is changing, and the versions it shows, stay.
function takeOver(c, stored) {
  const mine = new Map(c.messages.map((m) => [m.id, m]));
  c.messages = stored.messages.map((theirs) => {
    const m = mine.get(theirs.id);
    if (!m) return theirs;
    if (c.changed.has(m.id) || isWritingHere(m)) return m;
    for (const key of Object.keys(m)) if (!(key in theirs)) delete m[key];
    return Object.assign(m, theirs);
  });
  const there = new Set(stored.messages.map((m) => m.id));
  c.messages.push(...[...mine.values()].filter((m) => !there.has(m.id) && (c.changed.has(m.id) || isWritingHere(m))));
  c.chosen = {...stored.chosen, ...c.chosen};
  if (!c.headed) for (const name of ["title", "named", "system", "from"]) c[name] = stored[name];
  c.updated = Math.max(c.updated, stored.updated);
}

// ---- Files ----
const kFormat = "nibble conversations";
function exported(records) {
  return JSON.stringify({format: kFormat, version: 1, conversations: records}, null, 1);
}
// What is shown, to be read elsewhere.
function asMarkdown(c) {
  const said = shown(c).filter((m) => m.content || m.files).map((m) => `## ${{user: "You", assistant: "Answer", tool: "Result"}[m.role]}\n\n${withFiles(m)}\n`);
  return [`# ${c.title}\n`, ...(c.system ? [`## Instructions\n\n${c.system}\n`] : []), ...said].join("\n");
}
// Conversations of an exported file; throws an Error that names what does not fit.
function imported(text) {
  let file;
  try { file = JSON.parse(text); } catch { throw new Error("want a file that was exported here, found no JSON"); }
  if (file?.format !== kFormat || file.version !== 1 || !Array.isArray(file.conversations)) throw new Error(`want "format": "${kFormat}", "version": 1 and "conversations"`);
  return file.conversations.map((given, n) => {
    const want = (fits, what) => { if (!fits) throw new Error(`conversation ${n + 1}: want ${what}`); };
    const is = {text: (v) => typeof v === "string", optional: (v) => v === undefined || typeof v === "string"};
    want(/^\w{1,64}$/.test(given?.id) && is.text(given.title) && is.optional(given.system) && Array.isArray(given.messages), "an id, a title and messages");
    const seen = new Set([""]);
    const messages = given.messages.map((m, k) => {
      const where = `message ${k + 1} to have `;
      want(is.text(m?.id) && m.id && !seen.has(m.id), where + "an id of its own");
      want(seen.has(m.parent), where + "a parent before it");
      want(["user", "assistant", "tool"].includes(m.role) && is.text(m.content), where + "a role (user, assistant, tool) and text as content");
      want([m.reasoning, m.tool_call_id, m.ended].every(is.optional), where + "text as reasoning, tool_call_id and ended");
      want((m.tool_calls ?? []).every?.((t) => is.text(t?.id) && is.text(t.function?.name) && is.text(t.function.arguments)), where + "calls with id, name and arguments");
      want((m.files ?? []).every?.((f) => is.text(f?.name) && is.text(f.text)), where + "files with name and text");
      seen.add(m.id);
      const {id, parent, role, content, reasoning, tool_calls, tool_call_id, files, ended} = m;
      const kept = {id, parent, role, content, reasoning, tool_calls, tool_call_id, files, ended: role === "assistant" ? ended ?? "lost" : undefined};
      if (Number.isFinite(m.thought_s)) kept.thought_s = m.thought_s;
      if (m.stats && [m.stats.tokens, m.stats.speed, m.stats.context].every(Number.isFinite)) kept.stats = m.stats;
      return Object.fromEntries(Object.entries(kept).filter(([, value]) => value !== undefined));
    });
    const chosen = Object.fromEntries(Object.entries(given.chosen ?? {}).filter(([parent, child]) => seen.has(parent) && seen.has(child)));
    return newConversation({id: given.id, title: given.title.slice(0, 200), named: given.named === true, system: given.system, from: seen.has(given.from) ? given.from : undefined, updated: Number(given.updated) || Date.now(), messages, chosen, changed: seen});
  });
}
