// Figures: lines of several runs in one picture, smoothed over the visible raw line, with intervals and marks.
"use strict";

(() => {
  const { h, format, theme, isNumber } = viewer;
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]]; // lines that share a colour differ in these
  const GLYPHS = { checkpoint: "▾", resumed: "↻", best: "★", eval: "◆" };
  const MAX_TIP_LINES = 12;
  const MAX_LABELLED_MARKS = 30;

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
  //             fill: bool, down to 0, labels: [text of each point]}], range: [low, high] of x, onZoom(range or null), legend: bool}
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

    // What uPlot draws: of each series its raw line and, where it is smoothed, the smooth one.
    function lines() {
      const out = [];
      for (const series of shownSeries()) {
        const keep = series.x.map((x, i) => i).filter((i) => isNumber(series.x[i]) && (!state.x?.log || series.x[i] > 0));
        const xs = keep.map((i) => series.x[i]);
        const onScale = (value) => (isNumber(value) && (!state.y?.log || value > 0) ? value : null);
        const raw = keep.map((i) => onScale(series.y[i]));
        const isSmoothed = state.smoothing > 0 && series.line !== false && raw.length > 2;
        out.push({ series, xs, ys: raw, faint: isSmoothed });
        if (isSmoothed) out.push({ series, xs, ys: smooth(keep.map((i) => series.y[i]), state.smoothing).map(onScale), faint: false });
      }
      return out;
    }

    function build() {
      if (plot) plot.destroy();
      const drawn = (state.drawn = lines());
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
        scales: { x: { time: false, ...scale(state.x?.log), range: xRange }, y: { ...scale(state.y?.log), range: yRange } },
        axes: [
          { ...axis, ...(state.x?.log ? logTicks : {}), label: state.x?.label, size: 30, values: (_, splits) => splits.map((v) => (v === null ? "" : format.short(v))) },
          { ...axis, ...(state.y?.log ? logTicks : {}), label: state.y?.label, size: 52, values: (_, splits) => splits.map((v) => (v === null ? "" : format.short(v))) },
        ],
        series: [{}, ...drawn.map(lineOptions)],
        hooks: { drawAxes: [drawBands], draw: [drawMarks, drawErrorBars], setCursor: [onCursor], setSelect: [onSelect] },
      };
      plot = new uPlot(options, joined(drawn), plotBox);
      state.plot = plot;
      plot.over.addEventListener("dblclick", () => zoom(null));
      plot.over.addEventListener("mouseleave", hideTip);
      describe();
    }

    function lineOptions({ series, faint, xs }) {
      const hasLine = series.line !== false;
      return {
        stroke: hasLine ? color(series) : undefined,
        alpha: faint ? 0.28 : 1,
        width: hasLine ? (faint ? 1 : 1.8) : 0,
        dash: faint ? [] : dashOf(series),
        points: { show: !faint && (series.points || xs.length < 2), size: 7, fill: color(series), stroke: color(series) },
      };
    }

    const joined = (drawn) => (drawn.length ? uPlot.join(drawn.map(({ xs, ys }) => [xs, ys])) : [[], []]);

    function xRange(_, low, high) {
      if (state.range) return state.range;
      if (!isNumber(low)) return state.x?.log ? [1, 10] : [0, 1];
      if (low === high) return state.x?.log ? [low / 2, low * 2] : [low - 0.5, high + 0.5];
      const room = state.series.some((one) => one.points || one.low) ? 0.04 : 0;
      if (state.x?.log) return [low / (high / low) ** room, high * (high / low) ** room];
      return [low - room * (high - low), high + room * (high - low)];
    }

    function yRange(_, low, high) {
      const bounds = [];
      for (const series of shownSeries()) {
        for (const list of [series.low, series.high]) for (const value of list || []) if (isNumber(value) && (!state.y?.log || value > 0)) bounds.push(value);
      }
      if (bounds.length) [low, high] = [Math.min(low ?? Infinity, ...bounds), Math.max(high ?? -Infinity, ...bounds)];
      if (state.y?.range) return state.y.range;
      if (state.series.some((one) => one.fill)) return [0, (high || 1) * 1.06];
      if (!isNumber(low)) return state.y?.log ? [0.1, 1] : [0, 1];
      if (state.y?.log) return low === high ? [low / 2, low * 2] : [low / 1.1, high * 1.1];
      const room = low === high ? Math.abs(low) * 0.1 || 0.5 : 0.06 * (high - low);
      return [low >= 0 && low - room < 0 ? Math.min(0, low) : low - room, high + room];
    }

    // ---- drawing beyond lines

    const toCanvas = (x, y) => [plot_(x, "x"), plot_(y, "y")];
    const plot_ = (value, scale) => state.plot.valToPos(value, scale, true);

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
          const x = plot_(mark.x, "x");
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
        const source = series.x.indexOf(at);
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
        const onlyData = plot && Object.keys(changes).every((key) => key === "series" || key === "marks") && (!changes.series || changes.series.length === state.series.length);
        Object.assign(state, changes);
        if (!plot) return; // it will be drawn with them
        if (!onlyData || lines().length !== state.drawn.length) return build();
        state.drawn = lines();
        plot.setData(joined(state.drawn), true);
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
