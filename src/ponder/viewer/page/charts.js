// Figures: lines of several runs in one picture, smoothed over the visible raw line, with intervals and marks.
"use strict";

(() => {
  const { h, format, theme, isNumber } = viewer;
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]]; // lines that share a colour differ in these
  const GLYPHS = { checkpoint: "▾", resumed: "↻", best: "★", eval: "◆" };
  const MAX_TIP_LINES = 12;
  const MAX_LABELLED_MARKS = 30;
  const MAX_STYLED_LINES = 48; // more are thin and plain: nobody tells their dashes apart

  // Exponential moving average of weight `weight` in [0, 1), free of the bias towards its start (Kingma and Ba 2015).
  // Missing values stay missing.
  function smooth(values, weight) {
    if (!(weight > 0)) return values;
    let sum = 0;
    let norm = 1;
    return values.map((value) => {
      if (!isNumber(value)) return null;
      sum = weight * sum + (1 - weight) * value;
      norm *= weight;
      return sum / (1 - norm);
    });
  }

  // The index of the x nearest to `x`, in rising xs; -1 where there is none.
  function nearestIndex(xs, x) {
    let [low, high] = [0, xs.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1;
      else high = middle;
    }
    if (low > 0 && Math.abs(xs[low - 1] - x) <= Math.abs(xs[low] - x)) low -= 1;
    return low < xs.length ? low : -1;
  }

  // Ticks of a logarithmic axis: decades, and 2 and 5 between them where the range is short.
  function logSplits(low, high) {
    const decades = Math.log10(high / low);
    const every = Math.max(1, Math.ceil(decades / 8));
    const factors = decades < 0.7 ? [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9] : decades < 3 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      if (power % every === 0) for (const factor of factors) ticks.push(Number(`${factor}e${power}`));
    }
    return ticks.filter((tick) => tick >= low && tick <= high);
  }

  const color = (series) => theme.series(series.color);
  const dashOf = (series) => DASHES[(series.dash ?? Math.floor(series.color / 8)) % DASHES.length];

  // viewer.chart(settings) -> {element, update(changes), destroy()}
  //
  // settings: {title, file: the name of saved files, height, x: {label, log}, y: {label, log, range: [low, high]},
  //   smoothing: weight in [0, 1), marks: [{x, kind, text}], sync: charts with one name share their cursor,
  //   series: [{name, x: [], y: [], low: [], high: [], color: number, dash: number, points: bool, line: bool,
  //             fill: bool, down to 0, labels: [text of each point]}], range: [low, high] of x that is shown, domain: [low, high] that x has at least,
  //   onZoom(range or null), legend: bool}
  function chart(settings) {
    const state = { hidden: new Set(), range: settings.range || null, ...settings };
    const plotBox = h("div", { class: "plot", tabindex: "0", role: "img", style: { height: `${state.height || 220}px` }, on: { keydown: onKey, blur: hideTip } });
    const tip = h("div", { class: "tip", hidden: true, role: "status" });
    const legend = h("ul", { class: "legend" });
    const note = h("p", { class: "soft small", hidden: true });
    const menu = h("span", { class: "save" }, ["PNG", "SVG", "CSV"].map((kind) => h("button", { type: "button", class: "quiet", title: `Save as ${kind}`, "aria-label": `Save ${state.title} as ${kind}`, on: { click: () => viewer.saveChart(kind, handle) } }, kind)));
    const element = h("figure", { class: "figure" }, h("figcaption", null, h("b", null, state.title), menu), plotBox, legend, note);
    plotBox.append(tip);
    let plot = null;
    let cursorX = null;
    const watcher = new ResizeObserver(() => plot && plotBox.clientWidth && plot.setSize(size()));
    const size = () => ({ width: Math.max(120, plotBox.clientWidth), height: state.height || 220 });

    const shownSeries = () => state.series.filter((one) => !state.hidden.has(one.name));

    // What is drawn: of each series its raw line and, where it is smoothed, the smooth one. Missing values are left out.
    function lines() {
      const out = [];
      for (const series of shownSeries()) {
        const isOnAxes = (x, y) => isNumber(x) && isNumber(y) && (!state.x?.log || x > 0) && (!state.y?.log || y > 0);
        const keep = [];
        for (let i = 0; i < series.x.length; i++) if (isOnAxes(series.x[i], series.y[i])) keep.push(i);
        const [xs, ys] = [keep.map((i) => series.x[i]), keep.map((i) => series.y[i])];
        const isSmoothed = state.smoothing > 0 && series.line !== false && xs.length > 2;
        out.push({ series, xs, ys, keep, faint: isSmoothed });
        if (isSmoothed) out.push({ series, xs, ys: smooth(ys, state.smoothing), keep, faint: false });
      }
      return out;
    }

    function build() {
      if (plot) plot.destroy();
      state.drawn = lines();
      const text = theme.color("soft");
      const axis = { stroke: text, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 16, grid: { stroke: theme.color("faint"), width: 1 }, ticks: { stroke: theme.color("line"), width: 1, size: 4 } };
      const scale = (log) => (log ? { distr: 3, log: 10 } : {});
      const logTicks = { splits: (_, __, low, high) => logSplits(low, high), filter: (_, splits) => splits };
      const options = {
        ...size(),
        mode: 1,
        padding: [8, 10, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, sync: state.sync ? { key: state.sync, setSeries: false, scales: ["x", null] } : undefined },
        scales: { x: { time: false, ...scale(state.x?.log), range: xRange }, y: { ...scale(state.y?.log), auto: true, range: yRange } },
        axes: [
          { ...axis, ...(state.x?.log ? logTicks : {}), label: state.x?.label, size: 30, values: (_, splits) => splits.map((v) => (v === null ? "" : format.short(v))) },
          { ...axis, ...(state.y?.log ? logTicks : {}), label: state.y?.label, size: 52, values: (_, splits) => splits.map((v) => (v === null ? "" : format.short(v))) },
        ],
        series: [{}, { points: { show: false } }],
        hooks: { drawAxes: [drawBands], draw: [drawLines, drawMarks, drawErrorBars], setCursor: [onCursor], setSelect: [onSelect] },
      };
      plot = new uPlot(options, ends(), plotBox);
      state.plot = plot;
      plot.over.addEventListener("dblclick", () => zoom(null));
      plot.over.addEventListener("mouseleave", hideTip);
      describe();
    }

    // uPlot lays out axes, ticks and the cursor from the ends of the data; the lines are drawn here.
    function ends() {
      const xs = state.drawn.flatMap((line) => (line.xs.length ? [line.xs[0], line.xs.at(-1)] : []));
      if (state.domain && !(state.x?.log && state.domain[0] <= 0)) xs.push(...state.domain);
      return xs.length ? [[Math.min(...xs), Math.max(...xs)], [1, 1]] : [[state.x?.log ? 1 : 0, state.x?.log ? 10 : 1], [1, 1]];
    }

    function xRange(_, low, high) {
      if (state.range) return state.range;
      if (!isNumber(low)) return state.x?.log ? [1, 10] : [0, 1];
      if (low === high) return state.x?.log ? [low / 2, low * 2] : [low - 0.5, high + 0.5];
      const room = state.series.some((one) => one.points || one.low) ? 0.04 : 0;
      if (state.x?.log) return [low / (high / low) ** room, high * (high / low) ** room];
      return [low - room * (high - low), high + room * (high - low)];
    }

    // From the least to the largest value in sight, raw values and intervals included.
    function yRange() {
      if (state.y?.range) return state.y.range;
      let [low, high] = [Infinity, -Infinity];
      const include = (x, y) => {
        if (!isNumber(y) || (state.y?.log && y <= 0) || (state.range && (x < state.range[0] || x > state.range[1]))) return;
        low = Math.min(low, y);
        high = Math.max(high, y);
      };
      for (const { xs, ys } of state.drawn) for (let i = 0; i < xs.length; i++) include(xs[i], ys[i]);
      for (const series of shownSeries()) for (const bounds of [series.low, series.high]) if (bounds) series.x.forEach((x, i) => include(x, bounds[i]));
      if (low > high) return state.y?.log ? [0.1, 1] : [0, 1];
      if (state.series.some((one) => one.fill)) return [0, (high || 1) * 1.06];
      if (state.y?.log) return low === high ? [low / 2, low * 2] : [low / 1.1, high * 1.1];
      const room = low === high ? Math.abs(low) * 0.1 || 0.5 : 0.06 * (high - low);
      return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
    }

    // ---- drawing

    const toPixel = (value, scale) => state.plot.valToPos(value, scale, true);
    const toCanvas = (x, y) => [toPixel(x, "x"), toPixel(y, "y")];

    function clipped(u, draw) {
      const { ctx, bbox } = u;
      state.plot = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      draw(ctx, bbox, devicePixelRatio || 1);
      ctx.restore();
    }

    // A function from values to canvas pixels: valToPos, made once for a whole line.
    function pixels(scale, start, length, isDown) {
      const { min, max, distr } = state.plot.scales[scale];
      const f = distr === 3 ? Math.log10 : (value) => value;
      const [low, span] = [f(min), f(max) - f(min)];
      return isDown ? (value) => start + length * (1 - (f(value) - low) / span) : (value) => start + (length * (f(value) - low)) / span;
    }

    function drawLines(u) {
      clipped(u, (ctx, bbox, ratio) => {
        const [toX, toY] = [pixels("x", bbox.left, bbox.width, false), pixels("y", bbox.top, bbox.height, true)];
        const { min, max } = u.scales.x;
        for (const line of state.drawn) {
          const { series, xs, faint } = line;
          ctx.strokeStyle = ctx.fillStyle = color(series);
          ctx.globalAlpha = faint ? 0.28 : 1;
          const isPlain = faint || state.drawn.length > MAX_STYLED_LINES;
          ctx.lineWidth = (isPlain ? 1 : 1.8) * ratio;
          ctx.lineJoin = "bevel"; // round joins and dashes cost most of the time of a drawing
          ctx.setLineDash(isPlain ? [] : dashOf(series).map((part) => part * ratio));
          const first = Math.max(0, xs.findIndex((x) => x >= min) - 1);
          const last = Math.min(xs.length, xs.findLastIndex((x) => x <= max) + 2);
          if (series.line !== false) {
            ctx.beginPath();
            tracePath(ctx, line, first, last, toX, toY);
            ctx.stroke();
          }
          if (!faint && (series.points || xs.length === 1)) {
            ctx.beginPath();
            for (let i = first; i < last; i++) {
              ctx.moveTo(toX(xs[i]) + 3.5 * ratio, toY(line.ys[i]));
              ctx.arc(toX(xs[i]), toY(line.ys[i]), 3.5 * ratio, 0, 2 * Math.PI);
            }
            ctx.fill();
          }
        }
      });
    }

    // Many points in one column of pixels become its least and its largest.
    function tracePath(ctx, { xs, ys }, first, last, toX, toY) {
      if (last - first <= 2 * state.plot.bbox.width) {
        for (let i = first; i < last; i++) ctx.lineTo(toX(xs[i]), toY(ys[i]));
        return;
      }
      for (let i = first; i < last; ) {
        const column = Math.round(toX(xs[i]));
        let [low, high] = [ys[i], ys[i]];
        for (i++; i < last && Math.round(toX(xs[i])) === column; i++) {
          low = Math.min(low, ys[i]);
          high = Math.max(high, ys[i]);
        }
        ctx.lineTo(column, toY(low));
        if (high > low) ctx.lineTo(column, toY(high));
      }
    }

    function drawBands(u) {
      clipped(u, (ctx) => {
        for (const series of shownSeries()) {
          if ((!series.low && !series.fill) || series.line === false) continue;
          const [lows, highs] = series.fill ? [series.y.map(() => 0), series.y] : [series.low, series.high];
          const places = series.x.map((_, i) => i).filter((i) => isNumber(lows[i]) && isNumber(highs[i]));
          ctx.beginPath();
          places.forEach((i) => ctx.lineTo(...toCanvas(series.x[i], highs[i])));
          places.reverse().forEach((i) => ctx.lineTo(...toCanvas(series.x[i], lows[i])));
          ctx.globalAlpha = 0.15;
          ctx.fillStyle = color(series);
          ctx.fill();
        }
      });
    }

    function drawErrorBars(u) {
      clipped(u, (ctx, _, ratio) => {
        for (const series of shownSeries()) {
          if (!series.low || series.line !== false) continue;
          ctx.strokeStyle = color(series);
          ctx.lineWidth = 1.5 * ratio;
          series.x.forEach((x, i) => {
            if (!isNumber(series.low[i]) || !isNumber(x)) return;
            const [px, low] = toCanvas(x, series.low[i]);
            const high = toCanvas(x, series.high[i])[1];
            const cap = 4 * ratio;
            ctx.beginPath();
            for (const [a, b, c, d] of [[px, low, px, high], [px - cap, low, px + cap, low], [px - cap, high, px + cap, high]]) {
              ctx.moveTo(a, b);
              ctx.lineTo(c, d);
            }
            ctx.stroke();
          });
        }
      });
    }

    function drawMarks(u) {
      const marks = (state.marks || []).filter((mark) => isNumber(mark.x));
      if (!marks.length) return;
      clipped(u, (ctx, bbox, ratio) => {
        ctx.strokeStyle = ctx.fillStyle = theme.color("soft");
        ctx.lineWidth = ratio;
        ctx.font = `${11 * ratio}px system-ui, sans-serif`;
        ctx.textAlign = "center";
        for (const mark of marks) {
          const x = toPixel(mark.x, "x");
          const isSmall = mark.kind === "checkpoint" || marks.length > MAX_LABELLED_MARKS;
          ctx.globalAlpha = isSmall ? 0.8 : 0.6;
          if (!isSmall) {
            ctx.setLineDash([3 * ratio, 3 * ratio]);
            ctx.beginPath();
            ctx.moveTo(x, bbox.top + 14 * ratio);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
            ctx.setLineDash([]);
          }
          ctx.globalAlpha = 1;
          ctx.fillText(GLYPHS[mark.kind] || "•", x, bbox.top + 11 * ratio);
        }
      });
    }

    // ---- hover, keyboard, zoom

    function valuesAt(x) {
      const rows = [];
      for (const series of shownSeries()) {
        const smoothLine = state.drawn.findLast((line) => line.series === series);
        if (!smoothLine || !smoothLine.xs.length) continue;
        const i = nearestIndex(smoothLine.xs, x);
        const at = smoothLine.xs[i];
        const source = smoothLine.keep[i];
        rows.push({ series, x: at, raw: series.y[source], smooth: smoothLine.faint ? null : smoothLine.ys[i], low: series.low?.[source], high: series.high?.[source], label: series.labels?.[source] });
      }
      return rows.sort((a, b) => Math.abs(a.x - x) - Math.abs(b.x - x));
    }

    function showTip(x, left) {
      const rows = valuesAt(x);
      if (!rows.length) return hideTip();
      cursorX = rows[0].x;
      const isScatter = state.series.every((one) => one.line === false);
      const lines_ = rows.slice(0, isScatter ? 1 : MAX_TIP_LINES).map((row) => {
        const raw = format.number(row.raw);
        const smoothed = state.smoothing > 0 && row.series.line !== false ? `${format.number(row.smooth)} (raw ${raw})` : raw;
        const interval = isNumber(row.low) ? ` [${format.number(row.low)}, ${format.number(row.high)}]` : "";
        return h("div", null, h("i", { class: "swatch", style: { background: color(row.series) } }), `${row.label || row.series.name}: `, h("b", null, smoothed), interval);
      });
      const close = (state.marks || []).filter((mark) => isNumber(mark.x) && Math.abs(state.plot.valToPos(mark.x, "x") - state.plot.valToPos(x, "x")) < 6);
      tip.replaceChildren(
        h("div", { class: "soft" }, `${state.x?.label || "x"} ${format.number(cursorX)}`),
        ...lines_,
        rows.length > lines_.length && !isScatter ? h("div", { class: "soft" }, `and ${rows.length - lines_.length} more`) : "",
        ...close.slice(0, 4).map((mark) => h("div", null, `${GLYPHS[mark.kind] || "•"} ${mark.text || mark.kind}`)),
      );
      tip.hidden = false;
      const offset = state.plot.over.offsetLeft;
      const room = plotBox.clientWidth - tip.offsetWidth - 4;
      tip.style.left = `${Math.max(2, Math.min(room, left + offset + (left > plotBox.clientWidth / 2 ? -tip.offsetWidth - 14 : 14)))}px`;
    }

    function hideTip() {
      tip.hidden = true;
    }

    function onCursor(u) {
      const { left, event } = u.cursor;
      if (!event || left === null || left === undefined || left < 0) return hideTip(); // moved by another chart
      showTip(u.posToVal(left, "x"), left);
    }

    function onSelect(u) {
      const { left, width } = u.select;
      if (width < 4) return;
      zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    }

    function zoom(range) {
      if (state.onZoom) return state.onZoom(range); // the caller draws all charts that share it
      state.range = range;
      build();
    }

    function onKey(event) {
      const first = state.drawn.find((line) => line.xs.length);
      if (!first || event.ctrlKey || event.metaKey || event.altKey) return;
      const { xs } = first;
      const here = cursorX === null ? -1 : nearestIndex(xs, cursorX);
      const step = event.shiftKey ? 10 : 1;
      const places = { ArrowRight: here + step, ArrowLeft: here - step, Home: 0, End: xs.length - 1 };
      if (event.key === "0") zoom(null);
      else if (event.key in places) {
        const x = xs[Math.max(0, Math.min(xs.length - 1, places[event.key]))];
        plot.setCursor({ left: plot.valToPos(x, "x"), top: 10 }, false);
        showTip(x, plot.valToPos(x, "x"));
      } else return;
      event.preventDefault();
      event.stopPropagation();
    }

    // ---- words around the picture

    function describe() {
      const shown = shownSeries();
      const ends = shown.slice(0, 6).map((one) => `${one.name} ends at ${format.number(one.y.findLast(isNumber))}`);
      plotBox.setAttribute("aria-label", `${state.title}: ${ends.join(", ") || "no data"}. Arrow keys read values, 0 shows all.`);
      element.querySelector("figcaption b").textContent = state.title;
      legend.hidden = state.legend === false;
      legend.replaceChildren(...(state.legend === false ? [] : state.series.map(legendItem)));
      const lost = state.y?.log ? shown.reduce((sum, one) => sum + one.y.filter((v) => isNumber(v) && v <= 0).length, 0) : 0;
      note.hidden = !lost;
      note.textContent = lost ? `${format.count(lost, "value")} of 0 or less: not on a logarithmic axis.` : "";
    }

    function legendItem(series) {
      const isShown = !state.hidden.has(series.name);
      const swatch = h("svg:svg", { viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": "true" },
        series.line === false
          ? h("svg:circle", { cx: 12, cy: 4, r: 3.5, fill: color(series) })
          : h("svg:line", { x1: 0, y1: 4, x2: 24, y2: 4, stroke: color(series), "stroke-width": 2.5, "stroke-dasharray": dashOf(series).join(" ") || null }));
      const toggle = () => {
        if (!state.hidden.delete(series.name)) state.hidden.add(series.name);
        build();
      };
      return h("li", null, h("button", { type: "button", class: isShown ? "quiet" : "quiet off", "aria-pressed": String(isShown), title: isShown ? "Hide" : "Show", on: { click: toggle } }, swatch, " ", series.name));
    }

    const handle = {
      element,
      state,
      lines: () => state.drawn,
      colorOf: color,
      dashOf,
      glyphs: GLYPHS,
      // Other series, marks, smoothing, axes or range; what is not named stays.
      update(changes) {
        const layout = () => JSON.stringify([state.x, state.y, state.height, state.sync]);
        const before = layout();
        Object.assign(state, changes);
        if (!plot) return; // it will be drawn with them
        if (layout() !== before) return build();
        state.drawn = lines();
        plot.setData(ends(), true);
        describe();
      },
      destroy() {
        isOver = true;
        watcher.disconnect();
        stopTheme();
        if (plot) plot.destroy();
        plot = null;
      },
    };
    element.chart = handle;
    const stopTheme = theme.onChange(() => plot && build());
    let isOver = false;
    setTimeout(() => { // by then the caller has put it into the page, which gives it its width
      if (isOver || !element.isConnected) return;
      build();
      watcher.observe(plotBox);
    });
    return handle;
  }

  Object.assign(viewer, { chart, smooth, nearestIndex });
})();
