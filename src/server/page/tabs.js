"use strict";
// What the tabs of this page tell each other: saved, removed, listed (the list changed), whose / mine (who writes the
// answer of this conversation), stop.

const elsewhere = new Map();  // conversation id → true: another tab writes its answer, or may
const kReply_ms = 1200;
const unfinished = (c) => c.messages.filter((m) => m.role === "assistant" && !m.ended && !isWritingHere(m));

// An answer that no tab writes is taken up, or, where the server has none, one that a reload, a closed tab or a crash cut off.
function findWriter(c) {
  clearTimeout(c.finding);
  if (!unfinished(c).length) { elsewhere.delete(c.id); return; }
  elsewhere.set(c.id, true);
  c.claimed = c.to_stop = false;
  tabs.postMessage({kind: "whose", id: c.id});
  c.finding = setTimeout(() => {
    if (c !== chat) { elsewhere.delete(c.id); return; }
    if (c.claimed) { findWriter(c); return; }
    const going = unfinished(c).find((m) => m.run);
    if (going) {  // the server may have gone on with it
      elsewhere.delete(c.id);
      tabs.postMessage({kind: "mine", id: c.id});
      resume(c, going);
      return;
    }
    for (const m of unfinished(c)) {
      if (m.content || m.reasoning) { m.ended = "lost"; delete m.tool_calls; touch(c, m); } else dropMessage(c, m);
    }
    elsewhere.delete(c.id);
    keep(c);
    draw();
  }, kReply_ms);
}
async function hearSaved(head) {
  noteHead(head);
  const c = runs.get(head.id)?.c ?? (chat?.id === head.id ? chat : null);
  if (!c) { drawChats(); return; }
  let stored, saves;
  do { saves = c.saves; stored = await store.get(c.id); } while (saves !== c.saves);  // ours went between: read again
  if (!stored) return;
  takeOver(c, stored);
  if (!elsewhere.has(c.id) || !unfinished(c).length) findWriter(c);
  if (c === chat) { draw(); if (following) toEnd(); }
}
tabs.addEventListener("message", ({data}) => {
  if (data.kind === "saved") hearSaved(data.head);
  else if (data.kind === "removed") forget(data.id);
  else if (data.kind === "listed") loadHeads();
  else if (data.kind === "whose" && runs.has(data.id)) tabs.postMessage({kind: "mine", id: data.id});
  else if (data.kind === "mine" && chat?.id === data.id) chat.claimed = true;
  else if (data.kind === "stop") runs.get(data.id)?.controller.abort("stopped");
});
// The last words before a reload, and under which id the server has the rest.
addEventListener("pagehide", () => { for (const run of runs.values()) keep(run.c); });
