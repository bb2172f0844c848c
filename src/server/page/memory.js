// The heads' memory of one conversation under one plan: a grid of layers x heads, a table, and totals. The numbers are
// the server's (GET /v1/plans/{name}/heads), asked for again as the text grows.
import { ask } from "./api.js";

// Least time between two questions, in milliseconds.
const LEAST_PAUSE = 250;

export function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    ++unit;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

function formatNumber(value) {
  return value.toLocaleString("en");
}

function element(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export class MemoryView {
  // `root`: a .memory of the template.
  constructor(root) {
    this.root = root;
    this.grid = root.querySelector(".cells");
    this.readout = root.querySelector(".readout");
    this.table = root.querySelector("table");
    this.cells = [];
    this.heads = null;  // what the server said last
    this.wanted = null;
    this.isAsking = false;
    this.lastAsked = -Infinity;
    this.pointed = null;  // {layer, head} that the readout tells of
    this.grid.addEventListener("keydown", (event) => this.onKey(event));
    root.querySelector(".alternative").addEventListener("toggle", () => this.fillTable());
  }

  // {plan, model, tokens, promptTokens, maxTokens}. Of several that come soon after one another the last is asked for.
  show(text) {
    this.wanted = text;
    this.askSoon();
  }

  setSpeed(tokensPerSecond) {
    this.set(".speed", tokensPerSecond === null ? "-" : tokensPerSecond.toFixed(1));
  }

  set(selector, text) {
    const node = this.root.querySelector(selector);
    if (node.textContent !== text) node.textContent = text;
  }

  askSoon() {
    if (this.isAsking || this.wanted === null) return;
    this.isAsking = true;
    setTimeout(() => this.askNow(), Math.max(0, this.lastAsked + LEAST_PAUSE - performance.now()));
  }

  async askNow() {
    const text = this.wanted;
    this.wanted = null;
    this.lastAsked = performance.now();
    const query = new URLSearchParams({ tokens: text.tokens, model: text.model });
    if (text.promptTokens) query.set("prompt_tokens", text.promptTokens);
    if (text.maxTokens) query.set("max_tokens", Math.max(text.maxTokens, text.tokens));
    try {
      this.draw(await ask(`/v1/plans/${encodeURIComponent(text.plan)}/heads?${query}`));
    } catch (error) {
      this.readout.textContent = error.message;
    }
    this.isAsking = false;
    this.askSoon();
  }

  draw(heads) {
    const numLayers = heads.kept_tokens.length;
    const numHeads = heads.kept_tokens[0]?.length ?? 0;
    if (this.cells.length !== numLayers || this.cells[0]?.length !== numHeads) this.build(numLayers, numHeads);
    this.heads = heads;
    for (let layer = 0; layer < numLayers; ++layer) {
      for (let head = 0; head < numHeads; ++head) this.drawCell(layer, head);
    }
    const total = heads.total;
    const share = total.kv_bytes_all_full > 0 ? total.kv_bytes / total.kv_bytes_all_full : 0;
    const percent = `${(100 * share).toFixed(1)}%`;
    this.set(".tokens", formatNumber(heads.tokens));
    this.set(".bytes", formatBytes(total.kv_bytes));
    this.set(".all-full", formatBytes(total.kv_bytes_all_full));
    this.set(".given-back", `${formatNumber(total.pages_given_back)} of ${formatNumber(total.pages_given_back + total.pages)}`);
    this.set(".short", `${formatBytes(total.kv_bytes)} of ${formatBytes(total.kv_bytes_all_full)}`);
    const bar = this.root.querySelector(".share");
    bar.setAttribute("aria-label", `${percent} of the bytes that every head full would take`);
    bar.style.setProperty("--share", percent);
    this.tellPointed();
    this.fillTable();
  }

  build(numLayers, numHeads) {
    this.grid.style.setProperty("--heads", numHeads);
    this.grid.classList.toggle("many", numLayers > 20);
    this.grid.setAttribute("aria-label", `Tokens that each KV head holds: ${numLayers} layers, ${numHeads} heads`);
    this.grid.setAttribute("aria-rowcount", numLayers);
    this.grid.setAttribute("aria-colcount", numHeads);
    this.pointed = null;
    this.cells = [];
    const rows = [];
    for (let layer = 0; layer < numLayers; ++layer) {
      const row = element("div", "row");
      row.setAttribute("role", "row");
      // Many layers are labelled now and then: their rows are lower than a line of text.
      const label = element("span", "label", numLayers <= 20 || layer % 8 === 0 ? String(layer) : "");
      label.setAttribute("aria-hidden", "true");
      const cells = [];
      for (let head = 0; head < numHeads; ++head) {
        const cell = element("span", "cell");
        cell.setAttribute("role", "gridcell");
        cell.tabIndex = layer === 0 && head === 0 ? 0 : -1;
        cell.addEventListener("pointerenter", () => this.point(layer, head));
        cell.addEventListener("focus", () => this.point(layer, head));
        cells.push(cell);
      }
      row.append(label, ...cells);
      rows.push(row);
      this.cells.push(cells);
    }
    this.grid.replaceChildren(...rows);
    this.readout.textContent = "Rows are layers, columns KV heads; point at one to read it.";
  }

  drawCell(layer, head) {
    const cell = this.cells[layer][head];
    const kept = this.heads.kept_tokens[layer][head];
    const share = this.heads.tokens > 0 ? kept / this.heads.tokens : 0;
    cell.classList.toggle("holds", kept > 0);
    cell.style.setProperty("--share", `${(100 * share).toFixed(1)}%`);
    cell.setAttribute("aria-label", this.textOf(layer, head));
  }

  textOf(layer, head) {
    const { heads } = this;
    const rule = heads.rules[heads.rule_of[layer][head]];
    return (
      `layer ${layer}, head ${head} (${rule}): ${formatNumber(heads.kept_tokens[layer][head])} of ` +
      `${formatNumber(heads.tokens)} tokens, ${formatBytes(heads.kv_bytes[layer][head])}`
    );
  }

  point(layer, head) {
    this.pointed = { layer, head };
    this.tellPointed();
  }

  tellPointed() {
    if (this.pointed === null || this.heads === null) return;
    this.readout.textContent = this.textOf(this.pointed.layer, this.pointed.head);
  }

  // One cell is a stop of the Tab key, and arrows move it.
  onKey(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const ends = { Home: 0, End: this.cells[0]?.length - 1 };
    if (!move && !(event.key in ends)) return;
    event.preventDefault();
    const row = this.cells.findIndex((cells) => cells.includes(event.target));
    if (row < 0) return;
    const column = this.cells[row].indexOf(event.target);
    const clamp = (value, size) => Math.min(size - 1, Math.max(0, value));
    const next = this.cells[clamp(row + (move?.[0] ?? 0), this.cells.length)][
      move ? clamp(column + move[1], this.cells[row].length) : ends[event.key]
    ];
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  fillTable() {
    if (this.heads === null || !this.root.querySelector(".alternative").open) return;
    const { heads } = this;
    const header = element("tr");
    for (const text of ["Layer", "Head", "Rule", "Tokens", "Bytes"]) {
      const cell = element("th", "", text);
      cell.scope = "col";
      header.append(cell);
    }
    const head = element("thead");
    head.append(header);
    const body = element("tbody");
    heads.kept_tokens.forEach((row, layer) =>
      row.forEach((tokens, index) => {
        const line = element("tr");
        const name = element("th", "", String(layer));
        name.scope = "row";
        line.append(
          name,
          element("td", "", String(index)),
          element("td", "", heads.rules[heads.rule_of[layer][index]]),
          element("td", "", formatNumber(tokens)),
          element("td", "", formatBytes(heads.kv_bytes[layer][index])),
        );
        body.append(line);
      }),
    );
    this.table.replaceChildren(head, body);
  }
}
