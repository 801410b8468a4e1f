// The page Rollouts: the traces of a run as rows, filtered and sorted by the server.
// #/rollouts/RUN?sort=&step=&problem=&min_reward=&max_reward=&stop=&text=
(() => {
  "use strict";
  const { h, format, data, route } = viewer;

  const PAGE_ROWS = 100;
  const REFRESH_MS = 700; // until the next request, while the server still reads traces
  const STOPS = [["", "any"], ["eos", "end of sequence"], ["stop", "stop string"], ["length", "max_tokens"]];

  const span = (pair) => (pair && pair[0] !== null && pair[0] !== undefined
    ? pair[0] === pair[1] ? format.number(pair[0]) : `${format.number(pair[0])} … ${format.number(pair[1])}` : "–");

  const COLUMNS = [
    { key: "number", title: "#", numeric: true, text: (row) => String(row.number) },
    { key: "step", title: "Step", numeric: true, sortable: false, text: (row) => format.integer(row.step) },
    { key: "question", title: "Question", sortable: false, class: "wide", text: (row) => viewer.treeDrawing.labelText(row.question) || row.problem_id },
    { key: "reward", title: "Reward", numeric: true, text: (row) => format.number(row.reward) },
    { key: "answer", title: "Answer", sortable: false, text: (row) => verdictText(row) },
    { key: "completions", title: "Completions", numeric: true, sortable: false, minor: true, text: (row) => format.integer(row.completions) },
    { key: "length", title: "Tokens", numeric: true, text: (row) => format.integer(row.tokens) },
    { key: "advantage", title: "Advantage", numeric: true, minor: true, tip: "least … greatest of its tokens", text: (row) => span(row.advantage) },
    { key: "ratio", title: "Ratio", numeric: true, minor: true, tip: "mean of |log ratio|, where a token's ratio is the probability it was sampled with, divided by the reference's", text: (row) => format.number(row.ratio) },
    { key: "stop", title: "Stop", sortable: false, minor: true, text: (row) => stopText(row) },
    { key: "open", title: "", sortable: false, text: () => "" },
  ];

  // "length" or "eos 3, length 1"
  function stopText(row) {
    const stop = row.stop;
    if (!stop) return "–";
    if (typeof stop === "string") return stop;
    return Object.entries(stop).map(([name, count]) => (Object.keys(stop).length > 1 ? `${name} ${count}` : name)).join(", ");
  }

  function verdictText(row) {
    if (row.failed) return h("span", { class: "lost" }, "failed");
    const answer = viewer.rolloutParts.shortText(row.answer);
    const sign = row.verdict === true || row.verdict === 1 ? "✓ " : row.verdict === false || row.verdict === 0 ? "✗ " : "";
    return h("span", { class: sign === "✓ " ? "won" : sign ? "lost" : null, title: row.gold === undefined || row.gold === null ? null : `gold answer: ${viewer.rolloutParts.shortText(row.gold)}` },
      `${sign}${answer.slice(0, 60)}` || "–");
  }

  // The table of a run's traces with its filters. `page` is where a row leads.
  function traceTable(root, run, { page = "rollouts", title = "Rollouts" } = {}) {
    route.run = run;
    const abort = new AbortController();
    const query = filterOf(route.params);
    const heading = h("p", { class: "soft", role: "status" });
    const box = h("div");
    let rows = [], table = null, generation = 0;
    const pending = new Set();

    const address = (number) => data.path(`/api/runs/${run}/traces`, { ...query, page: number, size: PAGE_ROWS });

    async function loadPage(number) {
      if (pending.has(number)) return;
      pending.add(number);
      const mine = generation;
      try {
        const answer = await data.get(address(number), { signal: abort.signal });
        if (mine !== generation) return;
        if (rows.length !== answer.total) rows.length = answer.total;
        answer.rows.forEach((row, i) => { rows[number * PAGE_ROWS + i] = row; });
        say(answer);
        show();
        if (answer.complete === false) setTimeout(() => mine === generation && !abort.signal.aborted && load(number), REFRESH_MS);
      } finally {
        pending.delete(number);
      }
    }

    const load = (number) => loadPage(number).catch((error) => viewer.showError(error, table ? null : box));

    function say(answer) {
      const reading = answer.complete === false ? `, ${format.integer(answer.indexed)} read so far` : "";
      const all = !reading && answer.indexed > answer.total ? ` of ${format.integer(answer.indexed)}` : "";
      heading.textContent = `${format.integer(answer.total)}${all} ${answer.total === 1 ? "trace" : "traces"}${reading}`;
    }

    function show() {
      if (table) return table.update(rows);
      table = viewer.table({
        label: title, columns: COLUMNS.map((column) => (column.key === "open" ? { ...column, text: links } : column)),
        rows, sort: query.sort || "number", serverSort: true, tall: "72vh",
        empty: "No trace matches these filters.",
        href: (row) => route.link(`/${page === "tree" ? "tree" : "rollouts"}/${run}/${row.number}`),
        need: (from, to) => {
          for (let k = Math.floor(from / PAGE_ROWS); k <= Math.floor(Math.max(from, to - 1) / PAGE_ROWS); k++) if (rows[k * PAGE_ROWS] === undefined) load(k);
        },
        onSort: (sort) => change({ sort }),
      });
      box.replaceChildren(table.element);
    }

    function links(row) {
      return row.is_tree || row.nodes > row.completions + 1
        ? h("a", { href: route.link(`/tree/${run}/${row.number}`), title: `${format.count(row.nodes, "node")}` }, "tree")
        : "";
    }

    function change(changes) {
      Object.assign(query, changes);
      route.set(changes);
      generation++;
      rows = [];
      pending.clear();
      load(0);
    }

    root.append(
      h("div", { class: "headline" }, h("h2", null, title), heading, h("a", { class: "small", href: route.link(`/run/${run}`) }, "the run")),
      filters(query, viewer.later(change, 250)), box);
    box.append(viewer.waiting());
    load(0);
    const endWatch = data.watch(run, viewer.later(() => refresh(), 1500));
    function refresh() {
      if (abort.signal.aborted) return;
      generation++;
      pending.clear();
      load(0);
    }
    viewer.keys.add({ key: "j", text: "into the table", run: () => table?.focus() });
    return () => {
      abort.abort();
      endWatch();
    };
  }

  function filterOf(params) {
    const names = ["sort", "step", "problem", "min_reward", "max_reward", "stop", "text"];
    return Object.fromEntries(names.filter((name) => params[name]).map((name) => [name, params[name]]));
  }

  function filters(query, change) {
    const field = (label, name, attributes) => h("label", { class: "field" }, `${label} `,
      h("input", { name, value: query[name] || "", autocomplete: "off", ...attributes, on: { input: (event) => change({ [name]: event.target.value.trim() }) } }));
    const number = { type: "number", step: "any", class: "short" };
    return h("div", { class: "controls filters" },
      field("Text", "text", { type: "search", placeholder: "in questions and answers", "data-filter": true }),
      field("Step", "step", { type: "number", min: 0, class: "short" }),
      field("Problem", "problem", { type: "search", class: "medium" }),
      field("Reward from", "min_reward", number),
      field("to", "max_reward", number),
      viewer.select("Stop", STOPS, query.stop || "", (stop) => change({ stop }), { name: "stop" }));
  }

  viewer.traceTable = traceTable;
  viewer.pages.add({
    name: "rollouts", title: "Rollouts", key: "o", path: /^\/rollouts(?:\/([\w-]+))?$/,
    home: (run) => (run ? `/rollouts/${run}` : "/rollouts"),
    render(root, params) {
      const run = params.match[1];
      return run ? traceTable(root, run) : choosing(root);
    },
  });

  function choosing(root) {
    viewer.choosing.run(root, "rollouts", "Rollouts of which run?");
  }
})();
