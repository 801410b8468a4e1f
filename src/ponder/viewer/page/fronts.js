// What compute bought: accuracy against cost, coverage and votes against samples, calibration, problems by budget.
"use strict";

(() => {
  const { h, format, data, route, isNumber } = viewer;

  const COSTS = [
    ["tokens", "tokens per problem"],
    ["flops", "FLOPs per problem"],
    ["seconds", "seconds per problem"],
    ["dollars", "dollars per problem"],
  ];
  const LAW_POINTS = 40;
  const SURE = 0.95; // the chance from which on a problem counts as solved

  function render(root, params) {
    const page = { ended: false, charts: [], view: { x: params.x || "tokens", logx: params.logx !== "0", k: Number(params.k) || 0, q: params.q || "", run: params.run || "" } };
    const body = h("div");
    const chooser = viewer.runChooser({ ids: (params.runs || "").split(",").filter(Boolean), title: "Runs", fits: (run) => run.has_traces, onChange: load });
    page.chooser = chooser;
    root.append(h("h2", null, "Fronts"), chooser.element, body);

    async function load(ids) {
      clear(page);
      if (!ids.length) {
        return body.replaceChildren(h("p", { class: "empty" }, "Add runs: evaluations of one task with several strategies, sample counts or budgets show what each unit of compute bought."));
      }
      body.replaceChildren(viewer.waiting("Measuring …"));
      try {
        await chooser.ready;
        const answer = await data.get(data.path("/api/fronts", { runs: ids.join(",") }));
        if (!page.ended) show(body, answer, page);
      } catch (error) {
        if (!page.ended) viewer.showError(error, body);
      }
    }
    load(chooser.ids);
    return () => {
      page.ended = true;
      clear(page);
    };
  }

  function clear(page) {
    page.charts.forEach((chart) => chart.destroy());
    page.charts = [];
  }

  function addChart(page, settings) {
    const chart = viewer.chart(settings);
    page.charts.push(chart);
    return chart;
  }

  function show(body, answer, page) {
    clear(page);
    const panels = [frontPanel, coveragePanel, calibrationPanel, budgetPanel].map((panel) => panel(answer, page)).filter(Boolean);
    const notes = (answer.notes || []).map((note) => h("p", { class: "soft small" }, note));
    body.replaceChildren(h("div", { class: "cards fronts" }, panels), ...notes);
  }

  const colorOf = (page, run) => Math.max(0, page.chooser.ids.indexOf(run));

  // ---- accuracy against cost

  function frontPanel(answer, page) {
    const { view } = page;
    const known = COSTS.filter(([key]) => answer.points.some((one) => isNumber(one[key])));
    if (!known.length) return h("section", { class: "panel" }, h("h3", null, "Accuracy against cost"), h("p", { class: "soft" }, "These runs do not tell what they cost."));
    if (!known.some(([key]) => key === view.x)) view.x = known[0][0];
    const settings = () => {
      const label = COSTS.find(([key]) => key === view.x)[1];
      const points = answer.points.filter((one) => isNumber(one[view.x]));
      const line = ((answer.front || {})[view.x] || []).map((run) => points.find((one) => one.run === run)).filter(Boolean);
      const series = points.map((one) => ({ name: page.chooser.name(one.run), x: [one[view.x]], y: [one.accuracy], low: [one.low], high: [one.high], color: colorOf(page, one.run), line: false, points: true }));
      if (line.length > 1) series.unshift({ name: "front", x: line.map((one) => one[view.x]), y: line.map((one) => one.accuracy), color: 6, dash: 1 });
      return { series, x: { label, log: view.logx }, y: { label: "accuracy" } };
    };
    const chart = addChart(page, { title: "Accuracy against cost", file: "front", height: 300, ...settings() });
    const change = () => chart.update(settings());
    const missing = answer.points.filter((one) => !isNumber(one[view.x])).map((one) => page.chooser.name(one.run));
    return h("section", { class: "panel wide", "aria-label": "Accuracy against cost" },
      h("div", { class: "controls" },
        viewer.select("Cost", known, view.x, (value) => { view.x = value; route.set({ x: value }); change(); }),
        viewer.checkbox("log x", view.logx, (value) => { view.logx = value; route.set({ logx: value ? "" : "0" }); change(); })),
      chart.element, h("p", { class: "soft small" }, "Bars are 95 % intervals over problems. ", missing.length ? `Without this cost: ${missing.join(", ")}.` : ""));
  }

  // ---- coverage and votes against samples

  function coveragePanel(answer, page) {
    const runs = [...new Set(answer.coverage.map((one) => one.run))].filter((run) => answer.coverage.some((one) => one.run === run && one.k > 1));
    if (!runs.length) return null;
    const series = [];
    const words = [];
    for (const run of runs) {
      const rows = answer.coverage.filter((one) => one.run === run).sort((a, b) => a.k - b.k);
      const name = page.chooser.name(run);
      const color = colorOf(page, run);
      const x = rows.map((one) => one.k);
      series.push({ name: `${name}: pass@k`, x, y: rows.map((one) => one.pass_at_k), low: rows.map((one) => one.low), high: rows.map((one) => one.high), color, dash: 0, points: true });
      if (rows.some((one) => isNumber(one.vote))) series.push({ name: `${name}: vote of k`, x, y: rows.map((one) => one.vote ?? null), color, dash: 1, points: true });
      const law = (answer.law || {})[run];
      if (law) {
        series.push({ name: `${name}: law`, ...lawLine(law, x.at(-1)), color, dash: 2 });
        words.push(`${name}: coverage ≈ exp(${format.number(law.a)} · k^${format.number(law.b)})`);
      }
    }
    const chart = addChart(page, { title: "Coverage and votes against samples", file: "coverage", height: 300, series, x: { label: "samples k", log: true }, y: { label: "share of problems" } });
    return h("section", { class: "panel", "aria-label": "Coverage" }, chart.element, h("p", { class: "soft small" }, "Bands are 95 % intervals over problems. ", words.join("; "), words.length ? " (Brown et al. 2024), drawn to 8 times the samples there are." : ""));
  }

  function lawLine(law, last) {
    const most = 8 * last;
    const x = Array.from({ length: LAW_POINTS }, (_, i) => most ** (i / (LAW_POINTS - 1)));
    return { x, y: x.map((k) => Math.exp(law.a * k ** law.b)) };
  }

  // ---- calibration

  function calibrationPanel(answer, page) {
    const curves = (answer.calibration || []).filter((one) => one.bins?.length);
    if (!curves.length) return null;
    const series = [{ name: "perfect", x: [0, 1], y: [0, 1], color: 6, dash: 1 }];
    for (const one of curves) {
      const bins = one.bins.filter((bin) => isNumber(bin.confidence));
      series.push({ name: `${page.chooser.name(one.run)}: ${one.scorer || "confidence"}`, x: bins.map((bin) => bin.confidence), y: bins.map((bin) => bin.accuracy), low: bins.map((bin) => bin.low ?? null), high: bins.map((bin) => bin.high ?? null), color: colorOf(page, one.run), points: true, labels: bins.map((bin) => format.count(bin.count, "answer")) });
    }
    const chart = addChart(page, { title: "Calibration", file: "calibration", height: 300, series, x: { label: "confidence" }, y: { label: "accuracy", range: [0, 1.04] } });
    const words = curves.map((one) => `${page.chooser.name(one.run)}: ECE ${format.number(one.ece)}, Brier ${format.number(one.brier)}`).join("; ");
    return h("section", { class: "panel", "aria-label": "Calibration" }, chart.element, h("p", { class: "soft small" }, words));
  }

  // ---- which problems a budget would solve

  function budgetPanel(answer, page) {
    const { view } = page;
    const known = (answer.solved || []).filter((one) => one.problems?.length);
    if (!known.length) return null;
    const chosen = () => known.find((one) => one.run === view.run) || known[0];
    const table = viewer.table({
      label: "Problems by chance", tall: "24rem", rows: [], sort: "chance", empty: "No problem matches.",
      columns: [
        { key: "question", title: "Problem", class: "question", text: (row) => row.question || String(row.problem_id) },
        { key: "right", title: "Right", numeric: true, text: (row) => (isNumber(row.n) ? `${row.c} of ${row.n}` : "–"), value: (row) => row.c / row.n, tip: "samples that were right" },
        { key: "chance", title: "Chance", numeric: true, text: (row) => format.percent(row.chance, 0), tip: "of at least one right answer within the budget" },
        { key: "bar", title: "", sortable: false, text: (row) => h("span", { class: "chance" }, h("span", { style: { width: `${100 * (row.chance || 0)}%` } })) },
      ],
    });
    const sentence = h("p", { role: "status" });
    const slider = h("input", { type: "range", min: "0", step: "1", "aria-label": "Samples per problem", on: { input: () => { view.k = chosen().k[Number(slider.value)]; route.set({ k: view.k }); draw(); } } });
    const search = h("input", { type: "search", value: view.q, placeholder: "Filter problems", "aria-label": "Filter problems", data: { filter: "" }, on: { input: viewer.later(() => { view.q = search.value; route.set({ q: view.q }); draw(); }) } });
    function draw() {
      const one = chosen();
      let place = one.k.findLastIndex((k) => k <= (view.k || one.k.at(-1)));
      place = Math.max(0, place);
      slider.max = String(one.k.length - 1);
      slider.value = String(place);
      const rows = one.problems.map((problem) => ({ ...problem, chance: problem.chance[place] }));
      const [sure, hopeless] = [rows.filter((row) => row.chance >= SURE).length, rows.filter((row) => row.chance === 0).length];
      const expected = rows.reduce((sum, row) => sum + (row.chance || 0), 0);
      const tokens = isNumber(one.tokens_per_sample) ? `, about ${format.short(one.k[place] * one.tokens_per_sample)} tokens a problem` : "";
      sentence.textContent = `With ${format.count(one.k[place], "sample")} a problem${tokens}: ${format.number(expected)} of ${rows.length} problems have a right answer on average, ${sure} almost surely, ${hopeless} never so far.`;
      table.update(rows.filter((row) => `${row.problem_id} ${row.question}`.toLowerCase().includes(view.q.toLowerCase())));
    }
    draw();
    const save = h("button", { type: "button", on: { click: () => viewer.download("problems-by-budget.csv", budgetCsv(chosen()), "text/csv") } }, "CSV");
    return h("section", { class: "panel wide", "aria-label": "Problems by budget" }, h("h3", null, "Which problems a budget would solve"),
      h("div", { class: "controls" }, known.length > 1 ? viewer.select("Run", known.map((one) => [one.run, page.chooser.name(one.run)]), chosen().run, (value) => { view.run = value; route.set({ run: value }); draw(); }) : "",
        h("label", { class: "field" }, "Samples ", slider), search, h("span", { class: "spacer" }), save),
      sentence, table.element);
  }

  function budgetCsv(one) {
    return viewer.csv([["problem", "question", "samples", "right", ...one.k.map((k) => `chance at ${k}`)], ...one.problems.map((row) => [row.problem_id, row.question, row.n, row.c, ...row.chance])]);
  }

  viewer.pages.add({ name: "fronts", title: "Fronts", path: /^\/fronts$/, key: "f", render });
})();
