// Two or more runs paired by problem: who won, how sure that is, and both answers side by side.
"use strict";

(() => {
  const { h, format, data, route, isNumber } = viewer;

  const FILTERS = [
    ["", "All"], ["won", "Won"], ["lost", "Lost"], ["tied", "Ties"], ["none", "Nobody right"],
  ];

  function render(root, params) {
    const page = { ended: false, view: { filter: params.show || "", q: params.q || "", problem: params.problem || "", other: Number(params.other) || 1 } };
    const body = h("div");
    const chooser = viewer.runChooser({
      ids: (params.runs || "").split(",").filter(Boolean), title: "Runs to compare", fits: (run) => run.has_traces,
      onChange: (ids) => { page.view.other = 1; load(ids); },
    });
    page.chooser = chooser;
    root.append(h("h2", null, "Compare"), chooser.element, body);

    async function load(ids) {
      route.set({ runs: ids.join(","), other: "" });
      if (ids.length < 2) {
        return body.replaceChildren(h("p", { class: "empty" }, ids.length ? "Add a second run on the same problems." : "Add two or more runs on the same problems. They are paired problem by problem, and each is compared with the first."));
      }
      body.replaceChildren(viewer.waiting("Pairing the problems …"));
      try {
        await chooser.ready;
        const answer = await data.get(data.path("/api/compare", { runs: ids.join(",") }));
        if (!page.ended) show(body, answer, page);
      } catch (error) {
        if (!page.ended) viewer.showError(error, body);
      }
    }
    load(chooser.ids);
    return () => {
      page.ended = true;
    };
  }

  function show(body, answer, page) {
    page.answer = answer;
    page.names = answer.names;
    const detail = h("div", { class: "detail", "aria-live": "polite" });
    body.replaceChildren(systemsPanel(answer, page), differencesPanel(answer, page), problemsPanel(answer, page, detail), detail);
    const opened = answer.pairs.findIndex((pair) => String(pair.problem_id) === page.view.problem);
    if (opened >= 0) openProblem(detail, answer.pairs[opened], page).then(() => detail.scrollIntoView({ block: "nearest" }));
  }

  // ---- accuracy of each, and the differences

  // An interval as a line with a dot, on a scale from `least` to `most`.
  function intervalBar(mean, low, high, least, most, series) {
    const at = (value) => 4 + 192 * Math.max(0, Math.min(1, (value - least) / (most - least)));
    const color = viewer.theme.series(series);
    return h("svg:svg", { viewBox: "0 0 200 20", width: 200, height: 20, role: "img", "aria-label": `${format.number(mean)}, 95 % interval ${format.number(low)} to ${format.number(high)}` },
      h("svg:line", { x1: 4, x2: 196, y1: 10, y2: 10, stroke: viewer.theme.color("line") }),
      least < 0 ? h("svg:line", { x1: at(0), x2: at(0), y1: 1, y2: 19, stroke: viewer.theme.color("soft"), "stroke-dasharray": "2 2" }) : null,
      h("svg:line", { x1: at(low), x2: at(high), y1: 10, y2: 10, stroke: color, "stroke-width": 3 }),
      [low, high].map((end) => h("svg:line", { x1: at(end), x2: at(end), y1: 5, y2: 15, stroke: color, "stroke-width": 2 })),
      h("svg:circle", { cx: at(mean), cy: 10, r: 5, fill: color }));
  }

  function plainTable(label, heads, rows) {
    return h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": label }, h("table", { "aria-label": label },
      h("thead", null, h("tr", null, heads.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", null, rows.map((cells) => h("tr", null, cells.map((cell, i) => h(i ? "td" : "th", i ? { class: heads[i][1] } : { scope: "row", class: "row-name" }, cell)))))));
  }

  function systemsPanel(answer, page) {
    const spent = [["tokens", "Tokens", format.short], ["flops", "FLOPs", format.short], ["seconds", "Seconds", format.number], ["dollars", "Dollars", format.number]]
      .filter(([key]) => answer.systems.some((one) => isNumber(one[key])));
    const heads = [["Run", ""], ["Accuracy", "numeric"], ["95 % interval", ""], ["Samples", "numeric minor"], ...spent.map(([, title]) => [`${title} / problem`, "numeric minor"])];
    const rows = answer.systems.map((one, i) => [
      [h("i", { class: "swatch", style: { background: viewer.theme.series(i) } }), answer.names[i]],
      format.percent(one.accuracy),
      h("span", null, intervalBar(one.accuracy, one.low, one.high, 0, 1, i), h("span", { class: "soft small" }, ` ${format.percent(one.low)} to ${format.percent(one.high)}`)),
      Array.isArray(one.samples) ? (one.samples[0] === one.samples[1] ? one.samples[0] : `${one.samples[0]} to ${one.samples[1]}`) : "–",
      ...spent.map(([key, , text]) => text(one[key])),
    ]);
    const notes = (answer.notes || []).map((note) => h("p", { class: "soft small" }, note));
    return h("section", { class: "panel", "aria-label": "Accuracy" }, h("h3", null, `Accuracy on ${format.count(answer.problems, "problem")}`), plainTable("Accuracy", heads, rows), notes);
  }

  // Won, tied and lost as one bar. The words and the hatching tell them apart without colour.
  function outcomeBar(pair) {
    const parts = [["won", pair.wins], ["tied", pair.ties], ["lost", pair.losses]];
    const words = parts.map(([name, count]) => `${count} ${name}`).join(", ");
    return h("span", { class: "outcome", role: "img", "aria-label": words }, parts.filter(([, count]) => count).map(([name, count]) => h("span", { class: name, title: `${count} ${name}`, style: { flex: String(count) } }, count)));
  }

  // What a difference means, in words.
  function verdict(pair) {
    const points = `${format.number(Math.abs(100 * pair.difference))} points`;
    const side = pair.difference > 0 ? "more" : "fewer";
    const sure = pair.adjusted_p < 0.05;
    if (pair.difference === 0) return `${pair.first} and ${pair.second} solve equally many.`;
    const need = pair.problems_needed && pair.problems_needed > pair.total ? ` To see a difference of this size, ${format.integer(pair.problems_needed)} problems would be needed.` : "";
    return `${pair.first} solves ${points} ${side} than ${pair.second}: ${sure ? "more than chance explains" : "chance can explain it"}.${sure ? "" : need}`;
  }

  function differencesPanel(answer) {
    const most = Math.max(0.05, ...answer.differences.flatMap((pair) => [Math.abs(pair.low), Math.abs(pair.high)]));
    const heads = [["Difference", ""], ["Won, tied, lost", ""], ["Points", "numeric"], ["95 % interval", ""], ["p", "numeric"], ["p, adjusted", "numeric minor"]];
    const rows = answer.differences.map((pair) => [
      `${pair.first} − ${pair.second}`, outcomeBar(pair), `${pair.difference > 0 ? "+" : ""}${(100 * pair.difference).toFixed(1)}`,
      h("span", null, intervalBar(pair.difference, pair.low, pair.high, -most, most, answer.names.indexOf(pair.first)), h("span", { class: "soft small" }, ` ${(100 * pair.low).toFixed(1)} to ${(100 * pair.high).toFixed(1)}`)),
      format.p(pair.p), format.p(pair.adjusted_p),
    ]);
    const tests = [...new Set(answer.differences.map((pair) => pair.test).filter(Boolean))].join("; ");
    return h("section", { class: "panel", "aria-label": "Differences" }, h("h3", null, "Differences on the same problems"), plainTable("Differences", heads, rows),
      answer.differences.map((pair) => h("p", null, verdict(pair))), h("p", { class: "soft small" }, tests ? `Test: ${tests}. Adjusted for several comparisons (Holm 1979).` : ""));
  }

  // ---- the problems

  // How the run `other` did against the first on a problem.
  function outcome(pair, other) {
    const [first, second] = [pair.results[0]?.value, pair.results[other]?.value];
    if (!isNumber(first) || !isNumber(second)) return "unknown";
    return second > first ? "won" : second < first ? "lost" : "tied";
  }

  const isNobodyRight = (pair) => pair.results.every((result) => !isNumber(result?.value) || result.value === 0);

  function resultCell(result) {
    if (!result || !isNumber(result.value)) return h("span", { class: "soft", title: "no verdict" }, "?");
    const kind = result.value === 1 ? "right" : result.value === 0 ? "wrong" : "partly";
    const glyph = { right: "✓", wrong: "✗", partly: "◐" }[kind];
    return h("span", { class: `result ${kind}`, title: kind }, `${glyph} `, h("span", { class: "answer" }, result.answer ?? format.number(result.value)));
  }

  function problemsPanel(answer, page, detail) {
    const { view } = page;
    const buttons = h("span", { role: "group", "aria-label": "Outcome", class: "segments" });
    const others = answer.names.slice(1).map((name, i) => [i + 1, name]);
    const columns = [
      { key: "problem_id", title: "Problem", minor: true, text: (pair) => String(pair.problem_id) },
      { key: "question", title: "Question", class: "question", text: (pair) => pair.question || String(pair.problem_id) },
      { key: "gold", title: "Reference", minor: true, text: (pair) => (pair.gold === null || pair.gold === undefined ? "–" : typeof pair.gold === "string" ? pair.gold : JSON.stringify(pair.gold)) },
      ...answer.names.map((name, i) => ({ key: `result-${i}`, title: name, text: (pair) => resultCell(pair.results[i]), value: (pair) => pair.results[i]?.value ?? null })),
      { key: "outcome", title: "Outcome", text: (pair) => h("span", { class: `result ${outcome(pair, view.other)}` }, outcome(pair, view.other)), value: (pair) => outcome(pair, view.other) },
    ];
    const table = viewer.table({ columns, rows: [], label: "Problems", tall: "42vh", open: (pair) => { view.problem = String(pair.problem_id); route.set({ problem: view.problem }); openProblem(detail, pair, page).then(() => detail.scrollIntoView({ block: "nearest" })); }, empty: "No problem is like this." });
    const fits = (pair, filter) => (filter === "" ? true : filter === "none" ? isNobodyRight(pair) : outcome(pair, view.other) === filter);
    function draw() {
      const words = view.q.toLowerCase();
      const rows = answer.pairs.filter((pair) => !words || `${pair.problem_id} ${pair.question}`.toLowerCase().includes(words));
      buttons.replaceChildren(...FILTERS.map(([key, title]) => h("button", { type: "button", "aria-pressed": String(view.filter === key), on: { click: () => { view.filter = key; route.set({ show: key }); draw(); } } }, `${title} ${rows.filter((pair) => fits(pair, key)).length}`)));
      table.update(rows.filter((pair) => fits(pair, view.filter)));
    }
    const search = h("input", { type: "search", value: view.q, placeholder: "Filter problems", "aria-label": "Filter problems", data: { filter: "" }, on: { input: viewer.later(() => { view.q = search.value; route.set({ q: view.q }); draw(); }) } });
    const save = h("button", { type: "button", on: { click: () => viewer.download("compare.csv", pairsCsv(answer, view), "text/csv") } }, "CSV");
    viewer.keys.add({ key: "j", text: "into the problems; then j and k move, Enter opens", run: () => table.focus() });
    draw();
    return h("section", { class: "panel", "aria-label": "Problems" }, h("h3", null, "Problem by problem"),
      h("div", { class: "controls" }, search, others.length > 1 ? viewer.select(`Against ${answer.names[0]}`, others, view.other, (value) => { view.other = Number(value); route.set({ other: value === "1" ? "" : value }); draw(); }) : h("span", { class: "soft small" }, `${answer.names[1]} against ${answer.names[0]}`), buttons, h("span", { class: "spacer" }), save),
      table.element);
  }

  function pairsCsv(answer, view) {
    const head = ["problem", "question", ...answer.names.flatMap((name) => [name, `${name} answer`]), "outcome"];
    return viewer.csv([head, ...answer.pairs.map((pair) => [pair.problem_id, pair.question, ...pair.results.flatMap((result) => [result?.value, result?.answer]), outcome(pair, view.other)])]);
  }

  // ---- both answers side by side

  async function openProblem(box, pair, page) {
    const { answer, view } = page;
    const sides = [0, Math.min(view.other, answer.names.length - 1)];
    const ids = page.chooser.ids;
    box.replaceChildren(viewer.waiting("Reading both answers …"));
    try {
      const traces = await Promise.all(sides.map((side) => (isNumber(pair.results[side]?.number) ? data.get(`/api/runs/${ids[side]}/traces/${pair.results[side].number}`) : null)));
      if (page.ended) return;
      const texts = traces.map((trace) => (trace ? chosenText(trace) : ""));
      box.replaceChildren(h("section", { class: "panel", "aria-label": "Both answers" },
        h("div", { class: "headline" }, h("h3", null, `Problem ${pair.problem_id}`), h("span", { class: "spacer" }), h("button", { type: "button", class: "quiet", "aria-label": "Close", on: { click: () => { view.problem = ""; route.set({ problem: "" }); box.replaceChildren(); } } }, "✕")),
        h("p", { class: "model-text" }, questionOf(traces, pair)),
        pair.gold === null || pair.gold === undefined ? "" : h("p", null, h("span", { class: "soft" }, "Reference: "), h("code", null, typeof pair.gold === "string" ? pair.gold : JSON.stringify(pair.gold))),
        sideBySide(sides, traces, texts, pair, page, ids)));
    } catch (error) {
      viewer.showError(error, box);
    }
  }

  const questionOf = (traces, pair) => {
    const whole = traces.find((trace) => trace?.problem?.question)?.problem.question;
    return typeof whole === "string" ? whole : pair.question || "";
  };

  // The text of the completion that the run gave as its answer, or of the first one.
  function chosenText(trace) {
    const paths = trace.completions || [];
    const path = paths.find((one) => one.at(-1) === trace.chosen) || paths[0] || [];
    return path.slice(1).map((i) => trace.steps?.[i]?.text ?? "").join("");
  }

  function sideBySide(sides, traces, texts, pair, page, ids) {
    const parts = viewer.wordDiff && texts.every(Boolean) ? viewer.wordDiff.diff(texts[0], texts[1]).parts : null;
    const boxes = sides.map((side, place) => {
      const result = pair.results[side];
      const text = h("div", { class: "model-text diff whole" });
      const hidden = place === 0 ? 1 : -1; // what only the other one wrote
      const draw = (marked) => text.replaceChildren(...(!texts[place] ? [h("span", { class: "soft" }, "There is no text.")]
        : marked && parts ? parts.filter(([kind]) => kind !== hidden).map(([kind, words]) => h(kind === 0 ? "span" : place === 0 ? "del" : "ins", null, words)) : [texts[place]]));
      draw(true);
      const link = traces[place] ? h("a", { href: route.link(`/rollouts/${ids[side]}/${result.number}`) }, "whole rollout") : "";
      const column = h("section", { class: "side", "aria-label": page.names[side] },
        h("h4", null, h("i", { class: "swatch", style: { background: viewer.theme.series(side) } }), page.names[side], " ", resultCell(result)),
        h("p", { class: "soft small" }, isNumber(result?.tokens) ? `${format.integer(result.tokens)} tokens · ` : "", link), text);
      return { column, draw };
    });
    const marks = viewer.checkbox("mark differences", true, (marked) => boxes.forEach((one) => one.draw(marked)));
    return h("div", null, parts ? h("div", { class: "controls" }, marks, h("span", { class: "soft small diff" }, h("del", null, "only on the left"), " ", h("ins", null, "only on the right"))) : "", h("div", { class: "sides" }, boxes.map((one) => one.column)));
  }

  viewer.intervalBar = intervalBar;
  viewer.pages.add({ name: "compare", title: "Compare", path: /^\/compare$/, key: "c", render });
})();
