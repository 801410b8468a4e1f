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

  // Messages with their roles; a part may be a picture, with these marks drawn over it (see `answerMarks`).
  function messageList(messages, marks = []) {
    return (messages || []).map((message) => h("div", { class: "message" },
      h("span", { class: "message-role" }, String(message.role ?? "")),
      Array.isArray(message.content) ? message.content.map((part) => messagePart(part, marks))
        : h("div", { class: "model-text" }, typeof message.content === "string" ? message.content : JSON.stringify(message.content))));
  }

  function messagePart(part, marks) {
    const url = part?.image_url?.url ?? part?.image_url ?? part?.image ?? part?.url;
    const size = pngSize(url);
    if (size) return picture(url, size, marks);
    return h("div", { class: "model-text" }, typeof part?.text === "string" ? part.text : JSON.stringify(part));
  }

  // Width and height in the header of a PNG data URL; null for anything else, which is never loaded.
  function pngSize(url) {
    if (typeof url !== "string" || !/^data:image\/png;base64,[A-Za-z0-9+/]{44,}={0,2}$/.test(url)) return null;
    const bytes = atob(url.slice(22, 22 + 32));
    const whole = (at) => [0, 1, 2, 3].reduce((sum, i) => sum * 256 + bytes.charCodeAt(at + i), 0);
    return whole(16) && whole(20) ? [whole(16), whole(20)] : null;
  }

  const MAX_MARKS = 200;

  function picture(url, [width, height], marks) {
    const drawn = marks.filter(({ box }) => !box || (box[0] < box[2] && box[1] < box[3])).slice(0, MAX_MARKS);
    const count = (kind) => drawn.filter((mark) => mark[kind]).length;
    return h("svg:svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `Picture of ${width} by ${height} pixels with ${count("box")} boxes, ${count("point")} points and ${count("mask") + count("polygon")} masks` },
      h("svg:image", { href: url, width, height }), drawn.map((mark) => drawMark(mark, width, height)));
  }

  function drawMark({ box, point, mask, polygon, gold }, width, height) {
    const name = (kind) => `${gold ? "gold" : "given"}-${kind}`;
    if (box) return h("svg:rect", { class: name("box"), x: box[0], y: box[1], width: box[2] - box[0], height: box[3] - box[1] });
    if (point) return h("svg:circle", { class: name("point"), cx: point[0], cy: point[1], r: Math.max(width, height) / 50 });
    if (polygon) return h("svg:polygon", { class: name("mask"), points: polygon.map((at) => at.join(",")).join(" ") });
    return h("svg:path", { class: name("mask"), d: maskPath(mask, width, height) });
  }

  // The cells of a mask in COCO's run lengths (down the columns, free ones first), as rectangles over the whole picture.
  function maskPath({ size: [rows, columns], counts }, width, height) {
    const [across, down] = [width / columns, height / rows], pieces = [];
    let at = 0;
    counts.forEach((count, i) => {
      for (let from = at, end = at + count; i % 2 && from < end;) {
        const column = Math.floor(from / rows), to = Math.min(end, (column + 1) * rows);
        pieces.push(`M${column * across} ${(from - column * rows) * down}h${across}v${(to - from) * down}h${-across}z`);
        from = to;
      }
      at += count;
    });
    return pieces.join("");
  }

  function parsed(text) {
    try { return JSON.parse(text); } catch { return null; }
  }

  const areNumbers = (value, count) => Array.isArray(value) && value.length === count && value.every(Number.isFinite);
  const isPolygon = (value) => Array.isArray(value) && value.length > 2 && value.every((at) => areNumbers(at, 2));

  function isMask(value) {
    if (!areNumbers(value?.size, 2) || !Array.isArray(value.counts) || value.counts.length > 1e5) return false;
    const [rows, columns] = value.size;
    return rows > 0 && columns > 0 && rows * columns <= 1 << 24 && value.counts.every((count) => Number.isInteger(count) && count >= 0)
      && value.counts.reduce((sum, count) => sum + count, 0) === rows * columns;
  }

  // What to draw over a picture: boxes, points and masks of a gold answer, and those that completions give. A given box
  // is [x1, y1, x2, y2] or (x1,y1),(x2,y2), a point [x, y], a mask [[x, y], ...] or run lengths.
  function answerMarks(answer, texts) {
    const list = (value) => (Array.isArray(value) ? value : []);
    const gold = [
      ...[answer?.mask, ...list(answer?.masks)].flatMap((mask) => (isMask(mask) ? [{ mask }] : isPolygon(mask) ? [{ polygon: mask }] : [])),
      ...[answer?.box, ...list(answer?.boxes).map((each) => each?.box ?? each)].filter((box) => areNumbers(box, 4)).map((box) => ({ box })),
      ...[answer?.point, ...list(answer?.points)].filter((point) => areNumbers(point, 2)).map((point) => ({ point })),
    ];
    if (!gold.length) return [];
    return [...texts.flatMap((text) => givenMarks(String(text))), ...gold.map((mark) => ({ ...mark, gold: true }))];
  }

  function givenMarks(text) {
    const number = "\\s*(-?[0-9]+(?:\\.[0-9]+)?)\\s*", pair = `\\[${number},${number}\\]`;
    const marks = [];
    const take = (form, read) => { text = text.replace(new RegExp(form, "g"), (found, ...groups) => { marks.push(...read(found, groups)); return " "; }); };
    take("\\{[^{}]{0,200000}\\}", (found) => { const mask = parsed(found); return isMask(mask) ? [{ mask }] : mask?.counts ? [] : givenMarks(found.slice(1, -1)); });
    take(`\\[\\s*${pair}(?:\\s*,\\s*${pair})*\\s*\\]`, (found) => {
      const polygon = parsed(found);
      return isPolygon(polygon) ? [{ polygon }] : (polygon ?? []).map((point) => ({ point }));
    });
    take(`[[(]${number},${number}(?:\\)\\s*,\\s*\\(|,)${number},${number}[\\])]`, (found, groups) => [{ box: groups.slice(0, 4).map(Number) }]);
    take(pair, (found, groups) => [{ point: groups.slice(0, 2).map(Number) }]);
    return marks;
  }

  const shortText = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));

  viewer.choosing = choosing;
  viewer.rolloutParts = { scoreTable, pathText, turnsOf, messageList, answerMarks, shortText };
})();
