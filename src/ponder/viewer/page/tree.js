// The page Tree: one trace's search, as it grew. #/tree/RUN/NUMBER?color=&size=&node=&until=
(() => {
  "use strict";
  const { h, format, data, route } = viewer;

  const NAMES = { value: "value", score: "score", prior: "prior", visits: "visits", tokens: "tokens", equal: "equal" };
  const labelled = (names) => names.map((name) => [name, NAMES[name]]);
  const PLAY_FRAMES = 240; // a whole growth takes 4 s at 60 frames/s

  function render(root, params) {
    const [, run, number] = params.match;
    if (!number) return viewer.choosing.trace(root, run, "tree", "Which search?");
    route.run = run;
    const abort = new AbortController();
    const page = new TreePage(root, run, Number(number), params, abort.signal);
    page.load().catch((error) => viewer.showError(error, root));
    return () => {
      abort.abort();
      page.close();
    };
  }

  class TreePage {
    constructor(root, run, number, params, signal) {
      Object.assign(this, { root, run, number, params, signal });
      this.place = `/api/runs/${run}/traces/${number}`;
      this.timer = 0;
      root.append(viewer.waiting());
    }

    close() {
      cancelAnimationFrame(this.timer);
      this.tree?.close();
    }

    async load() {
      const columns = await data.get(`${this.place}/tree`, { signal: this.signal });
      this.root.replaceChildren();
      this.build(columns);
    }

    build(columns) {
      this.columns = columns;
      const stage = h("div", { class: "tree-stage" });
      this.tip = h("div", { class: "tip", role: "tooltip", hidden: true });
      this.side = h("section", { class: "tree-side", "aria-live": "polite", "aria-label": "The selected step" });
      this.tools = h("div", { class: "toolbar" });
      this.legendBox = h("div", { class: "legends" });
      this.root.append(this.heading(columns), this.tools, this.legendBox, h("div", { class: "tree-split" }, stage, this.side), this.slider());
      this.tree = new viewer.TreeCanvas(stage, {
        select: (i) => this.showNode(i),
        hover: (i, x, y) => this.showTip(i, x, y),
      });
      stage.append(this.tip);
      this.tree.colorBy = this.params.color || "value"; // or the first column that has numbers
      this.tree.sizeBy = this.params.size || "visits";
      this.tree.setData(columns);
      this.drawTools();
      this.drawLegend();
      this.restore();
      this.keys();
    }

    restore() {
      const { params, tree } = this;
      if (params.until) this.setUntil(Number(params.until));
      const node = params.node !== undefined ? Number(params.node) : columnsAnswer(this.columns);
      if (Number.isInteger(node) && node >= 0 && node < tree.count) tree.select(node, params.node !== undefined);
      else this.side.append(h("p", { class: "soft" }, "Choose a node to read its step."));
    }

    heading(columns) {
      const count = columns.parent.length;
      const pruned = (columns.pruned || []).filter((reason) => reason !== null && reason !== -1 && reason !== "").length;
      const facts = [format.count(count, "node"), `${format.integer(pruned)} pruned`];
      if (columns.cites?.length) facts.push(format.count(columns.cites.length, "citation"));
      return h("div", { class: "headline" },
        h("h2", null, `Tree of trace ${this.number}`), h("span", { class: "soft" }, facts.join(" · ")), h("span", { class: "spacer" }),
        h("a", { class: "button", href: route.link(`/rollouts/${this.run}/${this.number}`) }, "Completions"),
        h("a", { class: "button", href: route.link(`/tree/${this.run}`) }, "All searches"));
    }

    drawTools() {
      const { tree } = this;
      const set = (name, change) => (value) => {
        route.set({ [name]: value });
        change(value);
        this.drawLegend();
      };
      const button = (text, run, title) => h("button", { type: "button", title, on: { click: run } }, text);
      this.tools.replaceChildren(
        viewer.select("Colour", labelled(tree.colorChoices()), tree.colorName, set("color", (v) => tree.setColor(v)), { name: "color" }),
        viewer.select("Size", labelled(tree.sizeChoices()), tree.sizeName, set("size", (v) => tree.setSize(v)), { name: "size" }),
        button("+", () => tree.zoom(1.5), "Zoom in (+)"),
        button("−", () => tree.zoom(1 / 1.5), "Zoom out (-)"),
        button("Fit", () => tree.fit(), "Show all of it (0)"),
        button("Answer", () => tree.move("answer"), "Go to the answer (End)"),
        h("span", { class: "spacer" }),
        button("PNG", async () => viewer.download(`${this.fileName()}.png`, await tree.toPng())),
        button("SVG", () => viewer.download(`${this.fileName()}.svg`, tree.toSvg(), "image/svg+xml")),
        button("CSV", () => viewer.download(`${this.fileName()}.csv`, viewer.csv(csvRows(this.columns, tree.tree)), "text/csv")));
    }

    fileName() { return `tree-${this.run}-${this.number}`; }

    drawLegend() {
      const { tree } = this;
      const mark = (kind, text) => h("span", { class: "mark" }, h("span", { class: `mark-${kind}`, "aria-hidden": "true" }), text);
      this.legendBox.replaceChildren(
        ...(tree.colorName ? [viewer.colors.legend(tree.scale, NAMES[tree.colorName])] : []),
        ...[mark("path", "path to the answer"), mark("pruned", "pruned"), this.columns.cites?.length ? mark("cites", "quotes") : null].filter(Boolean));
    }

    // ---- growth

    slider() {
      const count = this.columns.parent.length;
      this.range = h("input", {
        type: "range", min: 1, max: count, step: 1, value: count, class: "tree-time", "aria-label": "How many nodes have grown",
        on: { input: () => { this.pause(); this.setUntil(Number(this.range.value)); } },
      });
      this.grown = h("output", { class: "soft tree-grown" }, `${format.integer(count)} of ${format.integer(count)}`);
      this.playButton = h("button", { type: "button", class: "tree-play", title: "Watch it grow (Space)", on: { click: () => this.togglePlay() } }, "▶ Grow");
      return h("div", { class: "tree-growth" }, this.playButton, this.range, this.grown);
    }

    setUntil(count) {
      this.tree.setUntil(count);
      this.range.value = this.tree.until;
      this.grown.textContent = `${format.integer(this.tree.until)} of ${format.integer(this.tree.count)}`;
      this.keepUntil ||= viewer.later((until) => route.set({ until: until < this.tree.count ? until : "" }), 300);
      this.keepUntil(this.tree.until);
    }

    pause() {
      cancelAnimationFrame(this.timer);
      this.timer = 0;
      this.playButton.textContent = "▶ Grow";
    }

    togglePlay() {
      if (this.timer) return this.pause();
      if (this.tree.until >= this.tree.count) this.setUntil(1);
      this.playButton.textContent = "⏸ Pause";
      let place = this.tree.until;
      const perFrame = Math.max(this.tree.count / PLAY_FRAMES, 0.15);
      const tick = () => {
        place += perFrame;
        this.setUntil(place);
        if (this.tree.until >= this.tree.count) return this.pause();
        this.timer = requestAnimationFrame(tick);
      };
      this.timer = requestAnimationFrame(tick);
    }

    keys() {
      const move = (direction) => () => this.tree.move(direction);
      viewer.keys.add(
        { key: "ArrowLeft", text: "to the parent", run: move("parent") },
        { key: "ArrowRight", text: "to a child", run: move("child") },
        { key: "ArrowUp", text: "to the node above", run: move("previous") },
        { key: "ArrowDown", text: "to the node below", run: move("next") },
        { key: "Home", text: "to the prompt", run: move("root") },
        { key: "End", text: "to the answer", run: move("answer") },
        { key: "+", text: "zoom in", run: () => this.tree.zoom(1.4) },
        { key: "-", text: "zoom out", run: () => this.tree.zoom(1 / 1.4) },
        { key: "0", text: "show the whole tree", run: () => this.tree.fit() },
        { key: " ", text: "watch it grow, or pause", run: (event) => (event.target.tagName === "BUTTON" ? false : this.togglePlay()) });
    }

    // ---- one node

    showTip(i, x, y) {
      this.tip.hidden = i < 0;
      if (i < 0) return;
      const { columns } = this;
      const text = viewer.treeDrawing.labelText(columns.snippet?.[i]);
      const reason = prunedReason(columns, i);
      this.tip.replaceChildren(
        h("strong", null, `step ${i}`), " ", nodeFacts(columns, i).map(([name, value]) => `${name} ${value}`).join(" · "),
        text ? h("div", { class: "tip-text" }, text) : "", reason ? h("div", { class: "tip-pruned" }, `pruned: ${reason}`) : "");
      this.tip.style.left = `${Math.min(x + 14, Math.max(0, this.tree.width - 290))}px`;
      this.tip.style.top = `${y + 16 + this.tip.offsetHeight > this.tree.height ? y - this.tip.offsetHeight - 10 : y + 16}px`;
    }

    async showNode(i) {
      route.set({ node: i });
      const { columns } = this;
      const reason = prunedReason(columns, i);
      const text = h("div", { class: "model-text" }, columns.snippet?.[i] ?? "");
      const more = h("div");
      this.side.replaceChildren(
        h("h3", null, `Step ${i}`, i === columns.chosen ? h("span", { class: "badge good" }, "the answer") : ""),
        h("dl", { class: "facts" }, nodeFacts(columns, i).map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
        reason ? h("p", { class: "pruned-reason" }, h("strong", null, "Pruned: "), reason) : "",
        text, more);
      try {
        const node = await data.get(`${this.place}/node/${i}`, { signal: this.signal });
        if (this.tree.selected !== i) return;
        text.textContent = node.text;
        more.replaceChildren(...nodeDetails(node), h("p", null,
          h("a", { href: route.link(`/trace/${this.run}/${this.number}`, { leaf: i }) }, "Read this path token by token")));
      } catch (error) {
        if (error.name !== "AbortError") more.replaceChildren(h("p", { class: "soft" }, error.message));
      }
    }
  }

  const columnsAnswer = (columns) => (typeof columns.chosen === "number" ? columns.chosen : -1);

  function prunedReason(columns, i) {
    const reason = columns.pruned?.[i];
    if (reason === null || reason === undefined || reason === -1 || reason === "") return "";
    return typeof reason === "number" ? String(columns.reasons?.[reason] ?? "") : String(reason);
  }

  // The numbers of a node that there are.
  function nodeFacts(columns, i) {
    const facts = [];
    for (const name of ["visits", "value", "prior", "score", "tokens"]) {
      const value = columns[name]?.[i];
      if (value !== null && value !== undefined && (value !== 0 || name === "score")) facts.push([name, format.number(value)]);
    }
    if (columns.stop?.[i]) facts.push(["stop", String(columns.stop[i])]);
    if (columns.meta?.[i]) facts.push(["kind", "about other steps"]);
    return facts;
  }

  // What a step's record says beside its text.
  function nodeDetails(node) {
    const out = [];
    const scores = Object.entries(node.scores || {});
    if (scores.length) out.push(viewer.rolloutParts.scoreTable(scores));
    if (node.cites?.length) out.push(h("p", { class: "soft" }, `quotes steps ${node.cites.join(", ")}`));
    if (node.prompt) out.push(h("details", null, h("summary", null, "The prompt as sent"), h("div", { class: "model-text" }, String(node.prompt))));
    if (node.cut) out.push(h("p", { class: "soft" }, "The text is long and was cut."));
    return out;
  }

  function csvRows(columns, layout) {
    const names = ["visits", "value", "prior", "score", "tokens", "stop"].filter((name) => columns[name]);
    const rows = [["step", "parent", "depth", ...names, "pruned", "on_path", ...(columns.snippet ? ["text"] : [])]];
    const onPath = new Set();
    for (let i = columnsAnswer(columns); i >= 0 && i < layout.count; i = layout.parents[i]) onPath.add(i);
    for (let i = 0; i < layout.count; i++) {
      const parent = layout.parents[i] === layout.count ? "" : layout.parents[i];
      rows.push([i, parent, layout.depth[i], ...names.map((name) => columns[name][i]), prunedReason(columns, i), onPath.has(i) ? 1 : 0, ...(columns.snippet ? [columns.snippet[i]] : [])]);
    }
    return rows;
  }

  viewer.pages.add({
    name: "tree", title: "Tree", key: "t", path: /^\/tree(?:\/([\w-]+))?(?:\/(\d+))?$/,
    home: (run) => (run ? `/tree/${run}` : "/tree"), render,
  });
  viewer.treeParts = { nodeFacts, prunedReason };
})();
