// A small part of Markdown as elements: headings, paragraphs, lists, code, bold, italic. Made of createElement and text
// alone, so that whatever a model writes is shown and nothing of it runs. Links and HTML stay text.

// Lists in lists: as deep as anybody reads.
const MOST_DEPTH = 8;
// Spans are short: what does not end soon was no beginning, and long answers stay quick.
const INLINE = new RegExp(
  "(`{1,8})(?!`)([^]{1,1000}?)(?<!`)\\1(?!`)" +
    "|\\*\\*(?=\\S)([^]{1,400}?)(?<=\\S)\\*\\*" +
    "|\\*(?=[^\\s*])([^*]{1,400}?)(?<=\\S)\\*" +
    "|(?<![\\w_])_(?=[^\\s_])([^_]{1,400}?)(?<=\\S)_(?![\\w_])",
  "g",
);
const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^ {0,3}(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;

function element(name, ...children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, match.index));
    end = match.index + match[0].length;
    const [, , code, bold, star, underscore] = match;
    if (code !== undefined) nodes.push(element("code", code.replace(/^ (.*[^ ].*) $/s, "$1")));
    else if (bold !== undefined) nodes.push(element("strong", ...inline(bold)));
    else nodes.push(element("em", ...inline(star ?? underscore)));
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== "");
}

// The code behind a fence, to its other end or to that of the text: an answer that streams has no other end yet.
function takeFence(lines, at) {
  const [, mark, info] = lines[at].match(FENCE);
  const code = [];
  let next = at + 1;
  while (next < lines.length) {
    const line = lines[next++];
    const closes = line.trim().length >= mark.length && line.trim() === mark[0].repeat(line.trim().length);
    if (closes) break;
    code.push(line);
  }
  const pre = element("pre", element("code", code.join("\n")));
  pre.tabIndex = 0;
  if (info.trim()) pre.setAttribute("aria-label", `Code: ${info.trim()}`);
  return [pre, next];
}

function takeList(lines, at, depth) {
  const first = lines[at].match(ITEM);
  const isNumbered = first[2] !== undefined;
  const list = element(isNumbered ? "ol" : "ul");
  if (isNumbered && Number(first[2]) !== 1) list.start = Number(first[2]);
  let next = at;
  while (next < lines.length) {
    const item = lines[next].match(ITEM);
    if (!item || (item[2] !== undefined) !== isNumbered) break;
    const inner = [item[3]];
    ++next;
    while (next < lines.length) {
      const line = lines[next];
      const goesOn = /^(?: {2,}|\t)\S/.test(line) || (line.trim() === "" && /^(?: {2,}|\t)\S/.test(lines[next + 1] ?? ""));
      if (!goesOn) break;
      inner.push(line.replace(/^(?: {1,4}|\t)/, ""));
      ++next;
    }
    // A blank line between items does not end the list.
    if (lines[next]?.trim() === "" && ITEM.test(lines[next + 1] ?? "")) ++next;
    const blocks = parse(inner, depth + 1);
    const isPlain = blocks[0]?.tagName === "P";
    list.append(element("li", ...(isPlain ? [...blocks[0].childNodes, ...blocks.slice(1)] : blocks)));
  }
  return [list, next];
}

function startsBlock(line, depth) {
  return line.trim() === "" || FENCE.test(line) || HEADING.test(line) || (depth < MOST_DEPTH && ITEM.test(line));
}

function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const heading = line.match(HEADING);
    if (line.trim() === "") {
      ++at;
    } else if (FENCE.test(line)) {
      const [block, next] = takeFence(lines, at);
      blocks.push(block);
      at = next;
    } else if (heading) {
      // Below the page's own headings.
      blocks.push(element(`h${Math.min(6, heading[1].length + 2)}`, ...inline(heading[2])));
      ++at;
    } else if (depth < MOST_DEPTH && ITEM.test(line)) {
      const [block, next] = takeList(lines, at, depth);
      blocks.push(block);
      at = next;
    } else {
      const text = [lines[at++]];
      while (at < lines.length && !startsBlock(lines[at], depth)) text.push(lines[at++]);
      blocks.push(element("p", ...inline(text.join("\n"))));
    }
  }
  return blocks;
}

// Elements for the text, for replaceChildren.
export function markdown(text) {
  return parse(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}
