// The page Ask, where `ponder view --serve URL` was given: a question, how hard to think, the thought as it is written and
// the tree as it grows, then the answer and what it cost. #/ask?effort=&strategy=&settings=&model=
(() => {
  "use strict";
  const { h, format, data, route } = viewer;

  const EFFORTS = ["", "none", "minimal", "low", "medium", "high", "xhigh", "max"];
  const STRATEGIES = ["chain", "majority-vote", "best-of-n", "beam-search", "mcts", "tree-of-thoughts", "self-refine"];
  const REDRAW_MS = 120;
  const MAX_SHOWN_CHARS = 200000;

  // ---- the stream

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
        const text = line.slice(5).trim();
        if (text === "[DONE]") return;
        yield JSON.parse(text);
      }
    }
  }

  async function send(body, signal) {
    const reply = await fetch("/api/ask", {
      method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal, credentials: "omit", cache: "no-store",
    });
    if (reply.ok) return reply;
    let message = `the viewer answered ${reply.status}`;
    try {
      message = String((await reply.json()).error);
    } catch { /* no JSON: the status says what there is to say */ }
    throw new viewer.RequestError(reply.status, message);
  }

  // "n=4 beam_width=2 cut=tokens:6" as an object.
  function readSettings(text) {
    const out = {};
    for (const part of text.split(/[\s,]+/).filter(Boolean)) {
      const at = part.indexOf("=");
      if (at < 1) throw new Error(`A setting is NAME=VALUE, not ${part}.`);
      const value = part.slice(at + 1);
      out[part.slice(0, at)] = value === "true" ? true : value === "false" ? false : value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
    }
    return out;
  }

  // ---- the page

  class AskPage {
    constructor(root, params) {
      Object.assign(this, { root, params, running: null, tree: null, timer: 0 });
      this.build();
      this.loadModels();
      viewer.keys.add({ key: "/", text: "to the question", run: () => this.question.focus() });
    }

    close() {
      this.running?.abort();
      clearTimeout(this.timer);
      this.tree?.close();
    }

    build() {
      const { params } = this;
      const keep = (name) => (event) => route.set({ [name]: event.target.value });
      this.question = h("textarea", { name: "question", rows: 3, placeholder: "A question", "aria-label": "Question", "data-filter": true, on: { keydown: (event) => this.key(event) } });
      this.model = h("select", { name: "model", on: { change: keep("model") } });
      this.effort = h("input", { type: "range", name: "effort", min: 0, max: EFFORTS.length - 1, step: 1, value: Math.max(0, EFFORTS.indexOf(params.effort ?? "")), on: { input: () => this.sayEffort() } });
      this.effortName = h("output", { class: "effort-name" });
      this.strategy = h("input", { name: "strategy", list: "strategies", value: params.strategy || "", placeholder: "by the effort", autocomplete: "off", class: "medium", on: { change: keep("strategy") } });
      this.settings = h("input", { name: "settings", value: params.settings || "", placeholder: "n=4 cut=sentence", autocomplete: "off", class: "medium", on: { change: keep("settings") } });
      this.sendButton = h("button", { type: "submit", class: "main" }, "Ask");
      this.stopButton = h("button", { type: "button", hidden: true, on: { click: () => this.stop() } }, "Stop");
      this.failure = h("p", { class: "failure", role: "alert", hidden: true });
      this.result = h("div", { class: "ask-result" });
      this.root.append(
        h("h2", null, "Ask"),
        h("form", { class: "panel ask-form", on: { submit: (event) => { event.preventDefault(); this.ask(); } } },
          this.question,
          h("div", { class: "controls" },
            h("label", { class: "field" }, "Model ", this.model),
            h("label", { class: "field effort-field" }, "Effort ", this.effort, " ", this.effortName),
            h("label", { class: "field" }, "Strategy ", this.strategy), h("datalist", { id: "strategies" }, STRATEGIES.map((name) => h("option", { value: name }))),
            h("label", { class: "field" }, "Settings ", this.settings),
            h("span", { class: "spacer" }), this.stopButton, this.sendButton),
          this.failure),
        this.result);
      this.sayEffort();
    }

    sayEffort() {
      const name = EFFORTS[Number(this.effort.value)];
      this.effortName.textContent = name || "the model's own";
      this.effort.setAttribute("aria-valuetext", this.effortName.textContent);
      route.set({ effort: name });
    }

    async loadModels() {
      try {
        const { models } = await data.get("/api/ask/models");
        this.model.replaceChildren(...models.map((model) => h("option", { value: model.id, selected: model.id === this.params.model }, model.id)));
        if (!models.length) this.fail("This server has no model that answers.");
      } catch (error) {
        this.fail(error.message);
      }
    }

    key(event) {
      if (event.key === "Escape" && this.running) return this.stop();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask();
    }

    fail(message) {
      this.failure.textContent = message;
      this.failure.hidden = !message;
    }

    // ---- one question

    async ask() {
      const question = this.question.value.trim();
      if (!question || this.running) return;
      this.fail("");
      const began = performance.now();
      try {
        const body = { question, model: this.model.value, effort: EFFORTS[Number(this.effort.value)], strategy: this.strategy.value.trim(), settings: readSettings(this.settings.value) };
        if (!body.strategy && Object.keys(body.settings).length) throw new Error("Settings belong to a strategy: name one.");
        this.start();
        const reply = await send(body, this.running.signal);
        for await (const event of events(reply)) this.take(event);
        this.finish((performance.now() - began) / 1000);
      } catch (error) {
        if (error.name === "AbortError") this.finish((performance.now() - began) / 1000, "stopped");
        else this.fail(error.message);
      }
      this.setRunning(null);
    }

    start() {
      this.setRunning(new AbortController());
      this.tree?.close();
      this.growing = new viewer.GrowingTree();
      this.usage = null;
      this.reason = "";
      this.thought = document.createTextNode("");
      this.answer = document.createTextNode("");
      this.cost = h("p", { class: "soft ask-cost" });
      this.thoughtBox = h("details", { class: "panel ask-thought", open: true, hidden: true }, h("summary", null, "Thinking"), h("div", { class: "model-text ask-scroll" }, this.thought));
      this.answerBox = h("section", { class: "panel ask-answer", "aria-label": "Answer", "aria-live": "polite" }, h("h3", null, "Answer"), h("div", { class: "model-text" }, this.answer), this.cost);
      const stage = h("div", { class: "tree-stage" });
      this.node = h("div", { class: "ask-node soft" }, "Each step appears as the search adds it. Choose one to read it.");
      this.treeBox = h("section", { class: "ask-tree", hidden: true, "aria-label": "Tree" }, stage, this.node);
      this.result.replaceChildren(h("div", { class: "ask-texts" }, this.answerBox, this.thoughtBox), this.treeBox);
      this.tree = new viewer.TreeCanvas(stage, { select: (i) => this.showNode(i) });
    }

    setRunning(running) {
      this.running = running;
      this.stopButton.hidden = !running;
      this.sendButton.disabled = Boolean(running);
      this.root.setAttribute("aria-busy", running ? "true" : "false");
    }

    stop() { this.running?.abort(); }

    take(event) {
      if (event.error) throw new viewer.RequestError(0, String(event.error.message ?? event.error));
      this.usage = event.usage ?? this.usage;
      if (event.search) {
        this.growing.add(event.search);
        this.timer ||= setTimeout(() => this.drawTree(), REDRAW_MS);
      }
      for (const choice of event.choices ?? []) {
        const { content, reasoning_content: thought } = choice.delta ?? {};
        if (thought) this.append(this.thought, thought, this.thoughtBox);
        if (content) this.append(this.answer, content, this.answerBox);
        this.reason = choice.finish_reason ?? this.reason;
      }
    }

    append(node, text, box) {
      box.hidden = false;
      if (node.length < MAX_SHOWN_CHARS) node.appendData(text);
      const scroll = box.querySelector(".ask-scroll");
      if (scroll) scroll.scrollTop = scroll.scrollHeight;
    }

    drawTree() {
      this.timer = 0;
      if (this.growing.count < 2) return;
      this.treeBox.hidden = false;
      this.tree.setData(this.growing.columns, true);
    }

    showNode(i) {
      const { columns } = this.growing;
      const reason = viewer.treeParts.prunedReason(columns, i);
      const facts = viewer.treeParts.nodeFacts(columns, i).map(([name, value]) => `${name} ${value}`).join(" · ");
      const scores = Object.entries(columns.scores[i] || {}).map(([name, value]) => `${name} ${value === null ? "undecided" : format.number(value)}`).join(", ");
      this.node.classList.remove("soft");
      this.node.replaceChildren(h("div", { class: "headline" }, h("strong", null, `Step ${i}`), h("span", { class: "soft small" }, [facts, scores].filter(Boolean).join(" · "))),
        reason ? h("p", { class: "pruned-reason" }, h("strong", null, "Pruned: "), reason) : "", h("div", { class: "model-text" }, columns.text[i]));
    }

    finish(seconds, note = "") {
      clearTimeout(this.timer);
      this.drawTree();
      const parts = [note || (this.reason === "length" ? "cut at its bound on tokens" : ""), ...costParts(this.usage), format.seconds(seconds)].filter(Boolean);
      this.cost.textContent = parts.join(" · ");
      if (!this.answer.length && !note) this.answer.data = "(no text)";
    }
  }

  function costParts(usage) {
    if (!usage) return [];
    const search = usage.search ?? {}, thinking = usage.completion_tokens_details?.reasoning_tokens ?? 0, cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    return [
      `${format.count(usage.completion_tokens, "token")} written${thinking ? ` (${format.integer(thinking)} thinking)` : ""}`,
      `${format.integer(usage.prompt_tokens)} read${cached ? ` (${format.integer(cached)} cached)` : ""}`,
      search.nodes > 1 ? format.count(search.nodes, "step") : "", search.pruned ? `${format.integer(search.pruned)} pruned` : "",
      search.answers > 1 ? format.count(search.answers, "answer") : "", search.scorer_tokens ? `${format.integer(search.scorer_tokens)} to judge` : "",
      search.flops >= 1e6 ? `${format.short(search.flops)} FLOPs` : "",
    ];
  }

  viewer.pages.add({
    name: "ask", title: "Ask", key: "a", path: /^\/ask$/, show: (info) => Boolean(info.serve),
    render(root, params) {
      if (!viewer.info?.serve) return void root.append(h("p", { class: "empty" }, "To ask a model from here, start the viewer with --serve and the address of a `ponder serve`."));
      const page = new AskPage(root, params);
      return () => page.close();
    },
  });
})();
