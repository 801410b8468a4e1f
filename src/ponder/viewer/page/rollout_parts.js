// What the pages of rollouts share: choosing a run or a trace, tables of scores, texts of completions.
(() => {
  "use strict";
  const { h, format, data, route } = viewer;

  const choosing = {
    // The runs that have traces; each links to `#/PAGE/RUN`.
    run(root, page, title) {
      const box = h("div", null, viewer.waiting());
      root.append(h("h2", null, title), box);
      data.get("/api/runs").then(({ runs }) => {
        const rows = runs.filter((run) => run.has_traces);
        const table = viewer.table({
          label: "Runs with traces", rows, id: (run) => run.id, href: (run) => route.link(`/${page}/${run.id}`),
          empty: "No run here has traces yet.",
          columns: [
            { key: "name", title: "Run" },
            { key: "kind", title: "Kind", text: (run) => run.kind || run.job },
            { key: "task", title: "Task" },
            { key: "state", title: "State" },
            { key: "modified", title: "Changed", numeric: true, minor: true, text: (run) => format.ago(run.modified) },
          ],
        });
        box.replaceChildren(table.element);
      }).catch((error) => viewer.showError(error, box));
    },

    // Where the address names a run but no trace: the table of its traces; without a run, the runs.
    trace(root, run, page, title) {
      if (!run) return choosing.run(root, page, title);
      return viewer.traceTable(root, run, { page, title });
    },
  };

  // Scores by scorer: value, the reason it gave, and the scores of single steps.
  function scoreTable(scores) {
    const rows = scores.map(([name, score]) => h("tr", null,
      h("th", { scope: "row" }, name),
      h("td", { class: "numeric" }, score.value === null || score.value === undefined ? "undecided" : format.number(score.value)),
      h("td", { class: "wrap" }, score.reason || "",
        score.steps?.length ? h("span", { class: "soft small" }, ` steps: ${score.steps.slice(0, 60).map(format.number).join(", ")}`) : "")));
    return h("table", { class: "scores", "aria-label": "Scores" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Score"), h("th", { scope: "col", class: "numeric" }, "Value"), h("th", { scope: "col" }, "Reason"))),
      h("tbody", null, rows));
  }

  // The text that the policy and its tools wrote on a path: without the prompt.
  const pathText = (trace, path) => path.slice(1).map((i) => trace.steps?.[i]?.text ?? "").join("");

  // Messages with their roles.
  function messageList(messages) {
    return (messages || []).map((message) => h("div", { class: "message" },
      h("span", { class: "message-role" }, String(message.role ?? "")),
      h("div", { class: "model-text" }, typeof message.content === "string" ? message.content : JSON.stringify(message.content))));
  }

  const shortText = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));

  viewer.choosing = choosing;
  viewer.rolloutParts = { scoreTable, pathText, messageList, shortText };
})();
