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
  // An episode's turns: what the policy wrote, and what its environment said after it. Any other completion is one.
  function turnsOf(trace, path) {
    const turns = [];
    for (const step of path.slice(1).map((i) => trace.steps?.[i] || {})) {
      const last = turns[turns.length - 1], role = step.turn ? "environment" : "policy";
      if (last && last.role === role && !step.turn) last.text += step.text ?? "";
      else turns.push({ role, text: step.text ?? "", reward: null });
      const reward = step.scores?.turn_reward;
      if (reward) turns[turns.length - 1].reward = reward;
    }
    return turns;
  }

  const pathText = (trace, path) => turnsOf(trace, path).map((turn) => turn.text).join(path.some((i) => trace.steps?.[i]?.turn) ? "\n" : "");

  // Messages with their roles; a part may be a picture, with these boxes drawn over it.
  function messageList(messages, boxes = []) {
    return (messages || []).map((message) => h("div", { class: "message" },
      h("span", { class: "message-role" }, String(message.role ?? "")),
      Array.isArray(message.content) ? message.content.map((part) => messagePart(part, boxes))
        : h("div", { class: "model-text" }, typeof message.content === "string" ? message.content : JSON.stringify(message.content))));
  }

  function messagePart(part, boxes) {
    const url = part?.image_url?.url ?? part?.image_url ?? part?.image ?? part?.url;
    const size = pngSize(url);
    if (size) return picture(url, size, boxes);
    return h("div", { class: "model-text" }, typeof part?.text === "string" ? part.text : JSON.stringify(part));
  }

  // Width and height in the header of a PNG data URL; null for anything else, which is never loaded.
  function pngSize(url) {
    if (typeof url !== "string" || !/^data:image\/png;base64,[A-Za-z0-9+/]{44,}={0,2}$/.test(url)) return null;
    const bytes = atob(url.slice(22, 22 + 32));
    const whole = (at) => [0, 1, 2, 3].reduce((sum, i) => sum * 256 + bytes.charCodeAt(at + i), 0);
    return whole(16) && whole(20) ? [whole(16), whole(20)] : null;
  }

  function picture(url, [width, height], boxes) {
    const drawn = boxes.filter(({ box: [x1, y1, x2, y2] }) => x1 < x2 && y1 < y2).slice(0, 200);
    return h("svg:svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `Picture of ${width} by ${height} pixels with ${drawn.length} boxes` },
      h("svg:image", { href: url, width, height }),
      drawn.map(({ box: [x1, y1, x2, y2], gold }) => h("svg:rect", { class: gold ? "gold-box" : "given-box", x: x1, y: y1, width: x2 - x1, height: y2 - y1 })));
  }

  // The boxes of a gold answer, and all that completions give as [x1, y1, x2, y2] or (x1,y1),(x2,y2).
  function answerBoxes(answer, texts) {
    const four = (value) => Array.isArray(value) && value.length === 4 && value.every(Number.isFinite);
    const gold = [answer?.box, ...(Array.isArray(answer?.boxes) ? answer.boxes.map((each) => each?.box ?? each) : [])].filter(four);
    if (!gold.length) return [];
    const number = "\\s*(-?[0-9]+(?:\\.[0-9]+)?)\\s*";
    const form = new RegExp(`[[(]${number},${number}(?:\\)\\s*,\\s*\\(|,)${number},${number}[\\])]`, "g");
    const given = texts.flatMap((text) => [...String(text).matchAll(form)].map((match) => match.slice(1).map(Number)));
    return [...given.map((box) => ({ box })), ...gold.map((box) => ({ box, gold: true }))];
  }

  const shortText = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));

  viewer.choosing = choosing;
  viewer.rolloutParts = { scoreTable, pathText, turnsOf, messageList, answerBoxes, shortText };
})();
