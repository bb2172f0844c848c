// What the browser keeps: conversations, one under each key, and settings.

const SETTINGS = "headwise.settings";
const CONVERSATION = "headwise.conversation.";
const CURRENT = "headwise.current";

export const settings = {
  model: "",
  plans: ["", ""],  // of the two columns; empty: the server's default
  compare: false,
  theme: "system",
  system: "",
  temperature: "0.7",
  top_p: "",
  max_tokens: "512",
  seed: "",
};

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

// False where the browser has no room for it, or keeps nothing.
function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function loadSettings() {
  const kept = read(SETTINGS) ?? {};
  for (const name of Object.keys(settings)) {
    const isAlike = typeof kept[name] === typeof settings[name] && Array.isArray(kept[name]) === Array.isArray(settings[name]);
    if (isAlike) settings[name] = kept[name];
  }
}

export function saveSettings() {
  return write(SETTINGS, settings);
}

// {id, created, turns: [{user, answers: [answer of the first column, of the second]}]}; an answer is {text, plan, ...}
// or null. What others wrote there is taken only where it has this shape.
function isConversation(value) {
  return (
    typeof value?.id === "string" &&
    typeof value.created === "number" &&
    Array.isArray(value.turns) &&
    value.turns.every(
      (turn) =>
        typeof turn?.user === "string" &&
        Array.isArray(turn.answers) &&
        turn.answers.every((answer) => answer === null || typeof answer?.text === "string"),
    )
  );
}

// The newest first.
export function loadConversations() {
  const found = [];
  for (const key of Object.keys(localStorage)) {
    if (!key.startsWith(CONVERSATION)) continue;
    const conversation = read(key);
    if (isConversation(conversation) && key === CONVERSATION + conversation.id) found.push(conversation);
  }
  return found.sort((a, b) => b.created - a.created);
}

export function saveConversation(conversation) {
  return write(CONVERSATION + conversation.id, conversation);
}

export function deleteConversation(conversation) {
  localStorage.removeItem(CONVERSATION + conversation.id);
}

export function newConversation() {
  // randomUUID is there on secure origins alone, and a server may be reached by plain HTTP.
  const id = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, created: Date.now(), turns: [] };
}

export function titleOf(conversation) {
  const text = conversation.turns[0]?.user.trim().replace(/\s+/g, " ") ?? "";
  return text.length > 60 ? `${text.slice(0, 60)}…` : text || "New conversation";
}

export function currentId() {
  return localStorage.getItem(CURRENT);
}

export function setCurrentId(id) {
  try {
    localStorage.setItem(CURRENT, id);
  } catch {
    // Then the newest is shown the next time.
  }
}
