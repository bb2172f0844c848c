// The page: conversations and settings at the side, one column or two, and the message that is written.
import { apiKey, ask, setApiKey } from "./api.js";
import { Column } from "./chat.js";
import * as store from "./store.js";

const { settings } = store;
const byId = (id) => document.getElementById(id);
const FIELDS = ["system", "temperature", "top_p", "max_tokens", "seed"];
const THEMES = ["system", "light", "dark"];
const NARROW = matchMedia("(max-width: 760px)");

const models = new Map();
let plans = [];  // as GET /v1/plans lists them
let columns = [];
let conversations = [];
let current = null;

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = text === "";
}

function say(text) {
  byId("status").textContent = text;
}

function save(conversation = current) {
  const isKept = store.saveSettings() && (conversation.turns.length === 0 || store.saveConversation(conversation));
  if (!isKept) notice("The browser has no room left: delete conversations, or this one is lost with the tab.");
}

const isStreaming = () => columns.some((column) => column.isStreaming);

// ---- models and plans ----

function option(value, text) {
  const node = document.createElement("option");
  node.value = value;
  node.textContent = text;
  return node;
}

function fillPlans() {
  const ofModel = plans.filter((plan) => plan.model === settings.model);
  columns.forEach((column, index) => {
    column.planSelect.replaceChildren(
      ...ofModel.map((plan) => option(plan.id, plan.is_default ? `${plan.id} (default)` : plan.id)),
    );
    // Side by side two are compared that differ, where there are two.
    const wanted =
      ofModel.find((plan) => plan.id === settings.plans[index]) ??
      (index === 0 ? ofModel.find((plan) => plan.is_default) : ofModel.find((plan) => plan.id !== columns[0].plan)) ??
      ofModel[0];
    column.planSelect.value = wanted.id;
  });
}

function noteFormat() {
  const model = models.get(settings.model);
  notice(
    model.headwise.chat_format === null
      ? `${model.id} has no chat format: it goes on from your plain text, through /v1/completions.`
      : "",
  );
}

async function loadServer() {
  const [listedModels, listedPlans] = await Promise.all([ask("/v1/models"), ask("/v1/plans")]);
  models.clear();
  for (const model of listedModels.data) models.set(model.id, model);
  plans = listedPlans.data;
  byId("model").replaceChildren(...listedModels.data.map((model) => option(model.id, model.id)));
  if (!models.has(settings.model)) settings.model = listedModels.data[0].id;
  byId("model").value = settings.model;
}

async function start() {
  try {
    await loadServer();
  } catch (error) {
    notice(error.status === 401 ? "This server asks for an API key." : `The server does not answer: ${error.message}`);
    byId("send").disabled = true;
    byId("regenerate").disabled = true;
    if (error.status === 401) {
      byId("access").open = true;
      if (!NARROW.matches) byId("key").focus();
    }
    return;
  }
  noteFormat();
  makeColumns();
}

// ---- columns ----

function makeColumns() {
  columns = Array.from({ length: settings.compare ? 2 : 1 }, (_, index) => new Column(index, models));
  fillPlans();
  columns.forEach((column, index) => {
    column.root.setAttribute("aria-label", settings.compare ? `Plan ${index + 1} of 2` : "Conversation");
    column.root.querySelector(".memory").open = !NARROW.matches;
    column.planSelect.addEventListener("change", () => {
      settings.plans[index] = column.plan;
      save();
      column.showMemory();
    });
  });
  byId("columns").className = settings.compare ? "two" : "one";
  byId("columns").replaceChildren(...columns.map((column) => column.root));
  byId("compare").setAttribute("aria-pressed", String(settings.compare));
  drawConversation();
}

function drawConversation() {
  for (const column of columns) column.draw(current);
  showButtons();
}

function showButtons() {
  const isBusy = isStreaming();
  byId("send").hidden = isBusy;
  byId("send").disabled = columns.length === 0;
  byId("stop").hidden = !isBusy;
  byId("regenerate").disabled = isBusy || current.turns.length === 0 || columns.length === 0;
}

// ---- conversations ----

