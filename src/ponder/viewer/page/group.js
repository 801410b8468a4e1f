// One trace: its question, its completions with their scores, and what two of them have in common.
// #/rollouts/RUN/NUMBER?a=&b=
(() => {
  "use strict";
  const { h, format, data, route } = viewer;

  const MAX_COMPLETIONS = 400; // shown; a search with more is looked at as a tree
  const FOLDED_CHARS = 1200;

  function render(root, params) {
    const [, run, number] = params.match;
    route.run = run;
    const abort = new AbortController();
    root.append(viewer.waiting());
    const place = `/api/runs/${run}/traces/${number}`;
    let beside = {};
    data.get(place, { signal: abort.signal })
      .then((trace) => {
        beside = trace;
        return new GroupPage(root, run, Number(number), trace, params, abort.signal);
      })
      .catch((error) => viewer.showError(error, root));
    viewer.keys.add(
      { key: "n", text: "next trace", run: () => beside.next && route.go(`/rollouts/${run}/${beside.next}`) },
      { key: "p", text: "previous trace", run: () => beside.previous && route.go(`/rollouts/${run}/${beside.previous}`) },
      { key: "t", text: "its tree", run: () => route.go(`/tree/${run}/${number}`) },
      { key: "u", text: "up to all rollouts", run: () => route.go(`/rollouts/${run}`) });
    return () => abort.abort();
  }

  class GroupPage {
    constructor(root, run, number, trace, params, signal) {
      Object.assign(this, { root, run, number, trace, signal });
      this.place = `/api/runs/${run}/traces/${number}`;
      this.paths = (trace.completions || []).slice(0, MAX_COMPLETIONS);
      this.chosen = [params.a, params.b].map((value, i) => (value === undefined ? Math.min(i, this.paths.length - 1) : Number(value)));
      root.replaceChildren(this.heading(), this.question(), this.completions());
      if (this.paths.length > 1 && !trace.is_large) root.append(this.diffPanel());
    }

    heading() {
      const { trace, number, run } = this;
      const cost = trace.cost || {};
      const facts = [
        trace.step !== null && trace.step !== undefined ? `step ${format.integer(trace.step)}` : "",
        format.count((trace.completions || []).length, "completion"),
        cost.generated_tokens ? `${format.integer(cost.generated_tokens)} tokens written` : "",
        cost.prompt_tokens ? `${format.integer(cost.prompt_tokens)} read` : "",
        cost.seconds ? format.seconds(cost.seconds) : "",
        cost.flops ? `${format.short(cost.flops)} FLOPs` : "",
      ].filter(Boolean);
      return h("div", { class: "page-head" },
        h("div", { class: "headline" },
          h("h2", null, `Trace ${number}`), h("span", { class: "soft" }, facts.join(" · ")), h("span", { class: "spacer" }),
          trace.previous ? h("a", { class: "button", href: route.link(`/rollouts/${run}/${trace.previous}`), title: "Previous trace (p)" }, "‹") : "",
          trace.next ? h("a", { class: "button", href: route.link(`/rollouts/${run}/${trace.next}`), title: "Next trace (n)" }, "›") : "",
          this.paths.length > 1 && !trace.is_large ? h("button", { type: "button", title: "Two completions word by word", on: { click: () => this.root.querySelector(".diff")?.scrollIntoView({ block: "center" }) } }, "Difference") : "",
          h("a", { class: "button", href: route.link(`/tree/${run}/${number}`) }, "Tree"),
          h("a", { class: "button", href: route.link(`/rollouts/${run}`) }, "All rollouts")),
        trace.failed ? h("p", { class: "finding serious" }, h("b", null, "Failed: "), String(trace.failed)) : "");
    }

    question() {
      const { trace } = this;
      const problem = trace.problem || {};
      const gold = viewer.rolloutParts.shortText(problem.answer);
      const sent = h("div", { class: "model-text" }, "…");
      const details = h("details", { on: { toggle: () => details.open && this.showPrompt(sent) } }, h("summary", null, "The prompt as sent"), sent);
      const tags = Object.entries(problem.tags || {});
      const written = (trace.steps || []).filter((step) => step.sampled).map((step) => step.text ?? "");
      const marks = viewer.rolloutParts.answerMarks(problem.answer, written);
      return h("section", { class: "panel", "aria-label": "Question" },
        viewer.rolloutParts.messageList(problem.messages, marks),
        h("dl", { class: "facts" },
          h("dt", null, "Problem"), h("dd", null, String(problem.id ?? "")),
          gold ? [h("dt", null, "Gold answer"), h("dd", null, gold)] : "",
          tags.length ? [h("dt", null, "Tags"), h("dd", null, tags.map(([name, value]) => `${name}: ${viewer.rolloutParts.shortText(value)}`).join(", "))] : ""),
        details);
    }

    async showPrompt(box) {
      if (box.dataset.done) return;
      box.dataset.done = "1";
      try {
        const { texts } = await data.get(`${this.place}/tokens?leaf=0`, { signal: this.signal });
        if (!texts) throw new Error("the texts of its tokens are not known");
        box.textContent = texts.join("");
      } catch (error) {
        if (error.name !== "AbortError") box.textContent = this.trace.steps?.[0]?.text ?? error.message; // without the template's tokens
      }
    }

    // ---- completions

    completions() {
      const { trace, paths } = this;
      const hidden = (trace.completions || []).length - paths.length;
      if (!paths.length) return h("section", { class: "panel" }, h("p", { class: "soft" }, "No completion: the trace has its prompt alone."));
      return h("section", { "aria-label": "Completions" },
        paths.map((path, k) => this.completion(path, k)),
        hidden > 0 ? h("p", { class: "soft" }, `${format.integer(hidden)} more completions: `, h("a", { href: route.link(`/tree/${this.run}/${this.number}`) }, "see the tree")) : "");
    }

    completion(path, k) {
      const { trace } = this;
      const leaf = path[path.length - 1], step = trace.steps?.[leaf] || {};
      const isAnswer = leaf === trace.chosen;
      const steps = path.slice(1).map((i) => trace.steps?.[i] || {});
      const tokens = steps.reduce((sum, one) => sum + (one.turn ? 0 : one.tokens || 0), 0);
      const turns = steps.some((one) => one.turn) ? viewer.rolloutParts.turnsOf(trace, path).filter((turn) => turn.role === "policy").length : 0;
      const advantages = steps.map((one) => one.advantage).filter((value) => typeof value === "number");
      const scores = collectScores(trace, path);
      const facts = [
        format.count(tokens, "token"), turns ? format.count(turns, "turn") : path.length > 2 ? format.count(path.length - 1, "step") : "", step.stop ? `stop: ${step.stop}` : "",
        advantages.length ? `advantage ${format.number(advantages[advantages.length - 1])}` : "",
        step.version ? `weights ${step.version}` : "",
      ].filter(Boolean);
      return h("article", { class: isAnswer ? "panel completion is-answer" : "panel completion", "data-completion": k },
        h("div", { class: "headline" },
          h("h3", null, `Completion ${k + 1}`), isAnswer ? h("span", { class: "badge finished" }, "the answer") : "",
          h("span", { class: "rewards" }, scores.map(([name, score]) => rewardBadge(name, score))),
          h("span", { class: "soft small" }, facts.join(" · ")), h("span", { class: "spacer" }),
          h("a", { href: route.link(`/trace/${this.run}/${this.number}`, { leaf }) }, "token by token")),
        step.pruned ? h("p", { class: "pruned-reason" }, h("strong", null, "Pruned: "), String(step.pruned)) : "",
        this.text(path), scores.some(([, score]) => score.reason || score.steps?.length) ? h("details", { open: scores.length > 1 }, h("summary", null, "Rewards and reasons"), viewer.rolloutParts.scoreTable(scores)) : "");
    }

    // Long texts are folded.
    text(path) {
      if (this.trace.is_large) return h("p", { class: "soft" }, "A large trace: its texts are in the tree and token by token.");
      const turns = viewer.rolloutParts.turnsOf(this.trace, path);
      if (turns.length < 2) return this.folded(turns[0]?.text ?? "");
      return h("div", { class: "turns" }, turns.map((turn) => h("div", { class: "message", "data-turn": turn.role },
        h("span", { class: "message-role" }, turn.role), turn.reward ? rewardBadge("reward", turn.reward) : "", this.folded(turn.text))));
    }

    folded(text) {
      const box = h("div", { class: "model-text" }, text.length > FOLDED_CHARS ? `${text.slice(0, FOLDED_CHARS)}…` : text || "(empty)");
      if (text.length <= FOLDED_CHARS) return box;
      const more = h("button", { type: "button", class: "quiet", on: { click: () => { box.textContent = text; more.remove(); } } }, `Show all ${format.integer(text.length)} characters`);
      return h("div", null, box, more);
    }

    // ---- two completions beside each other

    diffPanel() {
      const options = this.paths.map((path, k) => [k, `${k + 1}${path[path.length - 1] === this.trace.chosen ? " (answer)" : ""}`]);
      const box = h("div", { class: "diff model-text" });
      const draw = () => this.drawDiff(box);
      const choose = (side) => (value) => {
        this.chosen[side] = Number(value);
        route.set({ [side ? "b" : "a"]: value });
        draw();
      };
      draw();
      return h("section", { class: "panel", "aria-label": "Difference of two completions" },
        h("div", { class: "controls" }, h("h3", null, "Difference"),
          viewer.select("of", options, this.chosen[0], choose(0), { name: "a" }), viewer.select("and", options, this.chosen[1], choose(1), { name: "b" }),
          h("span", { class: "soft small" }, h("del", null, "first only"), " ", h("ins", null, "second only"))),
        box);
    }

    drawDiff(box) {
      const [a, b] = this.chosen.map((k) => viewer.rolloutParts.pathText(this.trace, this.paths[k] || []));
      if (a === b) return box.replaceChildren(h("p", { class: "soft" }, "The two texts are the same."));
      const { parts, isWhole } = viewer.wordDiff.diff(a, b);
      const tags = { 0: "span", 1: "ins", [-1]: "del" };
      box.replaceChildren(...parts.map(([kind, text]) => h(tags[kind], null, kind === 0 ? text : text.replace(/\n/g, "⏎\n"))));
      if (!isWhole) box.append(h("p", { class: "soft" }, "The texts differ too much for a difference word by word everywhere."));
    }
  }

  // The scores of the last step of a path; of scorers that did not score it, those of the step before, and so on.
  function collectScores(trace, path) {
    const byName = new Map();
    for (const i of path.slice().reverse()) {
      for (const [name, score] of Object.entries(trace.steps?.[i]?.scores || {})) if (!byName.has(name)) byName.set(name, score);
    }
    return [...byName];
  }

  function rewardBadge(name, score) {
    const value = score.value;
    const kind = value === null || value === undefined ? "undecided" : value > 0 ? "won" : "lost";
    return h("span", { class: `badge ${kind}`, title: score.reason || null }, `${name} ${value === null || value === undefined ? "undecided" : format.number(value)}`);
  }

  viewer.pages.add({ name: "group", title: "Rollout", hidden: true, under: "rollouts", path: /^\/rollouts\/([\w-]+)\/(\d+)$/, render });
})();
