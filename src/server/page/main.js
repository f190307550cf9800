"use strict";
// The address (#ID is a conversation), the composer, the keyboard; and the start.

let attached = [];  // {name, text}: goes with the next message

async function route() {
  const id = location.hash.slice(1);
  let c = null, missing = false;
  if (id) {
    try { c = await open(id); } catch { /* no storage: said below */ }
    missing = !c;
  }
  if (location.hash.slice(1) !== id) return;  // gone on meanwhile
  chat = c ?? null;
  editing = "";
  page_notice = missing ? {text: "This browser has no such conversation. It may have been deleted."} : null;
  document.body.classList.remove("drawer");
  if (chat) { noteHead(chat); findWriter(chat); }
  draw();
  toEnd();
  $("input").focus();
}
addEventListener("hashchange", route);
function newChat() {
  if (location.hash) history.pushState(null, "", location.pathname + location.search);
  route();
}

// ---- The composer ----
function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = input.scrollHeight + "px";
  drawSend();
}
function drawAttached() {
  $("files").hidden = !attached.length;
  $("files").replaceChildren(...attached.map((file) => el("li", {}, icon("file"), el("span", {}, file.name), el("small", {}, size(file.text)),
    button("close", `Remove “${file.name}”`, () => { attached = attached.filter((other) => other !== file); drawAttached(); $("input").focus(); }))));
  drawSend();
}
async function attach(files) {
  page_notice = null;
  const problems = [];
  for (const file of files) {
    try { attached.push({name: file.name, text: await readText(file)}); } catch (error) { problems.push(error.message); }
  }
  if (problems.length) warn(problems.join(" ")); else say(`${attached.length} attached`);
  drawAttached();
  $("input").focus();
}
$("attach").addEventListener("click", () => $("pick").click());
$("pick").addEventListener("change", async ({target}) => { await attach(target.files); target.value = ""; });
$("input").addEventListener("paste", (e) => { if (e.clipboardData.files.length && !e.clipboardData.getData("text/plain")) { e.preventDefault(); attach(e.clipboardData.files); } });
addEventListener("dragover", (e) => { if (e.dataTransfer.types.includes("Files")) e.preventDefault(); });
addEventListener("drop", (e) => { if (e.dataTransfer.files.length) { e.preventDefault(); attach(e.dataTransfer.files); } });
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!isBusy(chat)) $("composer").requestSubmit(); } });
$("composer").addEventListener("submit", (e) => {
  e.preventDefault();
  if (isBusy(chat)) { stop(chat); return; }
  const text = $("input").value.trim();
  const files = attached;
  if (!text && !files.length) return;
  $("input").value = "";
  attached = [];
  page_notice = null;
  if (!chat) {
    chat = newConversation({system: own_draft});
    own_draft = "";
    history.pushState(null, "", "#" + chat.id);
  }
  ask(chat, text, files);
  noteHead(chat);
  drawAttached();
  drawChats();
  grow();
});

// ---- Buttons and keys ----
$("new").addEventListener("click", newChat);
$("menu").addEventListener("click", () => { document.body.classList.add("drawer"); $("close-side").focus(); });
for (const id of ["close-side", "veil"]) $(id).addEventListener("click", () => { document.body.classList.remove("drawer"); $("menu").focus(); });
addEventListener("keydown", (e) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
  if ($("settings").open || document.querySelector(":popover-open")) return;
  if (e.key === "Escape" && document.body.classList.contains("drawer")) document.body.classList.remove("drawer");
  else if (e.key === "Escape" && isBusy(chat)) stop(chat);
  else if (e.key === "/" && !typing) { e.preventDefault(); $("input").focus(); }
  else if (e.altKey && e.code === "KeyN") { e.preventDefault(); newChat(); }
  else if (e.altKey && e.code === "KeyR") { e.preventDefault(); if (chat) again(chat); }
  else if (e.altKey && e.code === "Comma") { e.preventDefault(); showSettings(); }
});

applyTheme();
drawSettings();
draw();
probe();
$("input").focus();
route().then(loadHeads).catch(() => warn("This browser stores nothing for this page: conversations are lost when the tab closes."));
