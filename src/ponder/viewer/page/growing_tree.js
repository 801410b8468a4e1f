// The columns of a tree that arrives in pieces: steps that are new, or that have other numbers now.
(() => {
  "use strict";

  class GrowingTree {
    constructor() {
      const names = ["parent", "visits", "value", "prior", "score", "tokens", "stop", "pruned", "meta", "snippet", "text", "scores"];
      this.columns = { ...Object.fromEntries(names.map((name) => [name, []])), cites: [], reasons: [], chosen: null };
      this.reasonPlaces = new Map();
    }

    get count() { return this.columns.parent.length; }

    // One `search` object of the stream: {steps: [...], chosen}.
    add(search) {
      for (const step of search.steps || []) if (Number.isInteger(step.index) && step.index >= 0 && step.index <= this.count) this.put(step);
      if (typeof search.chosen === "number") this.columns.chosen = search.chosen;
    }

    put(step) {
      const { columns } = this, i = step.index;
      if (i === this.count) {
        columns.parent.push(typeof step.parent === "number" && step.parent < i ? step.parent : null);
        columns.text.push(String(step.text ?? ""));
        columns.snippet.push(String(step.text ?? "").slice(0, 80));
        columns.tokens.push(Number(step.tokens) || 0);
        columns.stop.push(step.stop ?? null);
        columns.meta.push(Boolean(step.meta));
        for (const other of step.cites || []) columns.cites.push([i, other]);
      }
      columns.visits[i] = step.visits ?? 0;
      columns.value[i] = step.value ?? 0;
      columns.prior[i] = step.prior ?? 0;
      columns.scores[i] = step.scores || {};
      columns.score[i] = Object.values(step.scores || {}).find((value) => typeof value === "number") ?? null;
      columns.pruned[i] = step.pruned ? this.reason(String(step.pruned)) : null;
    }

    reason(text) {
      if (!this.reasonPlaces.has(text)) {
        this.reasonPlaces.set(text, this.columns.reasons.length);
        this.columns.reasons.push(text);
      }
      return this.reasonPlaces.get(text);
    }
  }

  viewer.GrowingTree = GrowingTree;
})();
