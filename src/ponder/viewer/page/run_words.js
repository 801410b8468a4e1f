// What several pages say about runs: their state, what ails them, their axes, and the controls of curves.
"use strict";

(() => {
  const { h, format, isNumber } = viewer;

  // What a curve can be drawn against, with the column that holds it.
  const X_AXES = [
    ["step", "step", "step"],
    ["tokens", "tokens", "x/tokens"],
    ["flops", "FLOPs", "x/flops"],
    ["seconds", "seconds", "x/seconds"],
  ];

  const SEVERITIES = { 3: "broken", 2: "learns badly", 1: "worth knowing" };
  const GLYPHS = { running: "▶", finished: "✓", stopped: "◼", failed: "✕", damaged: "✕" };

  const stateBadge = (state) => h("span", { class: `badge ${/^[a-z]+$/.test(state) ? state : ""}` }, h("span", { "aria-hidden": "true" }, `${GLYPHS[state] || "·"} `), state);

  function progress(run) {
    if (!isNumber(run.steps)) return "–";
    const unit = isNumber(run.total_steps) ? `${format.integer(run.steps)} / ${format.integer(run.total_steps)}` : format.integer(run.steps);
    return unit;
  }

  // The worst finding of a run in a few words.
  function findingsCell(run) {
    const findings = run.findings || [];
    if (!findings.length) return h("span", { class: "soft" }, run.message ? run.message : "–");
    const worst = Math.max(...findings.map((one) => one.severity || 1));
    const words = findings.map((one) => `${one.name}: ${one.text}`).join("\n");
    return h("span", { class: worst >= 3 ? "failure" : "caution", title: words }, `⚠ ${findings.map((one) => one.name.replaceAll("_", " ")).join(", ")}`);
  }

  function findingList(run) {
    const items = (run.findings || []).map((one) => h("li", { class: `finding ${one.severity >= 3 ? "serious" : ""}` }, h("b", null, one.name.replaceAll("_", " ")), ` (${SEVERITIES[one.severity] || "worth knowing"}): ${one.text}`));
    return items.length ? h("ul", { class: "findings" }, items) : h("p", { class: "soft" }, "Nothing ails it as far as its metrics tell.");
  }

  // The controls that all curves share: x, smoothing, logarithmic axes. They write themselves into the hash.
  function curveControls(view, axes, onChange) {
    const change = (name) => (value) => {
      view[name] = value;
      viewer.route.set({ [name]: value === true ? "1" : value === "step" || value === 0 ? "" : value });
      onChange(name);
    };
    const shown = h("output", null, String(view.smooth));
    const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(view.smooth), "aria-label": "Smoothing", on: { input: (event) => { shown.textContent = event.target.value; change("smooth")(Number(event.target.value)); } } });
    const known = X_AXES.filter(([key]) => key === "step" || axes.includes(key)).map(([key, words]) => [key, words]);
    return [
      viewer.select("x", known, view.x, change("x"), { "aria-label": "x axis" }),
      h("label", { class: "field" }, "Smoothing ", slider, " ", shown),
      viewer.checkbox("log x", view.logx, change("logx")),
      viewer.checkbox("log y", view.logy, change("logy")),
    ];
  }

  function curveView(params) {
    const smooth = Number(params.smooth);
    return {
      x: X_AXES.some(([key]) => key === params.x) ? params.x : "step",
      smooth: smooth > 0 && smooth < 1 ? smooth : 0,
      logx: params.logx === "1",
      logy: params.logy === "1",
    };
  }

  const xColumn = (key) => X_AXES.find(([name]) => name === key)[2];
  const xLabel = (key) => X_AXES.find(([name]) => name === key)[1];

  // The xs of metrics as the API gives them; null where this run has no such axis.
  function xValues(metrics, key) {
    return key === "step" ? metrics.steps : metrics.columns[xColumn(key)] || null;
  }

  // An exported copy holds all rows of each run: its previews are those.
  viewer.data.answer(/^\/api\/metrics\/preview/, async (_, query) => {
    const ids = (query.get("runs") || "").split(",").filter(Boolean);
    const answers = await Promise.all(ids.map((id) => viewer.data.get(`/api/runs/${id}/metrics`).catch(() => ({ steps: [], columns: {} }))));
    return { runs: Object.fromEntries(ids.map((id, i) => [id, answers[i]])) };
  });

  Object.assign(viewer, { stateBadge, progress, findingsCell, findingList, curveControls, curveView, xLabel, xValues, xColumn });
})();
