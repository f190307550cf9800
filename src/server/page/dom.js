"use strict";
// What every part of the page needs: nodes, words for screen readers, the clipboard, files.

const $ = (id) => document.getElementById(id);
const icons = {
  copy: "M9 9h10v10H9zM5 15V5h10", edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3", again: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  right: "M9 6l6 6-6 6", left: "M15 6l-6 6 6 6", tool: "M14 7a4 4 0 0 0 5 5l-8 8-4-4 8-8a4 4 0 0 1-1-1ZM15 6l3-3",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9h.01", go: "M8 5l11 7-11 7z", trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13", more: "M6 12h.01M12 12h.01M18 12h.01", file: "M7 3h7l4 4v14H7zM14 3v4h4", close: "M6 6l12 12M18 6L6 18",
};

// Nodes are made here and nowhere by markup: a model's text is only ever text.
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.filter((c) => c != null && c !== false));
  return node;
}
function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", icons[name]);
  svg.append(path);
  return svg;
}
const button = (name, label, onclick, props = {}) => el("button", {class: "icon", type: "button", title: label, "aria-label": label, onclick, ...props}, icon(name));
const say = (text) => { $("say").textContent = text; };
const number = new Intl.NumberFormat("en");
const rate = (speed) => `${speed < 100 ? speed.toFixed(1) : number.format(Math.round(speed))} tok/s`;

// Not crypto.randomUUID: a page of a plain http:// address in the house has none.
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");

async function copyText(text, from) {
  try { await navigator.clipboard.writeText(text); } catch {
    const area = el("textarea", {class: "sr"}, text);  // no clipboard outside https
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    from?.focus();
  }
  say("Copied.");
  if (from?.textContent === "Copy") { from.textContent = "Copied"; setTimeout(() => { from.textContent = "Copy"; }, 1400); }
}

function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  const link = el("a", {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// A text of a file that a person picked, dropped or pasted; throws an Error that says what is wrong with it.
const kLongestFile = 2 * 1024 * 1024;
async function readText(file) {
  if (file.type.startsWith("image/")) throw new Error(`“${file.name}” is an image, and the model reads text only.`);
  if (file.size > kLongestFile) throw new Error(`“${file.name}” is longer than 2 MiB.`);
  const bytes = await file.arrayBuffer();
  let text;
  try { text = new TextDecoder("utf-8", {fatal: true}).decode(bytes); } catch { throw new Error(`“${file.name}” is not a text file in UTF-8.`); }
  if (text.includes("\u0000")) throw new Error(`“${file.name}” is not a text file.`);
  return text;
}
