// The chat at `/`. What a model writes is only ever put into text nodes: it can never become HTML.

const KEY = "ponder-key"; // in sessionStorage, so it ends with the tab
const $ = (id) => document.getElementById(id);

const conversation = []; // messages, as they are sent
let running = null; // {id, abort, turn}: the answer that is being written

// ---- requests

function headers() {
  const key = sessionStorage.getItem(KEY);
  const plain = { "Content-Type": "application/json" };
  return key ? { ...plain, Authorization: `Bearer ${key}` } : plain;
}

class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, body, signal) {
  const options = { headers: headers(), signal, credentials: "omit", cache: "no-store" };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const reply = await fetch(path, options);
  if (reply.ok) return reply;
  let message = `the server answered ${reply.status}`;
  try {
    message = String((await reply.json()).error.message);
  } catch { /* no JSON: the status says what there is to say */ }
  throw new RequestError(reply.status, message);
}

// The objects of a stream of server-sent events.
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// ---- the page

function showError(message) {
  $("alert").textContent = message;
  $("alert").hidden = !message;
}

function addTurn(role, text = "") {
  $("welcome").hidden = true;
  const turn = $("turn").content.firstElementChild.cloneNode(true);
  const part = (name) => turn.querySelector(name);
  turn.classList.add(role);
  part("h2").textContent = role === "user" ? "You" : $("model").value || "Model";
  const answer = part(".answer").appendChild(document.createTextNode(text));
  const thought = part(".thought .text").appendChild(document.createTextNode(""));
  $("log").append(turn);
  $("log").scrollTop = $("log").scrollHeight;
  return { turn, answer, thought, details: part(".thought"), summary: part("summary"), cost: part(".cost") };
}

// Add text, and stay at the end of the log if that is where the reader is.
function append(node, text) {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  node.appendData(text);
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function showThought(view, text) {
  if (view.details.hidden) {
    view.details.hidden = false;
    view.summary.textContent = "Thinking…";
    $("end-thinking").hidden = false;
  }
  append(view.thought, text);
  const box = view.details.querySelector(".text");
  box.scrollTop = box.scrollHeight;
}

function endThought(view) {
  $("end-thinking").hidden = true;
  if (!view.details.hidden && view.summary.textContent === "Thinking…") view.summary.textContent = "Thought";
}

const count = (number, unit) => `${number.toLocaleString("en")} ${unit}`;

function costLine(usage, seconds) {
  const search = usage.search ?? {};
  const thinking = usage.completion_tokens_details?.reasoning_tokens ?? 0;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const parts = [count(usage.completion_tokens, "tokens written") + (thinking ? ` (${count(thinking, "thinking")})` : "")];
  parts.push(count(usage.prompt_tokens, "read") + (cached ? `, ${count(cached, "from the cache")}` : ""));
  if (search.answers > 1) parts.push(count(search.answers, "answers"));
  if (search.scorer_tokens) parts.push(count(search.scorer_tokens, "to judge"));
  if (search.flops >= 1e9) parts.push(count(Math.round(search.flops / 1e9), "GFLOP"));
  parts.push(`${seconds.toFixed(1)} s`);
  return parts.join(" · ");
}

function setRunning(value) {
  running = value;
  $("stop").hidden = !value;
  $("send").disabled = Boolean(value);
  $("clear").disabled = Boolean(value);
  if (!value) $("end-thinking").hidden = true;
}

// ---- one question

async function ask(question) {
  showError("");
  const view = (conversation.push({ role: "user", content: question }), addTurn("user", question), addTurn("assistant"));
  view.turn.setAttribute("aria-busy", "true");
  setRunning({ id: "", abort: new AbortController(), stopped: false });
  const mine = running;
  const began = performance.now();
  let usage = null, reason = "";
  try {
    const body = { model: $("model").value, messages: conversation, stream: true, stream_options: { include_usage: true } };
    if ($("effort").value) body.reasoning_effort = $("effort").value;
    const reply = await request("/v1/chat/completions", body, mine.abort.signal);
    for await (const event of events(reply)) {
      if (event.error) throw new RequestError(0, String(event.error.message));
      mine.id = event.id ?? mine.id;
      usage = event.usage ?? usage;
      for (const choice of event.choices ?? []) {
        const { content, reasoning_content: thought } = choice.delta ?? {};
        if (thought) showThought(view, thought);
        if (content) {
          endThought(view);
          append(view.answer, content);
        }
        reason = choice.finish_reason ?? reason;
      }
    }
  } catch (error) {
    if (!mine.stopped) showFailure(error);
  }
  finish(view, mine, usage, reason, (performance.now() - began) / 1000);
}

function showFailure(error) {
  if (error instanceof RequestError && error.status === 401) askForKey("That key was not accepted.");
  showError(error instanceof RequestError ? error.message : `the connection broke (${error.message}); send it again`);
}

function finish(view, mine, usage, reason, seconds) {
  endThought(view);
  view.turn.removeAttribute("aria-busy");
  const notes = [];
  if (mine.stopped) notes.push("stopped");
  else if (reason === "length") notes.push("cut at its bound on tokens");
  if (usage) notes.push(costLine(usage, seconds));
  view.cost.textContent = notes.join(" · ");
  view.cost.hidden = notes.length === 0;
  if (view.answer.data) {
    conversation.push({ role: "assistant", content: view.answer.data });
  } else {
    const last = conversation.pop(); // nothing came: the question can be sent again
    if (!mine.stopped && !$("question").value) $("question").value = last.content;
    if (!view.thought.data) view.turn.remove();
  }
  setRunning(null);
  $("question").focus();
}

async function control(action) {
  if (!running?.id) return;
  try {
    await request("/v1/chat/completions/control", { id: running.id, action });
  } catch (error) {
    if (error.status !== 404) showError(error.message); // 404: it has just ended
  }
}

async function stop() {
  if (!running) return;
  const mine = running;
  mine.stopped = true;
  await control("cancel");
  mine.abort.abort();
}

// ---- models and the key

async function loadModels() {
  try {
    const { data } = await (await request("/v1/models")).json();
    const writers = data.filter((model) => !model.head);
    $("model").replaceChildren(...writers.map((model) => new Option(model.id, model.id)));
    if (!writers.length) showError("This server has scorers only: there is no model to talk to.");
    $("forget").hidden = !sessionStorage.getItem(KEY);
    $("question").focus();
  } catch (error) {
    if (error.status === 401) askForKey(sessionStorage.getItem(KEY) ? "That key was not accepted." : "");
    else showError(error.message);
  }
}

function askForKey(reason) {
  if (reason) $("key-reason").textContent = reason;
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

$("key-form").addEventListener("submit", () => {
  sessionStorage.setItem(KEY, $("key").value.trim());
  $("key").value = "";
  showError("");
  loadModels();
});

$("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  $("forget").hidden = true;
  loadModels();
});

// ---- keys and buttons

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || running) return;
  $("question").value = "";
  ask(question);
});

$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !$("key-dialog").open) stop();
});

$("stop").addEventListener("click", stop);
$("end-thinking").addEventListener("click", () => control("reasoning_end"));
$("clear").addEventListener("click", () => {
  conversation.length = 0;
  showError("");
  for (const turn of $("log").querySelectorAll(".turn")) turn.remove();
  $("welcome").hidden = false;
  $("question").focus();
});

loadModels();
