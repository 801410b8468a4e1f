// What an exported copy answers from other answers, since it cannot hold every question that a page may ask.
// The live viewer never comes here.
(() => {
  "use strict";
  const { data, isNumber } = viewer;
  const absent = (what) => new viewer.RequestError(404, `${what} is not part of this copy: open the runs with \`ponder view\`.`);

  // ---- the list of traces: filtered, sorted, one page

  const KEYS = { number: "number", reward: "reward", length: "tokens", ratio: "ratio", advantage: "advantage" };

  function fits(row, query) {
    const [least, most, text] = [query.get("min_reward"), query.get("max_reward"), (query.get("text") || "").toLowerCase()];
    if (query.get("step") && row.step !== Number(query.get("step"))) return false;
    if (query.get("problem") && !row.problem_id.includes(query.get("problem"))) return false;
    if (least && !(isNumber(row.reward) && row.reward >= Number(least))) return false;
    if (most && !(isNumber(row.reward) && row.reward <= Number(most))) return false;
    if (query.get("stop") && !(query.get("stop") in (row.stop || {}))) return false;
    return !text || `${row.question} ${row.answer}`.toLowerCase().includes(text);
  }

  function sorted(rows, sort) {
    const key = KEYS[sort.replace(/^-/, "")] || "number";
    const sign = sort.startsWith("-") ? -1 : 1;
    const value = (row) => (Array.isArray(row[key]) ? row[key][1] : row[key]);
    return [...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (isNumber(x) !== isNumber(y)) return isNumber(x) ? -1 : 1;
      return sign * ((x ?? 0) - (y ?? 0)) || a.number - b.number;
    });
  }

  data.answer(/^\/api\/runs\/([0-9a-f]{12})\/traces(\?|$)/, async (match, query) => {
    const all = await data.get(`/api/runs/${match[1]}/traces`);
    const rows = sorted(all.rows.filter((row) => fits(row, query)), query.get("sort") || "number");
    const [page, size] = [Number(query.get("page") || 0), Number(query.get("size") || 50)];
    return { total: rows.length, indexed: all.rows.length, rows: rows.slice(page * size, (page + 1) * size), complete: true };
  });

  // ---- parts of one trace: its file is loaded with the trace itself

  data.answer(/^\/api\/runs\/[0-9a-f]{12}\/traces\/\d+\/node\/(\d+)$/, async (match) => {
    const place = match[0].replace(/\/node\/\d+$/, "");
    const trace = await data.get(place);
    const index = Number(match[1]);
    const step = trace.steps[index];
    if (!step || step.text === undefined) throw absent("The text of this step");
    let root = index;
    while (isNumber(trace.steps[root].parent)) root = trace.steps[root].parent;
    return { index, ...step, prompt: trace.steps[root].text, chosen: trace.chosen === index };
  });

  data.answer(/^\/api\/runs\/[0-9a-f]{12}\/traces\/\d+\/tokens/, async (match, query) => {
    const trace = await data.get(match[0].replace(/\/tokens$/, ""));
    const wanted = query.get("leaf") === null ? trace.chosen ?? trace.completions[0]?.at(-1) : Number(query.get("leaf"));
    const path = trace.completions.find((steps) => steps.includes(wanted));
    const whole = path && viewer.shards[`${match[0]}?leaf=${path.at(-1)}`];
    if (!whole) throw absent("This path, token by token,");
    return upTo(whole, path.slice(0, path.indexOf(wanted) + 1));
  });

  // The tokens of the first steps of a path.
  function upTo(tokens, path) {
    const kept = new Set(path);
    const count = tokens.step.filter((step) => kept.has(step)).length;
    const out = { ...tokens, leaf: path.at(-1), path };
    for (const [name, column] of Object.entries(tokens)) {
      if (Array.isArray(column) && column.length === tokens.step.length && name !== "path") out[name] = column.slice(0, count);
    }
    return out;
  }

  // ---- figures of several runs: those of each, side by side

  // The runs that no other matches for less, by rising cost. Equals are both on it, as in `measure.pareto_frontier`.
  function frontOf(points, unit) {
    const known = points.filter((one) => isNumber(one[unit]) && isNumber(one.accuracy));
    known.sort((a, b) => a[unit] - b[unit] || b.accuracy - a.accuracy);
    const on = [];
    for (const one of known) {
      const last = on.at(-1);
      if (!last || one.accuracy > last.accuracy || (one.accuracy === last.accuracy && one[unit] === last[unit])) on.push(one);
    }
    return on.map((one) => one.run);
  }

  data.answer(/^\/api\/fronts\?/, async (match, query) => {
    const each = await Promise.all((query.get("runs") || "").split(",").map((run) => data.get(`/api/fronts?runs=${run}`)));
    const join = (name) => each.flatMap((one) => one[name]);
    const points = join("points");
    const front = Object.fromEntries(["tokens", "flops", "seconds", "dollars"].map((unit) => [unit, frontOf(points, unit)]));
    return { points, front, coverage: join("coverage"), calibration: join("calibration"), solved: join("solved"), notes: join("notes"), law: Object.assign({}, ...each.map((one) => one.law)) };
  });
})();
