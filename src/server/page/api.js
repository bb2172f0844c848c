// The server's API: the key, whole answers, and answers that stream.

const KEY = "headwise.key";

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function options(body, signal) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (apiKey()) headers["Authorization"] = `Bearer ${apiKey()}`;
  return {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
    credentials: "omit",
  };
}

async function checked(response) {
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not the server's own words, then: a proxy's.
  }
  throw new ApiError(response.status, message);
}

export async function ask(path, body, signal) {
  const response = await checked(await fetch(path, options(body, signal)));
  return response.json();
}

// The data of server-sent events, one by one. Pieces of the body end anywhere, in the middle of a character too; lines
// end in LF or CR LF; a line that is not data says nothing here.
async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines.map((text) => text.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    // Whoever stops reading has the server stop, too.
    reader.cancel().catch(() => {});
  }
}

// The chunks of a streamed completion. One that breaks off without its end is an error.
export async function* stream(path, body, signal) {
  const response = await checked(await fetch(path, options(body, signal)));
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(500, chunk.error.message);
    yield chunk;
  }
  throw new ApiError(0, "the connection broke off before the end of the answer");
}
