// One column: a conversation under one plan, as it is kept and as it streams, and its heads' memory.
import { ApiError, ask, stream } from "./api.js";
import { markdown } from "./markdown.js";
import { MemoryView } from "./memory.js";
import { settings } from "./store.js";

// An answer that streams is drawn anew at most so often, in milliseconds; long ones less often.
const LEAST_PAUSE = 40;

function element(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function numberOf(text) {
  const value = Number(text);
  return text.trim() === "" || Number.isNaN(value) ? undefined : value;
}

export class Column {
  // `index`: of the column, and of its answers in each turn. `models`: what GET /v1/models lists.
  constructor(index, models) {
    this.index = index;
    this.models = models;
    this.root = document.getElementById("column").content.firstElementChild.cloneNode(true);
    this.root.dataset.column = index;
    this.log = this.root.querySelector(".log");
    this.planSelect = this.root.querySelector(".plan");
    this.memory = new MemoryView(this.root.querySelector(".memory"));
    this.conversation = null;
    this.abort = null;
    // Who reads the end stays there, whatever grows, until he scrolls away.
    this.isAtEnd = true;
    this.lastTop = 0;
    this.log.addEventListener("scroll", () => (this.isAtEnd = this.distanceToEnd() < 40), { passive: true });
    new ResizeObserver(() => this.stayAtEnd()).observe(this.log);
  }

  // The event of scrolling comes with the next frame, and text may come before it.
  noteScroll() {
    if (this.log.scrollTop < this.lastTop - 4 && this.distanceToEnd() >= 40) this.isAtEnd = false;
  }

  distanceToEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight;
  }

  stayAtEnd() {
    if (!this.isAtEnd) return;
    this.log.scrollTop = this.log.scrollHeight;
    this.lastTop = this.log.scrollTop;
  }

  get plan() {
    return this.planSelect.value;
  }

  get model() {
    return this.models.get(settings.model);
  }

  get isChat() {
    return this.model.headwise.chat_format !== null;
  }

  get isStreaming() {
    return this.abort !== null;
  }

  answerOf(turn) {
    return turn.answers[this.index] ?? null;
  }

  // An answer of the other column stands in for one that this column was never asked for.
  spoken(turns) {
    const messages = [];
    if (settings.system.trim() !== "" && this.isChat) messages.push({ role: "system", content: settings.system });
    for (const turn of turns) {
      messages.push({ role: "user", content: turn.user });
      const answer = this.answerOf(turn) ?? turn.answers.find((other) => other !== null);
      if (answer?.text) messages.push({ role: "assistant", content: answer.text });
    }
    return messages;
  }

  // What the model reads: messages, or where it has no chat format the texts one behind the other.
  promptOf(turns) {
    const messages = this.spoken(turns);
    if (this.isChat) return { messages };
    let prompt = settings.system.trim() === "" ? "" : `${settings.system}\n`;
    for (const { role, content } of messages) prompt += role === "user" && prompt !== "" ? `\n${content}` : content;
    return { prompt };
  }

  async countTokens(turns, opensAnswer) {
    if (turns.length === 0) return 0;
    const body = { model: settings.model, ...this.promptOf(turns) };
    if (this.isChat && !opensAnswer) body.add_generation_prompt = false;
    return (await ask("/tokenize", body)).count;
  }

  // ---- what is seen ----

  draw(conversation) {
    this.conversation = conversation;
    this.log.setAttribute("aria-label", `Conversation under the plan ${this.plan}`);
    this.log.replaceChildren();
    for (const turn of conversation.turns) this.drawTurn(turn);
    if (conversation.turns.length === 0) {
      this.log.append(element("p", "empty", "Nothing has been said yet. The heads hold nothing."));
    }
    this.isAtEnd = true;
    this.stayAtEnd();
    this.showMemory();
  }

  drawTurn(turn) {
    this.log.querySelector(".empty")?.remove();
    const user = element("article", "message user", turn.user);
    user.setAttribute("aria-label", "You");
    this.log.append(user);
    const answer = this.answerOf(turn);
    if (answer !== null) this.drawAnswer(answer);
    else if (turn.answers.some((other) => other !== null)) {
      this.log.append(element("p", "facts soft", "Not asked under this plan. Regenerate asks again under both."));
    }
  }

  drawAnswer(answer) {
    const article = element("article", "message assistant");
    article.setAttribute("aria-label", `Answer under the plan ${answer.plan ?? ""}`);
    const text = element("div", "text");
    article.append(text, element("p", "facts soft"));
    this.log.append(article);
    this.updateAnswer(article, answer);
    return article;
  }

  updateAnswer(article, answer) {
    this.noteScroll();
    article.firstChild.replaceChildren(...markdown(answer.text));
    const facts = article.querySelector(".facts");
    facts.classList.toggle("error", Boolean(answer.error));
    facts.textContent = answer.error ?? this.factsOf(answer);
    this.stayAtEnd();
  }

  factsOf(answer) {
    if (answer.finish === undefined) return answer.text === "" ? "Reading the conversation …" : "";
    const facts = [answer.plan];
    if (answer.newTokens) facts.push(`${answer.newTokens} tokens`);
    if (answer.speed) facts.push(`${answer.speed.toFixed(1)} per second`);
    if (answer.finish === "length") facts.push("cut at the most tokens");
    if (answer.finish === "stopped") facts.push("stopped");
    return facts.join(" · ");
  }

  // Of the conversation as it stands. Its last answer says how long it is; without one the server counts.
  async showMemory() {
    const { conversation, plan } = this;
    const turns = conversation.turns;
    const answer = turns.length > 0 ? this.answerOf(turns.at(-1)) : null;
    this.memory.setSpeed(answer?.speed ?? null);
    const shown = { plan, model: settings.model };
    const isKnown = answer?.heldTokens > 0 && answer.model === settings.model;
    if (isKnown || turns.length === 0) {
      this.memory.show({ ...shown, tokens: answer?.heldTokens ?? 0, promptTokens: answer?.promptTokens, maxTokens: answer?.maxTokens });
      return;
    }
    try {
      const tokens = await this.countTokens(turns, false);
      if (this.conversation !== conversation || this.isStreaming) return;
      this.memory.show({ ...shown, tokens, promptTokens: answer?.promptTokens, maxTokens: answer?.maxTokens });
    } catch (error) {
      this.memory.set(".readout", error.message);
    }
  }

  // ---- an answer that streams ----

  requestOf(turns) {
    const body = {
      model: settings.model,
      plan: this.plan,
      ...this.promptOf(turns),
      stream: true,
      stream_options: { include_usage: true },
    };
    for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
      const value = numberOf(settings[name]);
      if (value !== undefined) body[name] = value;
    }
    return body;
  }

  stop() {
    this.abort?.abort();
  }

  // Streams the answer of the last turn into it. Ends when the answer has; what went wrong stands in the answer.
  async answer(turn) {
    const { turns } = this.conversation;
    const body = this.requestOf(turns);
    const answer = { text: "", plan: this.plan, model: settings.model };
    turn.answers[this.index] = answer;
    this.isAtEnd = true;
    this.abort = new AbortController();
    const { signal } = this.abort;
    this.log.setAttribute("aria-busy", "true");
    this.memory.setSpeed(null);
    const article = this.drawAnswer(answer);
    const asked = turns.slice(0, -1).concat({ user: turn.user, answers: [] });
    this.countTokens(asked, true).then((tokens) => this.noteLength(answer, tokens, body.max_tokens), () => {});
    try {
      const path = this.isChat ? "/v1/chat/completions" : "/v1/completions";
      await this.read(stream(path, body, signal), answer, article, body.max_tokens);
    } catch (error) {
      answer.finish = signal.aborted ? "stopped" : "error";
      if (!signal.aborted) answer.error = error instanceof ApiError ? error.message : `No answer: ${error.message}`;
    }
    this.abort = null;
    this.updateAnswer(article, answer);
    this.log.removeAttribute("aria-busy");
    this.showMemory();
    return answer;
  }

  async read(chunks, answer, article, mostNew) {
    let firstAt = 0;
    let numPieces = 0;
    let drawAt = 0;
    for await (const chunk of chunks) {
      if (chunk.usage) {
        this.noteLength(answer, chunk.usage.prompt_tokens, mostNew);
        answer.newTokens = chunk.usage.completion_tokens;
        // The last token was drawn and never read: no head holds it.
        answer.heldTokens = Math.max(0, chunk.usage.total_tokens - 1);
        answer.kvBytes = chunk.usage.headwise?.kv_bytes;
      }
      const choice = chunk.choices[0];
      if (!choice) continue;
      const piece = choice.delta ? choice.delta.content ?? "" : choice.text;
      answer.text += piece;
      if (choice.finish_reason) answer.finish = choice.finish_reason;
      if (piece === "") continue;
      const now = performance.now();
      if (numPieces++ === 0) firstAt = now;
      // About a token a piece, until the end says how many there were.
      answer.newTokens = numPieces;
      if (numPieces > 1 && now > firstAt) answer.speed = (1000 * (numPieces - 1)) / (now - firstAt);
      if (now < drawAt) continue;
      const speed = answer.speed ?? null;
      this.updateAnswer(article, answer);
      this.memory.setSpeed(speed);
      drawAt = performance.now() + Math.max(LEAST_PAUSE, 4 * (performance.now() - now));
      if (answer.promptTokens === undefined) continue;
      this.memory.show({
        plan: answer.plan,
        model: answer.model,
        tokens: answer.promptTokens + numPieces,
        promptTokens: answer.promptTokens,
        maxTokens: answer.maxTokens,
      });
    }
  }

  // Elastic heads keep by these. Where nobody says how many tokens an answer may have, a chat's has what the context has
  // room for, and one without a chat format 16.
  noteLength(answer, promptTokens, mostNew) {
    const most = this.model.max_model_len;
    answer.promptTokens = promptTokens;
    answer.maxTokens = Math.min(most, promptTokens + (mostNew ?? (this.isChat ? most : 16)));
  }
}
