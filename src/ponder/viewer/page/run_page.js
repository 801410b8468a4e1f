// One run: its curves by group, the distribution of its rewards and lengths, what ails it, its job and its files.
"use strict";

(() => {
  const { h, format, data, route, isNumber } = viewer;
  const PREVIEW_ABOVE_STEPS = 3000; // longer runs show coarse curves first
  const PREVIEW_POINTS = 800;
  const MAX_TRACE_ROWS = 500;
  const NUM_BINS = 24;

  // Metrics by what they tell about. The first pattern that fits counts; others are grouped by their prefix.
  const GROUPS = [
    ["Evaluation", /^eval|^(accuracy|majority|pass)/],
    ["Reward", /^(reward|frac_|groups|score|margin)/],
    ["Learning", /^(loss|grad|lr|learning_rate|kl|entropy|clip|ratio|policy|value|advantage|logp|sampling|importance|skipped|perplexity)/],
    ["Completions", /^(completions\/|num_tokens|tokens|length)/],
    ["Time and memory", /^(time\/|step_time|seconds|memory|throughput|queue|stale)/],
  ];
  const GROUP_ORDER = ["Reward", "Evaluation", "Learning", "Completions", "Time and memory"];
  const NOT_CURVES = /^(step|time|record|crc|x\/.*)$/;

  function groupOf(name) {
    const group = GROUPS.find(([, pattern]) => pattern.test(name));
    if (group) return group[0];
    const prefix = name.includes("/") ? name.split("/")[0] : "Other";
    return prefix[0].toUpperCase() + prefix.slice(1);
  }

  // ---- the metrics of a run, kept up to date by offset

  class MetricStore {
    constructor(run) {
      this.run = run;
      this.offset = null;
      this.steps = [];
      this.columns = {};
      this.busy = false;
    }

    get path() {
      return `/api/runs/${this.run}/metrics`;
    }

    async preview() {
      const coarse = await data.get(data.path(`${this.path}/preview`, { points: PREVIEW_POINTS }));
      [this.steps, this.columns] = [coarse.steps, coarse.columns];
    }

    // Reads what was appended since. True: something changed.
    async grow() {
      if (this.busy) return false;
      this.busy = true;
      try {
        for (let hasChanged = false; ; ) {
          const more = await data.get(this.offset === null ? this.path : data.path(this.path, { after: this.offset }));
          hasChanged = this.take(more) || hasChanged;
          if (more.complete !== false) return hasChanged;
        }
      } finally {
        this.busy = false;
      }
    }

    take(more) {
      const isAnew = more.reset || this.offset === null;
      this.offset = more.offset;
      if (isAnew) [this.steps, this.columns] = [[], {}];
      if (!more.steps.length) return isAnew;
      const before = this.steps.length;
      this.steps = this.steps.concat(more.steps);
      for (const name of new Set([...Object.keys(this.columns), ...Object.keys(more.columns)])) {
        const old = this.columns[name] || new Array(before).fill(null);
        this.columns[name] = old.concat(more.columns[name] || new Array(more.steps.length).fill(null));
      }
      return true;
    }

    names() {
      return Object.keys(this.columns).filter((name) => !NOT_CURVES.test(name) && this.columns[name].some(isNumber));
    }
  }

  // ---- the page

  function render(root, params) {
    const id = params.match[1];
    route.run = id;
    const page = { ended: false, ends: [], id, params };
    root.append(viewer.waiting());
    data.get(`/api/runs/${id}`).then((run) => !page.ended && build(root, run, page)).catch((error) => !page.ended && viewer.showError(error, root));
    return () => {
      page.ended = true;
      page.ends.forEach((end) => end());
      viewer.live("");
    };
  }

  function build(root, run, page) {
    document.title = `${run.name} · ponder view`;
    const headline = h("div");
    const ails = h("section", { class: "panel", "aria-label": "What ails it" });
    const curves = h("section", { "aria-label": "Curves" });
    const spread = h("section", { class: "cards", "aria-label": "Distributions" });
    root.replaceChildren(headline, ails, curves, spread, h("div", { class: "cards" }, configPanel(run), filesPanel(run)));
    const showRun = (fresh) => {
      headline.replaceChildren(headlineOf(fresh));
      ails.replaceChildren(h("h3", null, "What ails it"), viewer.findingList(fresh), fresh.message ? h("p", null, `${fresh.state}: ${fresh.message}`) : "");
      viewer.live(fresh.state === "running" ? "● live" : "");
    };
    showRun(run);
    viewer.keys.add({ key: "o", text: "rollouts of this run", run: () => route.go(`/rollouts/${run.id}`) });
    const figures = run.has_metrics ? curvesSection(curves, run, page) : null;
    if (run.has_traces) distributions(spread, run, page);
    if (viewer.exported) return;
    const refresh = viewer.later(async () => {
      try {
        const fresh = await data.get(`/api/runs/${run.id}`);
        if (page.ended) return;
        showRun(fresh);
        if (figures) figures.marks(fresh.marks);
      } catch (error) {
        viewer.showError(error);
      }
    }, 400);
    page.ends.push(data.watch(run.id, () => {
      if (figures) figures.grow();
      refresh();
    }));
  }

  function headlineOf(run) {
    const facts = [
      ["Job", (run.job || "").split(" · ")[0]], ["Task", run.task], ["Model", run.model && h("span", { title: run.model }, viewer.shortModel(run.model))],
      ["Steps", viewer.progress(run)],
      [`Best ${run.metric || ""}`, format.number(run.best)], [`Last ${run.metric || ""}`, format.number(run.last)],
      ["Size", format.bytes(run.bytes)], ["Written", `${format.ago(run.modified)}, ${format.date(run.modified)}`],
    ].filter(([, value]) => value && value !== "–");
    const links = h("span", { class: "actions" },
      run.has_traces ? [h("a", { class: "button", href: route.link(`/rollouts/${run.id}`) }, "Rollouts"), " "] : "",
      h("a", { class: "button", href: route.link("/compare", { runs: run.id }) }, "Compare"), " ",
      h("a", { class: "button", href: route.link("/fronts", { runs: run.id }) }, "Fronts"));
    return h("section", { class: "panel", "aria-label": "Run" },
      h("div", { class: "headline" }, h("h2", null, run.name), viewer.stateBadge(run.state), h("span", { class: "spacer" }), links),
      h("dl", { class: "facts wide" }, facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))));
  }

  // ---- curves

  function curvesSection(box, run, page) {
    const view = { ...viewer.curveView(page.params), q: page.params.q || "", zoom: readRange(page.params.zoom) };
    const others = (page.params.with || "").split(",").filter((id) => id && id !== run.id);
    const stores = [new MetricStore(run.id), ...others.map((id) => new MetricStore(id))];
    const names = new Map([[run.id, run.name]]);
    const state = { view, stores, names, run, charts: new Map(), marks: run.marks || [], page };
    const filter = h("input", { type: "search", value: view.q, placeholder: "Filter curves", "aria-label": "Filter curves", data: { filter: "" }, on: { input: viewer.later(() => { view.q = filter.value; route.set({ q: view.q }); drawGroups(state); }) } });
    const axes = (run.x || []).filter((one) => one !== "step");
    const controls = h("div", { class: "controls" }, filter, viewer.curveControls(view, axes, () => refreshCharts(state)), overlayControl(state), h("button", { type: "button", hidden: true, on: { click: () => setZoom(state, null) } }, "Show all"));
    state.showAll = controls.lastChild;
    state.legend = h("ul", { class: "legend" });
    state.groups = h("div");
    box.append(controls, state.legend, state.groups);
    state.groups.append(viewer.waiting("Reading the metrics …"));
    state.watcher = new IntersectionObserver((entries) => entries.forEach((entry) => entry.isIntersecting && drawOne(state, entry.target)), { rootMargin: "300px" });
    page.ends.push(() => {
      state.watcher.disconnect();
      for (const chart of state.charts.values()) chart.destroy();
    });
    loadAll(state).catch((error) => viewer.showError(error, state.groups));
    return {
      async grow() {
        try {
          if (stores[0].offset !== null && (await stores[0].grow()) && !page.ended) drawGroups(state);
        } catch (error) {
          viewer.showError(error);
        }
      },
      marks(marks) {
        if (JSON.stringify(marks || []) === JSON.stringify(state.marks)) return;
        state.marks = marks || [];
        refreshCharts(state);
      },
    };
  }

  const readRange = (text) => {
    const ends = (text || "").split("~").map(Number);
    return text && ends.length === 2 && ends.every(isNumber) && ends[0] < ends[1] ? ends : null;
  };

  async function loadAll(state) {
    const { stores, run, names, page } = state;
    if (stores.length > 1 || state.overlay) {
      const { runs } = await data.get("/api/runs");
      for (const one of runs) names.set(one.id, one.name);
    }
    if (run.steps > PREVIEW_ABOVE_STEPS && !viewer.exported) {
      await Promise.all(stores.map((store) => store.preview()));
      if (!page.ended) drawGroups(state);
    }
    await Promise.all(stores.map((store) => store.grow()));
    if (!page.ended) drawGroups(state);
  }

  function overlayControl(state) {
    const list = h("select", { "aria-label": "Overlay another run" }, h("option", { value: "" }, "another run …"));
    state.overlay = true;
    data.get("/api/runs").then(({ runs }) => {
      for (const one of runs) {
        state.names.set(one.id, one.name);
        if (one.has_metrics && one.id !== state.run.id) list.append(h("option", { value: one.id }, one.name));
      }
    }).catch(() => {}); // the list of runs says it better
    list.addEventListener("change", async () => {
      const id = list.value;
      list.value = "";
      if (!id) return;
      await toggleOverlay(state, id);
    });
    return h("label", { class: "field" }, "Overlay ", list);
  }

  async function toggleOverlay(state, id) {
    const at = state.stores.findIndex((store) => store.run === id);
    if (at > 0) state.stores.splice(at, 1);
    else if (at < 0) {
      const store = new MetricStore(id);
      await store.grow();
      state.stores.push(store);
    }
    route.set({ with: state.stores.slice(1).map((store) => store.run).join(",") });
    drawGroups(state);
  }

  function drawLegend(state) {
    const items = state.stores.map((store, i) => {
      const swatch = h("i", { class: "swatch", style: { background: viewer.theme.series(i) } });
      const remove = i > 0 ? h("button", { type: "button", "aria-label": `Leave out ${state.names.get(store.run) || store.run}`, title: "Leave out", on: { click: () => toggleOverlay(state, store.run) } }, "✕") : "";
      return h("li", null, swatch, state.names.get(store.run) || store.run, remove);
    });
    state.legend.hidden = state.stores.length < 2;
    state.legend.replaceChildren(...items);
  }

  // Lays out the groups; each figure is drawn when it comes into sight.
  function drawGroups(state) {
    drawLegend(state);
    const all = [...new Set(state.stores.flatMap((store) => store.names()))];
    const words = state.view.q.toLowerCase().split(/\s+/);
    const shown = all.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
    const key = shown.join("\n");
    if (key === state.layout) return refreshCharts(state);
    state.layout = key;
    for (const chart of state.charts.values()) chart.destroy();
    state.charts.clear();
    const groups = new Map(GROUP_ORDER.map((title) => [title, []]));
    for (const name of shown) {
      const title = groupOf(name);
      if (!groups.has(title)) groups.set(title, []);
      groups.get(title).push(name);
    }
    const sections = [...groups].filter(([, names]) => names.length).map(([title, names]) =>
      h("details", { open: true, class: "group" }, h("summary", null, h("b", null, title), h("span", { class: "soft small" }, ` ${names.length}`)),
        h("div", { class: "cards small-multiples" }, names.map((name) => {
          const place = h("div", { class: "panel slot", data: { name } });
          state.watcher.observe(place);
          return place;
        }))));
    state.groups.replaceChildren(...(sections.length ? sections : [h("p", { class: "empty" }, all.length ? "No curve has this name." : "No metrics yet.")]));
  }

  function chartSettings(state, name) {
    const { view, stores, names } = state;
    const series = stores.flatMap((store, i) => {
      const x = viewer.xValues(store, view.x);
      const y = store.columns[name];
      if (!x || !y) return [];
      const keep = y.map((_, at) => at).filter((at) => isNumber(y[at]) && isNumber(x[at]));
      return [{ name: names.get(store.run) || store.run, x: keep.map((at) => x[at]), y: keep.map((at) => y[at]), color: i, points: keep.length < 20 }];
    });
    const xs = viewer.xValues(stores[0], view.x) || [];
    const marks = state.marks.map((mark) => ({ ...mark, x: view.x === "step" ? mark.step : xs[viewer.nearestIndex(stores[0].steps, mark.step)] }));
    const known = stores.flatMap((store) => (viewer.xValues(store, view.x) || []).filter(isNumber));
    const domain = known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : null;
    return { series, marks, domain, smoothing: view.smooth, range: view.zoom, x: { label: viewer.xLabel(view.x), log: view.logx }, y: { log: view.logy } };
  }

  function drawOne(state, place) {
    const { name } = place.dataset;
    if (state.charts.has(name)) return;
    state.watcher.unobserve(place);
    const chart = viewer.chart({ ...chartSettings(state, name), title: name, file: `${state.run.name}-${name}`, height: 180, sync: "run", legend: false, onZoom: (range) => setZoom(state, range) });
    state.charts.set(name, chart);
    place.replaceChildren(chart.element);
  }

  function refreshCharts(state) {
    state.showAll.hidden = !state.view.zoom;
    for (const [name, chart] of state.charts) chart.update(chartSettings(state, name));
  }

  function setZoom(state, range) {
    state.view.zoom = range;
    route.set({ zoom: range ? range.map((end) => Number(end.toPrecision(8))).join("~") : "" });
    refreshCharts(state);
  }

  // ---- distributions

  async function distributions(box, run, page) {
    let answer;
    try {
      answer = await data.get(data.path(`/api/runs/${run.id}/traces`, { sort: "-number", size: MAX_TRACE_ROWS }));
    } catch (error) {
      return viewer.showError(error, box);
    }
    const rows = answer.rows.filter((row) => !row.failed);
    if (page.ended || rows.length < 2) return;
    const scope = answer.total > rows.length ? `the last ${format.integer(rows.length)} of ${format.integer(answer.total)}` : `all ${format.integer(rows.length)}`;
    const draw = (title, label, value) => {
      const series = histograms(rows, value);
      if (!series.length) return;
      const chart = viewer.chart({ title: `${title} of ${scope} rollouts`, file: `${run.name}-${title}`, series, height: 200, x: { label }, y: { label: "share of rollouts" }, legend: series.length > 1 });
      page.ends.push(() => chart.destroy());
      box.append(h("div", { class: "panel" }, chart.element));
    };
    draw("Rewards", "reward", (row) => (row.reward === null || row.reward === undefined ? null : Number(row.reward)));
    draw("Lengths", "tokens", (row) => row.tokens);
  }

  // The outline of a histogram; of a training run one of its earlier and one of its later steps.
  function histograms(rows, value) {
    const known = rows.filter((row) => isNumber(value(row)));
    if (known.length < 2) return [];
    const values = known.map(value);
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    const steps = known.map((row) => row.step).filter(isNumber).sort((a, b) => a - b);
    const middle = steps[steps.length >> 1];
    const halves = steps.length && steps[0] < middle
      ? [[`steps ${steps[0]} to ${middle - 1}`, known.filter((row) => row.step < middle)], [`steps ${middle} to ${steps.at(-1)}`, known.filter((row) => row.step >= middle)]]
      : [["rollouts", known]];
    return halves.filter(([, part]) => part.length).map(([name, part], color) => ({ name, color, fill: true, ...outline(part.map(value), low, high) }));
  }

  function outline(values, low, high) {
    const width = (high - low) / NUM_BINS;
    const counts = new Array(NUM_BINS).fill(0);
    for (const value of values) counts[Math.min(NUM_BINS - 1, Math.floor((value - low) / width))] += 1 / values.length;
    const x = counts.flatMap((_, i) => [low + (i + 1e-3) * width, low + (i + 1 - 1e-3) * width]);
    return { x, y: counts.flatMap((share) => [share, share]) };
  }

  // ---- the job and the files

  // JSON as a list that folds. Texts are only ever text.
  function jsonTree(value, depth = 0) {
    if (value === null || typeof value !== "object") return h("code", null, JSON.stringify(value) ?? "–");
    const entries = Object.entries(value);
    if (!entries.length) return h("code", null, Array.isArray(value) ? "[]" : "{}");
    return h("dl", { class: "json" }, entries.map(([name, inner]) => {
      const isFolded = inner !== null && typeof inner === "object" && Object.keys(inner).length > 0;
      if (!isFolded) return h("div", null, h("dt", null, name), h("dd", null, jsonTree(inner)));
      const title = Array.isArray(inner) ? `${inner.length} items` : String(inner.type || inner["@type"] || "").split(":").pop();
      return h("div", null, h("details", { open: depth < 1 }, h("summary", null, h("span", { class: "dt" }, name), h("span", { class: "soft" }, ` ${title}`)), jsonTree(inner, depth + 1)));
    }));
  }

  function configPanel(run) {
    return h("section", { class: "panel", "aria-label": "Job" }, h("h3", null, "Job"), run.config_error ? h("p", { class: "failure" }, run.config_error) : jsonTree(run.config || {}));
  }

  function filesPanel(run) {
    const rows = (run.files || []).map((file) => h("tr", null, h("td", null, file.name), h("td", { class: "numeric" }, format.bytes(file.bytes))));
    const environment = run.environment && Object.keys(run.environment).length ? [h("h3", null, "Environment"), jsonTree(run.environment)] : [];
    return h("section", { class: "panel", "aria-label": "Files and environment" }, h("h3", null, "Files"), h("table", { class: "plain" }, h("tbody", null, rows)), environment);
  }

  viewer.jsonTree = jsonTree;
  viewer.pages.add({ name: "run", under: "runs", hidden: true, title: "Run", path: /^\/run\/([0-9a-f]+)$/, render });
})();
