"use strict";
// What the person set, for all conversations: in localStorage, shared by the tabs.

const kDefaults = {effort: "medium", temperature: 1, top_p: 1, top_k: "", min_p: 0, seed: "", max_tokens: "", system: "", tools: "", key: "", theme: ""};
const kSampling = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];
function storedSettings() {
  try {
    const stored = JSON.parse(localStorage.getItem("nibble.settings")) ?? {};
    return Object.fromEntries(Object.entries(stored).filter(([name, value]) => typeof value === typeof kDefaults[name] || (name in kDefaults && typeof value === "number")));
  } catch { return {}; }
}
const settings = {...kDefaults, ...storedSettings()};
// One at a time: another tab may have set others.
function set(name, value) {
  settings[name] = value;
  try { localStorage.setItem("nibble.settings", JSON.stringify({...storedSettings(), [name]: value})); } catch { say("This browser keeps no settings."); }
}
addEventListener("storage", (e) => {
  if (e.key !== "nibble.settings") return;
  Object.assign(settings, storedSettings());
  applyTheme();
  drawSettings();
});

function tools() {
  if (!settings.tools.trim()) return [];
  const list = JSON.parse(settings.tools);
  if (!Array.isArray(list)) throw new SyntaxError("want a list");
  return list.map((t) => t?.type === "function" ? t : {type: "function", function: t});
}
function checkTools() {
  let problem = "";
  try { tools(); } catch (error) { problem = "This is not a JSON list of functions: " + error.message; }
  $("tools-note").className = problem ? "invalid" : "";
  $("tools-note").textContent = problem || "A JSON list of functions, as in the API. You play the tool: the page asks you for each result.";
}
function applyTheme() {
  const dark = settings.theme ? settings.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
function drawSettings() {
  for (const field of document.querySelectorAll("[data-setting]")) if (field !== document.activeElement || field.type === "range") field.value = settings[field.dataset.setting];
  for (const shown of document.querySelectorAll("output[data-of]")) shown.textContent = Number(settings[shown.dataset.of]).toFixed(2);
  const changed = kSampling.filter((name) => String(settings[name]) !== String(kDefaults[name])).length;
  $("sampling").classList.toggle("changed", changed > 0);
  $("sampling-changed").textContent = changed ? `, ${changed} changed` : "";
  checkTools();
}
function showSettings(name) {
  document.body.classList.remove("drawer");
  drawSettings();
  $("settings").showModal();
  document.querySelector(`#settings [data-setting="${name}"]`)?.select();
}
// Instructions of the open conversation, or of the one that begins with the next message.
let own_draft = "";
function drawOwn() {
  const text = chat ? chat.system ?? "" : own_draft;
  if ($("own-text") !== document.activeElement) $("own-text").value = text;
  $("own").classList.toggle("changed", text.trim() !== "");
}
$("own-text").addEventListener("input", ({target}) => {
  if (chat) {
    Object.assign(chat, {system: target.value, headed: true});
    keepSoon(chat);
  } else own_draft = target.value;
  drawOwn();
});

document.addEventListener("input", ({target}) => {
  const name = target.dataset.setting;
  if (!name || !target.validity.valid) return;
  set(name, target.type === "range" ? Number(target.value) : target.value);
  drawSettings();
});
$("sampling-reset").addEventListener("click", () => {
  for (const name of kSampling) set(name, kDefaults[name]);
  drawSettings();
});
// A panel stands over its button, within the window.
for (const panel of document.querySelectorAll("[popover]")) {
  panel.addEventListener("toggle", (e) => {
    if (e.newState !== "open") return;
    const from = (panel.opener ?? document.querySelector(`[popovertarget="${panel.id}"]`)).getBoundingClientRect();
    const below = from.top < innerHeight / 2;
    panel.style.left = Math.max(8, Math.min(from.left, innerWidth - panel.offsetWidth - 8)) + "px";
    panel.style.top = Math.max(8, below ? from.bottom + 6 : from.top - panel.offsetHeight - 6) + "px";
  });
}
$("settings").addEventListener("close", () => { probe(); $("input").focus(); });
$("settings").addEventListener("click", (e) => { if (e.target === $("settings")) $("settings").close(); });
$("settings").addEventListener("keydown", (e) => { if (e.key === "Enter" && e.target.type === "password") { e.preventDefault(); $("settings").close(); } });
$("open-settings").addEventListener("click", () => showSettings());
$("theme").addEventListener("click", () => { set("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark"); applyTheme(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