function drawList() {
  const items = conversations.map((conversation) => {
    const title = store.titleOf(conversation);
    const open = document.createElement("button");
    open.type = "button";
    open.className = "open";
    open.textContent = title;
    if (conversation === current) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => openConversation(conversation));
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "delete";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Delete: ${title}`);
    remove.addEventListener("click", () => deleteConversation(conversation));
    const item = document.createElement("li");
    item.append(open, remove);
    return item;
  });
  byId("conversations").replaceChildren(...items);
}

// What streams belongs to the conversation that is left: it ends, and what there is of it is kept.
async function openConversation(conversation) {
  await stopAll();
  current = conversation;
  store.setCurrentId(current.id);
  if (!conversations.includes(current)) conversations.unshift(current);
  // One that nobody has written to is kept nowhere: a second beside it would be of no use.
  conversations = conversations.filter((other) => other === current || other.turns.length > 0);
  drawList();
  drawConversation();
  showSide(false);
}

async function deleteConversation(conversation) {
  if (conversation === current) await stopAll();
  store.deleteConversation(conversation);
  conversations = conversations.filter((other) => other !== conversation);
  say("The conversation is deleted.");
  if (conversation === current) await openConversation(conversations[0] ?? store.newConversation());
  else drawList();
  (document.querySelector("#conversations [aria-current]") ?? byId("new")).focus();
}

// ---- answers ----

let answering = Promise.resolve();

async function stopAll() {
  for (const column of columns) column.stop();
  await answering;
}

async function answerTurn(turn) {
  const conversation = current;
  const asked = columns.map((column) => column.answer(turn));
  const names = columns.map((column) => column.plan).join(" and ");
  showButtons();
  say(`Answering under ${names}.`);
  const answers = await Promise.all(asked);
  // Deleted meanwhile, it is not kept again.
  if (conversations.includes(conversation)) save(conversation);
  showButtons();
  const errors = answers.filter((answer) => answer.error).map((answer) => answer.error);
  say(errors.length > 0 ? errors.join(" ") : `The answer is complete: ${answers.map((answer) => answer.newTokens ?? 0).join(" and ")} tokens.`);
}

// Who waits for the end need not ask how it went: an answer says that itself.
function begin(turn) {
  answering = answerTurn(turn).catch((error) => notice(error.message));
}

function send() {
  const text = byId("prompt").value;
  if (text.trim() === "" || isStreaming() || columns.length === 0) return;
  byId("prompt").value = "";
  const turn = { user: text, answers: [] };
  current.turns.push(turn);
  for (const column of columns) column.drawTurn(turn);
  drawList();
  save();
  begin(turn);
}

function regenerate() {
  const turn = current.turns.at(-1);
  if (!turn || isStreaming() || columns.length === 0) return;
  for (const column of columns) turn.answers[column.index] = null;
  drawConversation();
  begin(turn);
}

// ---- the rest of the page ----

function showTheme() {
  if (settings.theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
  byId("theme").textContent = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[settings.theme];
}

function showSide(isOpen) {
  byId("side").classList.toggle("open", isOpen);
  byId("menu").setAttribute("aria-expanded", String(isOpen));
}

function listen() {
  byId("send").addEventListener("click", send);
  byId("stop").addEventListener("click", () => stopAll().then(() => byId("prompt").focus()));
  byId("regenerate").addEventListener("click", regenerate);
  byId("new").addEventListener("click", async () => {
    await openConversation(current.turns.length === 0 ? current : store.newConversation());
    byId("prompt").focus();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    // While letters are composed, Enter chooses one.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    if (isStreaming()) stopAll();
    else if (byId("side").classList.contains("open")) {
      showSide(false);
      byId("menu").focus();
    }
  });
  byId("menu").addEventListener("click", () => showSide(!byId("side").classList.contains("open")));
  byId("compare").addEventListener("click", async () => {
    await stopAll();
    if (columns.length === 0) return;
    settings.compare = !settings.compare;
    save();
    makeColumns();
  });
  byId("theme").addEventListener("click", () => {
    settings.theme = THEMES[(THEMES.indexOf(settings.theme) + 1) % THEMES.length];
    store.saveSettings();
    showTheme();
  });
  byId("model").addEventListener("change", async () => {
    await stopAll();
    settings.model = byId("model").value;
    save();
    noteFormat();
    makeColumns();
  });
  for (const name of FIELDS) {
    byId(name).value = settings[name];
    byId(name).addEventListener("change", () => {
      settings[name] = byId(name).value;
      save();
    });
  }
  byId("key").value = apiKey();
  byId("key").addEventListener("change", () => {
    setApiKey(byId("key").value.trim());
    stopAll().then(start);
  });
}

store.loadSettings();
showTheme();
conversations = store.loadConversations();
current = conversations.find((conversation) => conversation.id === store.currentId()) ?? conversations[0] ?? store.newConversation();
if (!conversations.includes(current)) conversations.unshift(current);
listen();
drawList();
showButtons();
await start();
byId("prompt").dataset.ready = "true";
