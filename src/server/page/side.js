"use strict";
// The list of conversations: search, rename, export, import, delete.

let heads = [];    // {id, title, updated} of each stored conversation
let found = null;  // the ids that the search found; null: no search
let renaming = "";
const byId = (id) => heads.find((head) => head.id === id);
function noteHead({id, title, updated}) {
  heads = heads.filter((head) => head.id !== id);
  heads.push({id, title, updated});
}
async function loadHeads() {
  heads = await store.heads();
  drawChats();
}
function drawRenaming({id, title}) {
  const field = el("input", {class: "field", "aria-label": "Name of the conversation", maxlength: 200, value: title});
  const leave = (name) => {
    if (renaming !== id) return;
    renaming = "";
    if (name && name !== title) rename(id, name); else drawChats();
    document.querySelector(`#chats a[href="#${id}"]`)?.focus();
  };
  field.addEventListener("keydown", (e) => {
    if (e.key === "Enter") leave(field.value.trim());
    if (e.key === "Escape") { e.stopPropagation(); leave(""); }
  });
  field.addEventListener("blur", () => leave(field.value.trim()));
  return el("li", {}, field);
}
function drawChats() {
  const held = document.activeElement?.closest?.("#chats") && document.activeElement.dataset.focus;
  if (document.activeElement?.matches("#chats input")) return;  // under the person's hands
  const list = heads.filter((head) => !found || found.has(head.id)).sort((a, b) => b.updated - a.updated);
  $("chats").replaceChildren(...list.map((head) => head.id === renaming ? drawRenaming(head) : el("li", {},
    el("a", {class: "open", href: "#" + head.id, "aria-current": chat?.id === head.id ? "page" : null, "data-focus": head.id}, head.title, runs.has(head.id) && el("span", {class: "writing"}, el("span", {class: "sr"}, " (being answered)"))),
    button("more", "More for “" + head.title + "”", (e) => showMenu(head, e.currentTarget), {"aria-haspopup": "true", "data-focus": "more-" + head.id}))));
  $("chats").querySelector("input")?.select();
  $("none").hidden = list.length > 0 || !found;
  if (held) document.querySelector(`#chats [data-focus="${CSS.escape(held)}"]`)?.focus();
}
function showMenu(head, from) {
  const menu = $("menu-of-chat");
  menu.opener = from;
  menu.of = head.id;
  const act = (label, does) => el("button", {type: "button", onclick: () => { menu.hidePopover(); does(); }}, label);
  menu.replaceChildren(act("Rename", () => { renaming = head.id; drawChats(); }), act("Export as Markdown", () => exportMarkdown(head.id)), act("Export", () => exportChats([head.id])), act("Delete", () => remove(head)));
  menu.showPopover();
  menu.firstChild.focus();
}
$("menu-of-chat").addEventListener("keydown", (e) => {
  const step = {ArrowDown: 1, ArrowUp: -1}[e.key];
  if (!step) return;
  e.preventDefault();
  const all = [...e.currentTarget.children];
  all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
});
// Back to its button, which may have been drawn anew.
$("menu-of-chat").addEventListener("toggle", ({newState, target}) => {
  const lost = document.activeElement === document.body || target.contains(document.activeElement);
  if (newState === "closed" && lost) document.querySelector(`#chats [data-focus="more-${target.of}"]`)?.focus();
});
$("chats").addEventListener("click", (e) => { if (e.target.closest("a")) document.body.classList.remove("drawer"); });  // the open one, too

const open = async (id) => runs.get(id)?.c ?? (chat?.id === id ? chat : await stored(id));
async function stored(id) {
  const record = await store.get(id);
  return record && newConversation({...record, kept: true});
}
async function rename(id, name) {
  const c = await open(id);
  if (!c) return;
  Object.assign(c, {title: name, named: true, headed: true});
  noteHead(c);
  await keep(c);
  draw();
}
async function remove({id, title}) {
  if (!confirm("Delete “" + title + "”?")) return;
  await removeNow(id);
}
async function removeNow(id) {
  forget(id);
  await store.remove(id);
  tabs.postMessage({kind: "removed", id});
  $("input").focus();
}
// Deleted, here or in another tab.
function forget(id) {
  const c = runs.get(id)?.c ?? (chat?.id === id ? chat : null);
  if (c) {
    c.gone = true;
    runs.get(id)?.controller.abort("stopped");
  }
  heads = heads.filter((head) => head.id !== id);
  if (chat?.id === id) newChat(); else drawChats();
}
async function exportChats(ids) {
  const records = ids ? [await store.get(ids[0])] : await store.all();
  download(ids ? fileName(records[0].title, "json") : "nibble-conversations.json", exported(records), "application/json");
}
const fileName = (title, kind) => `nibble-${title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)}.${kind}`;
async function exportMarkdown(id) {
  const c = await open(id);
  download(fileName(c.title, "md"), asMarkdown(c), "text/markdown");
}
async function importChats(file) {
  const note = (text, problem) => { $("import-note").className = problem ? "invalid" : ""; $("import-note").textContent = text; say(text); };
  try {
    const list = imported(await file.text());
    for (const c of list) await store.add(c);
    tabs.postMessage({kind: "listed"});
    await loadHeads();
    note(`Imported ${list.length} conversation${list.length === 1 ? "" : "s"}.`);
    for (const c of list) if (c.id === chat?.id) hearSaved(byId(c.id));
  } catch (error) { note(`“${file.name}” was not imported: ${error.message}.`, true); }
}
$("export-all").addEventListener("click", () => exportChats(null));
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", async ({target}) => {
  for (const file of target.files) await importChats(file);
  target.value = "";
});
let search = 0;
$("find").addEventListener("input", () => {
  const mine = ++search;
  setTimeout(async () => {
    if (mine !== search) return;
    const text = $("find").value.trim();
    const ids = text ? await store.search(text) : null;
    if (mine !== search) return;
    found = ids;
    drawChats();
    if (found) say(`${found.size} found`);
  }, 120);
});
