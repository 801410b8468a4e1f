// The list of runs, and the curves of those that are chosen in one picture.
"use strict";

(() => {
  const { h, format, data, route } = viewer;
  const MAX_CURVES = 12; // without a choice
  const REFRESH_MS = 5000;
  const REFRESH_PARTIAL_MS = 600; // while the server still reads metrics

  const COLUMNS = [
    { key: "name", title: "Run", class: "name" },
    { key: "state", title: "State", text: (run) => viewer.stateBadge(run.state) },
    { key: "kind", title: "Job", text: (run) => run.kind || run.job, value: (run) => run.kind || run.job, minor: true },
    { key: "task", title: "Task", minor: true },
    { key: "model", title: "Model", minor: true, text: (run) => h("span", { title: run.model }, shortModel(run.model)) },
    { key: "steps", title: "Steps", numeric: true, minor: true, text: viewer.progress, tip: "training steps, or problems of other jobs" },
    { key: "metric", title: "Metric", minor: true },
    { key: "best", title: "Best", numeric: true, text: (run) => format.number(run.best) },
    { key: "last", title: "Last", numeric: true, text: (run) => format.number(run.last) },
    { key: "findings", title: "What ails it", text: viewer.findingsCell, value: (run) => Math.max(0, ...(run.findings || []).map((f) => f.severity)) },
    { key: "bytes", title: "Size", numeric: true, minor: true, text: (run) => format.bytes(run.bytes) },
    { key: "modified", title: "Written", numeric: true, minor: true, text: (run) => h("span", { title: format.date(run.modified) }, format.ago(run.modified)) },
  ];

  // The end of a path tells more than its start: of a checkpoint the run and the step.
  const shortModel = (model) => {
    const text = String(model || "–");
    const saved = /([^/]+)\/checkpoints\/(step-\d+)/.exec(text);
    if (saved) return `${saved[1]} ${saved[2]}`;
    return text.includes("/") ? text.split("/").slice(-2).join("/") : text;
  };

  // Every word of the filter must be somewhere in the row.
  function matches(run, words, state) {
    if (state && run.state !== state) return false;
    const text = [run.name, run.job, run.kind, run.task, run.model, run.state, run.message, ...(run.findings || []).map((f) => `${f.name} ${f.text}`)].join(" ").toLowerCase();
    return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function render(root, params) {
    const view = { q: params.q || "", state: params.state || "", metric: params.metric || "", ...viewer.curveView(params) };
    const chosen = new Set((params.runs || "").split(",").filter(Boolean));
    let runs = [];
    let ended = false;
    let timer = 0;

    const filter = h("input", { type: "search", value: view.q, placeholder: "Filter runs", "aria-label": "Filter runs", data: { filter: "" }, on: { input: viewer.later((event) => { view.q = filter.value; route.set({ q: view.q }); drawRows(); drawCurves(); }, 120) } });
    const states = viewer.select("State", [["", "all"], "running", "finished", "stopped", "failed", "damaged"], view.state, (value) => { view.state = value; route.set({ state: value }); drawRows(); drawCurves(); });
    const count = h("span", { class: "soft small", role: "status" });
    const actions = h("span", { class: "actions" });
    const curves = h("section", { class: "panel curves", "aria-label": "Curves", hidden: true });
    const table = viewer.table({
      columns: COLUMNS, rows: [], label: "Runs", sort: params.sort || "-modified", chosen, id: (run) => run.id, nameOf: (run) => run.name,
      href: (run) => route.link(`/run/${run.id}`), empty: "No run matches.",
      onSort: (sort) => route.set({ sort }),
      onChoose: () => { route.set({ runs: [...chosen].join(",") }); drawActions(); drawCurves(); },
    });
    const waiting = viewer.waiting("Reading the runs …");
    root.append(h("h2", { class: "hidden-label" }, "Runs"), curves, h("div", { class: "controls" }, filter, states, count, h("span", { class: "spacer" }), actions), waiting);
    viewer.keys.add(
      { key: "j", text: "into the list; then j and k move, Enter opens, x chooses", run: () => table.focus() },
      { key: "Backspace", text: "choose no run", run: () => { chosen.clear(); route.set({ runs: "" }); table.redraw(); drawActions(); drawCurves(); } },
    );

    const visible = () => runs.filter((run) => matches(run, view.q, view.state));

    function drawRows() {
      const rows = visible();
      count.textContent = rows.length === runs.length ? format.count(runs.length, "run") : `${rows.length} of ${format.count(runs.length, "run")}`;
      table.update(rows);
    }

    function drawActions() {
      const ids = [...chosen].join(",");
      const few = chosen.size < 1;
      actions.replaceChildren(
        h("span", { class: "soft small" }, chosen.size ? `${chosen.size} chosen ` : "Choose runs to overlay and compare them "),
        h("a", { class: "button", href: route.link("/compare", { runs: ids }), "aria-disabled": chosen.size < 2 ? "true" : null, tabindex: chosen.size < 2 ? "-1" : null }, "Compare"), " ",
        h("a", { class: "button", href: route.link("/fronts", { runs: ids }), "aria-disabled": few ? "true" : null, tabindex: few ? "-1" : null }, "Fronts"),
      );
    }

    const overlay = curvesOfRuns(curves, view);
    function drawCurves() {
      const withCurves = runs.filter((run) => run.has_metrics);
      const picked = chosen.size ? withCurves.filter((run) => chosen.has(run.id)) : visible().filter((run) => run.has_metrics).sort((a, b) => b.modified - a.modified).slice(0, MAX_CURVES);
      overlay.show(picked, chosen.size ? "" : withCurves.length > picked.length ? `the newest ${picked.length}` : "");
    }

    async function load() {
      try {
        const answer = await data.get("/api/runs");
        if (ended) return;
        runs = answer.runs;
        waiting.replaceWith(runs.length ? table.element : h("p", { class: "empty" }, "There is no run below this folder yet. A run appears here when `ponder train`, `ponder eval` or another job begins to write it."));
        drawRows();
        drawActions();
        drawCurves();
        viewer.live(runs.some((run) => run.state === "running") ? "● live" : "");
        const isPartial = runs.some((run) => run.complete === false); // long metrics are read bit by bit
        if (!viewer.exported) timer = setTimeout(load, isPartial ? REFRESH_PARTIAL_MS : REFRESH_MS);
      } catch (error) {
        if (ended) return;
        if (!runs.length) viewer.showError(error, waiting);
        else viewer.alert(error.message);
        timer = setTimeout(load, 2 * REFRESH_MS);
      }
    }
    load();
    return () => {
      ended = true;
      clearTimeout(timer);
      overlay.end();
      viewer.live("");
    };
  }

  // ---- one figure with a curve of each run

  function curvesOfRuns(box, view) {
    let chart = null;
    let shown = "";
    let answers = new Map(); // run -> {steps, columns}
    let picked = [];
    let note = "";
    const metricBox = h("span");
    const figureBox = h("div");
    const words = h("p", { class: "soft small" });

    async function show(runs, text) {
      picked = runs;
      note = text;
      box.hidden = !runs.length;
      if (!runs.length) return;
      const version = runs.map((run) => `${run.id}:${run.steps}:${run.modified}`).join(",") + view.metric;
      if (version === shown) return;
      shown = version;
      if (!box.firstChild) drawControls();
      try {
        const answer = await data.get(data.path("/api/metrics/preview", { runs: runs.map((run) => run.id).join(","), names: metricName(), points: 400 }));
        answers = new Map(Object.entries(answer.runs || answer));
        draw();
      } catch (error) {
        viewer.showError(error, figureBox);
        chart = null;
      }
    }

    // The metric that is asked for; without one the headline metric of most runs.
    function metricName() {
      if (view.metric) return view.metric;
      const counts = new Map();
      for (const run of picked) if (run.metric) counts.set(run.metric, (counts.get(run.metric) || 0) + 1);
      return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0] || "reward";
    }

    function drawControls() {
      const axes = ["tokens", "flops", "seconds"];
      box.append(h("div", { class: "controls" }, metricBox, viewer.curveControls(view, axes, draw)), figureBox, words);
    }

    function drawMetricList() {
      const names = new Set(["reward", "loss", "accuracy"]);
      for (const run of picked) for (const name of run.metrics || [run.metric]) if (name) names.add(name);
      if (view.metric) names.add(view.metric);
      const options = [...names].filter((name) => !name.startsWith("x/")).sort();
      metricBox.replaceChildren(viewer.select("Metric", options, metricName(), (value) => { view.metric = value; route.set({ metric: value }); show(picked, note); }));
    }

    function draw() {
      drawMetricList();
      const name = metricName();
      const missing = [];
      const series = [];
      picked.forEach((run, i) => {
        const metrics = answers.get(run.id);
        const y = metrics && metrics.columns[name];
        const x = metrics && viewer.xValues(metrics, view.x);
        if (x && y) series.push({ name: run.name, x, y, color: i });
        else missing.push(run.name);
      });
      const settings = { series, smoothing: view.smooth, x: { label: viewer.xLabel(view.x), log: view.logx }, y: { label: name, log: view.logy }, title: name, legend: true };
      words.textContent = [note && `Shown are ${note} runs: choose runs below to see others.`, missing.length && `Without this metric or axis: ${missing.join(", ")}.`].filter(Boolean).join(" ");
      if (chart && chart.element.isConnected) return chart.update(settings);
      if (chart) chart.destroy();
      chart = viewer.chart({ ...settings, height: 260, file: "runs" });
      figureBox.replaceChildren(chart.element);
    }

    return { show, end: () => chart && chart.destroy() };
  }

  viewer.shortModel = shortModel;
  viewer.pages.add({ name: "runs", title: "Runs", path: /^\/(?:runs)?$/, key: "r", render });
})();
