"use strict";
// Markdown, LaTeX (KaTeX, as MathML, which screen readers read) and code (highlight.js) to nodes.

const linkable = (url) => /^(https?:\/\/|mailto:)/i.test(url);
const link = (href, said) => el("a", {href, target: "_blank", rel: "noopener noreferrer"}, ...said);
const footnote = /^ {0,3}\[\^([^[\]\s]+)\]: *(.*)$/;
let notes = new Set();  // the footnotes of the text that is being drawn
function inline(text, depth = 0) {
  const out = document.createDocumentFragment();
  const pattern = /\\\(([\s\S]+?)\\\)|\\\[([\s\S]+?)\\\]|\$\$([\s\S]+?)\$\$|(?<![\\$\w])\$([^\s$](?:[^$\n]*?[^\s$\\])?)\$(?![\d$])|\\([\\`*_{}[\]()#+\-.!|$~<>])|(`+)([\s\S]+?)\6(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s])?)\*\*|__([^\s_](?:[\s\S]*?[^\s])?)__(?!\w)|~~([\s\S]+?)~~|\*([^\s*](?:[^*]*?[^\s*])?)\*|(?<!\w)_([^\s_](?:[^_]*?[^\s_])?)_(?!\w)|(!?)\[([^[\]\n]*)\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)(?: +"[^"\n]*")?\)|(<br ?\/?>)|\[\^([^[\]\s]+)\]|(https?:\/\/[^\s<>()\[\]"'`]*[^\s<>()\[\]"'`.,;:!?])/g;
  let at = 0;
  for (const m of depth > 8 ? [] : text.matchAll(pattern)) {
    out.append(text.slice(at, m.index));
    at = m.index + m[0].length;
    const nested = (tag, inner) => el(tag, {}, inline(inner, depth + 1));
    if (m[1] ?? m[4]) out.append(math(m[1] ?? m[4], m[0], false));
    else if (m[2] ?? m[3]) out.append(math(m[2] ?? m[3], m[0], true));
    else if (m[5]) out.append(m[5]);
    else if (m[7] != null) out.append(el("code", {}, m[7].replace(/^ (.+) $/, "$1")));
    else if (m[8] ?? m[9]) out.append(nested("strong", m[8] ?? m[9]));
    else if (m[10]) out.append(nested("del", m[10]));
    else if (m[11] ?? m[12]) out.append(nested("em", m[11] ?? m[12]));
    else if (m[15] && (m[13] || (m[14] && linkable(m[15])))) {  // no picture is fetched: the page talks to its server only
      const said = m[13] ? [icon("image"), m[14] || "image"] : [inline(m[14], depth + 1)];
      out.append(linkable(m[15]) ? link(m[15], said) : el("span", {title: m[15]}, ...said));
    } else if (m[16]) out.append(el("br"));
    else if (notes.has(m[17])) out.append(el("button", {class: "ref", type: "button", "aria-label": "Footnote " + m[17], onclick: ({target}) => target.closest(".md").querySelector(`[data-note="${CSS.escape(m[17])}"]`)?.focus()}, m[17]));
    else if (m[18]) out.append(link(m[18], [m[18]]));
    else out.append(m[0]);
  }
  out.append(text.slice(at));
  return out;
}
// Browsers know no `mathvariant` but normal: letters of another alphabet are characters of their own. First A, 0, Α, α of each.
const kAlphabets = {
  bold: [0x1d400, 0x1d7ce, 0x1d6a8, 0x1d6c2], italic: [0x1d434, 0, 0x1d6e2, 0x1d6fc], "bold-italic": [0x1d468, 0, 0x1d71c, 0x1d736], script: [0x1d49c],
  "bold-script": [0x1d4d0], fraktur: [0x1d504], "double-struck": [0x1d538, 0x1d7d8], "bold-fraktur": [0x1d56c],
};
// Those that Unicode had before it had the alphabets.
const kOlderLetters = {
  0x1d455: "ℎ", 0x1d49d: "ℬ", 0x1d4a0: "ℰ", 0x1d4a1: "ℱ", 0x1d4a3: "ℋ", 0x1d4a4: "ℐ", 0x1d4a7: "ℒ", 0x1d4a8: "ℳ", 0x1d4ad: "ℛ", 0x1d4ba: "ℯ", 0x1d4bc: "ℊ", 0x1d4c4: "ℴ",
  0x1d506: "ℭ", 0x1d50b: "ℌ", 0x1d50c: "ℑ", 0x1d515: "ℜ", 0x1d51d: "ℨ", 0x1d53a: "ℂ", 0x1d53f: "ℍ", 0x1d545: "ℕ", 0x1d547: "ℙ", 0x1d548: "ℚ", 0x1d549: "ℝ", 0x1d551: "ℤ",
};
function letterOf([latin, digit, capital, small], letter) {
  const from = (first, base) => (first ? kOlderLetters[first + letter.codePointAt(0) - base] ?? String.fromCodePoint(first + letter.codePointAt(0) - base) : letter);
  if (/[A-Z]/.test(letter)) return from(latin, 0x41);
  if (/[a-z]/.test(letter)) return from(latin + 26, 0x61);
  if (/[0-9]/.test(letter)) return from(digit, 0x30);
  if (/[Α-Ω]/.test(letter)) return from(capital, 0x391);
  return /[α-ω]/.test(letter) ? from(small, 0x3b1) : letter;
}
function spellAlphabets(node) {
  for (const leaf of node.querySelectorAll("[mathvariant]")) {
    const alphabet = kAlphabets[leaf.getAttribute("mathvariant")];
    if (!alphabet || leaf.firstElementChild) continue;
    leaf.textContent = Array.from(leaf.textContent, (letter) => letterOf(alphabet, letter)).join("");
    leaf.removeAttribute("mathvariant");
  }
}
// Nor do they heed how a table's columns are set. (`right` alone would move no block, and formulas are blocks.)
function alignColumns(node) {
  for (const table of node.querySelectorAll("mtable[columnalign]")) {
    const [align, space, line] = ["columnalign", "columnspacing", "columnlines"].map((name) => (table.getAttribute(name) ?? "").split(" "));
    for (const row of table.children) {
      [...row.children].forEach((cell, n) => {
        if (align[n] && align[n] !== "center") cell.style.textAlign = "-webkit-" + align[n];
        if (n) cell.style.paddingLeft = `calc(${space[n - 1] || space.at(-1) || "1em"} / 2)`;
        if (n + 1 < row.children.length) cell.style.paddingRight = `calc(${space[n] || space.at(-1) || "1em"} / 2)`;
        if (line[n] === "solid") cell.style.borderRight = "1px solid";
      });
    }
  }
}
// TeX as MathML; what KaTeX does not understand stays as it was written.
const drawn_math = new Map();
function math(tex, source, display) {
  const key = (display ? "[" : "(") + tex;
  if (!drawn_math.has(key)) {
    const node = el("span", display ? {class: "math", tabindex: 0} : {});
    try {
      katex.render(tex, node, {displayMode: display, output: "mathml", strict: "ignore", maxSize: 20, maxExpand: 500});
      spellAlphabets(node);
      alignColumns(node);
    } catch { node.replaceChildren(el("code", {}, source)); }
    if (drawn_math.size > 2000) drawn_math.clear();
    drawn_math.set(key, node);
  }
  return drawn_math.get(key).cloneNode(true);
}
const kLongestColoured = 20000;  // characters; above, colours cost more than they tell
// highlight.js answers with markup: only its spans and entities are read, so that even there text stays text.
function coloured(language, text) {
  if (!language || text.length > kLongestColoured || !hljs.getLanguage(language)) return [text];
  const entities = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#x27;": "'"};
  const root = el("code");
  let at = root;
  for (const [piece] of hljs.highlight(language, text, true).value.matchAll(/<span class="[\w -]*">|<\/span>|[^<]+|</g)) {
    if (piece === "</span>") at = at.parentNode ?? root;
    else if (piece.startsWith("<span ")) at = at.appendChild(el("span", {class: piece.slice(13, -2)}));
    else at.append(piece.replace(/&(?:lt|gt|amp|quot|#x27);/g, (entity) => entities[entity]));
  }
  return root.textContent === text ? [...root.childNodes] : [text];
}
function codeBlock(language, text) {
  const copy = el("button", {type: "button", onclick: () => copyText(text, copy)}, "Copy");
  return el("div", {class: "code"}, el("div", {class: "bar"}, el("span", {}, language || "text"), copy), el("pre", {tabindex: 0}, el("code", {}, ...coloured(language.toLowerCase(), text))));
}
// The lines of a formula that begins at lines[i]: $$ … $$ or \[ … \], and nothing else beside it.
const formula = /^ {0,3}(\$\$|\\\[)/;
function displayMath(lines, i) {
  const m = formula.exec(lines[i]);
  if (!m) return null;
  const end = m[1] === "$$" ? "$$" : "\\]";
  for (let j = i, tex = ""; j < lines.length; j++) {
    const line = j > i ? lines[j] : lines[i].slice(m[0].length);
    const at = line.indexOf(end);
    if (at < 0) {
      if (j > i && (formula.exec(line)?.[1] === "\\[" || (!line.trim() && end === "$$"))) return null;
      tex += line + "\n";
    } else {
      tex += line.slice(0, at);
      return line.slice(at + 2).trim() || !tex.trim() ? null : {tex, next: j + 1};
    }
  }
  return null;
}
// Patterns that try each place for each end would take minutes for a long run of blanks, which models do write.
const isDivider = (line) => line.trim().replace(/^\||\|$/g, "").split("|").every((cell) => /^:?-+:?$/.test(cell.trim()));
function heading(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end--;
  return text.slice(0, end).trimEnd();
}
const item = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
// `begins(i)` hears at which line each node begins.
function blocks(lines, depth = 0, begins = () => {}) {
  const out = document.createDocumentFragment();
  if (depth > 12) { out.append(el("p", {}, lines.join("\n"))); return out; }
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    let m;
    if (!line.trim()) { i++; continue; }
    begins(i);
    if ((m = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/.exec(line))) {
      const body = [];
      for (i++; i < lines.length && !(lines[i].trim().startsWith(m[1]) && !lines[i].trim().replaceAll(m[1][0], "")); i++) body.push(lines[i]);
      i++;
      out.append(codeBlock(m[2], body.join("\n")));
    } else if ((m = /^ {0,3}(#{1,6}) +(.*)$/.exec(line))) {
      out.append(el("h" + Math.min(4, m[1].length), {}, inline(heading(m[2]))));
      i++;
    } else if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) {
      out.append(el("hr"));
      i++;
    } else if ((m = displayMath(lines, i))) {
      out.append(math(m.tex, "\\[" + m.tex + "\\]", true));
      i = m.next;
    } else if (/^ {0,3}>/.test(line)) {
      const body = [];
      for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) body.push(lines[i].replace(/^ {0,3}> ?/, ""));
      out.append(el("blockquote", {}, blocks(body, depth + 1)));
    } else if (line.includes("|") && i + 1 < lines.length && isDivider(lines[i + 1])) {
      const cells = (row) => row.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((c) => c.trim().replaceAll("\\|", "|"));
      const head = el("tr", {}, ...cells(line).map((c) => el("th", {scope: "col"}, inline(c))));
      const body = el("tbody");
      for (i += 2; i < lines.length && lines[i].includes("|"); i++) body.append(el("tr", {}, ...cells(lines[i]).map((c) => el("td", {}, inline(c)))));
      out.append(el("div", {class: "table", tabindex: 0}, el("table", {}, el("thead", {}, head), body)));
    } else if ((m = item.exec(line)) && m[1].length < 4) {
      const ordered = /\d/.test(m[2]);
      const list = el(ordered ? "ol" : "ul", ordered && parseInt(m[2]) !== 1 ? {start: parseInt(m[2])} : {});
      while (i < lines.length && (m = item.exec(lines[i])) && m[1].length < 4 && /\d/.test(m[2]) === ordered) {
        const indent = m[1].length + m[2].length + Math.max(1, Math.min(4, m[3].length));
        const task = /^\[([ xX])\] +/.exec(m[4]);
        const body = [m[4].slice(task?.[0].length ?? 0)];
        for (i++; i < lines.length; i++) {
          const next = lines[i];
          const lead = next.length - next.trimStart().length;
          if (!next.trim()) { if (!(lines[i + 1] ?? "").startsWith("  ")) break; body.push(""); continue; }
          if (lead < 2 && (item.test(next) || body.at(-1) === "" || /^ {0,3}(`{3}|#|>)/.test(next))) break;
          body.push(next.slice(Math.min(lead, indent)));
        }
        while (i < lines.length && !lines[i].trim() && item.test(lines[i + 1] ?? "")) i++;
        const inner = blocks(body, depth + 1);
        const only = inner.firstElementChild;
        if (only?.tagName === "P") only.replaceWith(...only.childNodes);
        list.append(el("li", task ? {class: "task"} : {}, task && el("input", {type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": task[1] === " " ? "To do" : "Done"}), inner));
      }
      out.append(list);
    } else if ((m = footnote.exec(line))) {
      const body = [m[2]];
      for (i++; i < lines.length && /^ {2,}\S/.test(lines[i]); i++) body.push(lines[i].trim());
      out.append(el("p", {class: "footnote", "data-note": m[1], tabindex: -1}, el("sup", {}, m[1]), " ", inline(body.join("\n"))));
    } else {
      const body = [];
      for (; i < lines.length && lines[i].trim() && !(body.length && /^ {0,3}(`{3,}|~{3,}|#{1,6} |>|[-*+] |1[.)] |\$\$|\\\[|\[\^[^[\]\s]+\]:)/.test(lines[i])); i++) body.push(lines[i].trimStart());
      const p = el("p");
      body.forEach((text, n) => {
        const marked = text.endsWith("\\");
        if (marked || text.endsWith("  ")) body[n] = (marked ? text.slice(0, -1) : text.trimEnd()) + "\u0000";
      });
      body.join("\n").split("\u0000\n").forEach((part, n) => p.append(...(n ? [el("br")] : []), inline(part.replaceAll("\u0000", ""))));
      out.append(p);
    }
  }
  return out;
}
// Draws `text` into `node`, where the beginning of it may stand already: a growing text draws its last two blocks anew.
function drawMarkdown(node, text) {
  if (node.text === text) return;
  const lines = text.replace(/\r\n?/g, "\n").replaceAll("\t", "    ").replaceAll("\u0000", "").split("\n");
  notes = new Set(lines.map((line) => footnote.exec(line)?.[1]).filter(Boolean));
  const grown = node.text && text.startsWith(node.text) && notes.size === node.notes;  // a new one draws what refers to it anew
  const starts = grown ? node.starts.slice(0, -2) : [];
  const from = grown ? node.starts.at(-2) ?? 0 : 0;
  while (node.childNodes.length > starts.length) node.lastChild.remove();
  node.append(blocks(lines.slice(from), 0, (i) => starts.push(from + i)));
  Object.assign(node, {text, starts, notes: notes.size});
}
