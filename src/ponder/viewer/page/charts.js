// Figures: lines of several runs in one picture, smoothed over the visible raw line, with intervals and marks.
"use strict";

(() => {
  const { h, format, theme, isNumber } = viewer;
  const { colorOf, dashOf, drawLines, drawBands, drawErrorBars, drawMarks } = viewer.chartDrawing;
  const FONT = "12px system-ui, sans-serif";
  const HEIGHT = 220;
  const MIN_WIDTH = 120;
  const MIN_DRAG = 4; // pixels that make a zoom

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

  // Whether two ends of an axis differ by no more than rounding, between which there is no room for ticks.
  const isPoint = (low, high) => high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));

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

  // settings: {title, file: the name of saved files, height, x: {label, log}, y: {label, log, range: [low, high]},
  //   smoothing: weight in [0, 1), marks: [{x, kind, text}], sync: charts with one name share their cursor,
  //   series: [{name, x: [], y: [], low: [], high: [], color: number, dash: number, points: bool, line: bool,
  //             fill: bool, down to 0, labels: [text of each point]}],
  //   range: [low, high] of x that is shown, domain: [low, high] that x has at least, onZoom(range or null),
  //   legend: bool}
  class Chart {
    constructor(settings) {
      this.state = { hidden: new Set(), range: null, plot: null, drawn: [], shown: [], ...settings };
      this.tip = new viewer.ChartTip(this.state);
      const words = { class: "plot", tabindex: "0", role: "img", style: { height: `${this.height}px` } };
      this.box = h("div", { ...words, on: { keydown: (event) => this.onKey(event), blur: () => this.tip.hide() } }, this.tip.element);
      this.legend = h("ul", { class: "legend" });
      this.note = h("p", { class: "soft small", hidden: true });
      this.title = h("b", null, settings.title);
      this.element = h("figure", { class: "figure" }, h("figcaption", null, this.title, this.saveButtons()), this.box, this.legend, this.note);
      this.element.chart = this;
      this.watcher = new ResizeObserver(() => this.state.plot && this.box.clientWidth && this.state.plot.setSize(this.size()));
      this.stopTheme = theme.onChange(() => this.state.plot && this.build());
      this.isOver = false;
      setTimeout(() => this.start()); // by then the caller has put it into the page, which gives it its width
    }

    get height() {
      return this.state.height || HEIGHT;
    }

    size() {
      return { width: Math.max(MIN_WIDTH, this.box.clientWidth), height: this.height };
    }

    start() {
      if (this.isOver || !this.element.isConnected) return;
      this.build();
      this.watcher.observe(this.box);
    }

    saveButtons() {
      const button = (kind) => h("button", { type: "button", class: "quiet", title: `Save as ${kind}`, "aria-label": `Save ${this.state.title} as ${kind}`, on: { click: () => viewer.saveChart(kind, this) } }, kind);
      return h("span", { class: "save" }, ["PNG", "SVG", "CSV"].map(button));
    }

    // Other series, marks, smoothing, axes or range; what is not named stays.
    update(changes) {
      const layout = () => JSON.stringify([this.state.x, this.state.y, this.state.height, this.state.sync]);
      const before = layout();
      Object.assign(this.state, changes);
      if (!this.state.plot) return; // it will be drawn with them
      if (layout() !== before) return this.build();
      this.collect();
      this.state.plot.setData(this.ends(), true);
      this.describe();
    }

    destroy() {
      this.isOver = true;
      this.watcher.disconnect();
      this.stopTheme();
      if (this.state.plot) this.state.plot.destroy();
      this.state.plot = null;
    }

    // ---- what is drawn

    // Of each series its raw line and, where it is smoothed, the smooth one. Missing values are left out.
    collect() {
      const { state } = this;
      const isOnAxes = (x, y) => isNumber(x) && isNumber(y) && (!state.x?.log || x > 0) && (!state.y?.log || y > 0);
      state.shown = state.series.filter((one) => !state.hidden.has(one.name));
      state.drawn = state.shown.flatMap((series) => {
        const keep = [];
        for (let i = 0; i < series.x.length; i++) if (isOnAxes(series.x[i], series.y[i])) keep.push(i);
        const [xs, ys] = [keep.map((i) => series.x[i]), keep.map((i) => series.y[i])];
        const isSmoothed = state.smoothing > 0 && series.line !== false && xs.length > 2;
        const raw = { series, xs, ys, keep, faint: isSmoothed };
        return isSmoothed ? [raw, { series, xs, ys: smooth(ys, state.smoothing), keep, faint: false }] : [raw];
      });
    }

    // uPlot lays out axes, ticks and the cursor from the ends of the data.
    ends() {
      const { drawn, domain, x } = this.state;
      const xs = drawn.flatMap((line) => (line.xs.length ? [line.xs[0], line.xs.at(-1)] : []));
      if (domain && !(x?.log && domain[0] <= 0)) xs.push(...domain);
      const [low, high] = xs.length ? [Math.min(...xs), Math.max(...xs)] : x?.log ? [1, 10] : [0, 1];
      return [[low, high], [1, 1]];
    }

    build() {
      const { state } = this;
      if (state.plot) state.plot.destroy();
      this.collect();
      state.plot = new uPlot(this.plotOptions(), this.ends(), this.box);
      state.plot.over.addEventListener("dblclick", () => this.zoom(null));
      state.plot.over.addEventListener("mouseleave", () => this.tip.hide());
      this.describe();
    }

    plotOptions() {
      const { state } = this;
      const scale = (axis) => (axis?.log ? { distr: 3, log: 10 } : {});
      const sync = state.sync ? { key: state.sync, setSeries: false, scales: ["x", null] } : undefined;
      const draw = (step) => (plot) => step(plot, state);
      return {
        ...this.size(),
        padding: [8, 10, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, sync },
        scales: {
          x: { time: false, ...scale(state.x), range: (_, low, high) => this.xRange(low, high) },
          y: { ...scale(state.y), range: () => this.yRange() },
        },
        axes: [this.axis(state.x, 30), this.axis(state.y, 52)],
        series: [{}, { points: { show: false } }],
        hooks: {
          drawAxes: [draw(drawBands)],
          draw: [draw(drawLines), draw(drawMarks), draw(drawErrorBars)],
          setCursor: [(plot) => this.onCursor(plot)],
          setSelect: [(plot) => this.onSelect(plot)],
        },
      };
    }

    axis(axis, size) {
      const ticks = axis?.log ? { splits: (_, __, low, high) => logSplits(low, high), filter: (_, splits) => splits } : {};
      return {
        ...ticks, size, label: axis?.label, labelSize: 16, labelFont: FONT, font: FONT, stroke: theme.color("soft"),
        grid: { stroke: theme.color("faint"), width: 1 }, ticks: { stroke: theme.color("line"), width: 1, size: 4 },
        values: (_, splits) => splits.map((value) => (value === null ? "" : format.short(value))),
      };
    }

    xRange(low, high) {
      const { range, x, series } = this.state;
      if (range && !isPoint(...range)) return range;
      if (!isNumber(low)) return x?.log ? [1, 10] : [0, 1];
      if (isPoint(low, high)) return x?.log ? [low / 2, low * 2] : [low - 0.5, high + 0.5];
      const room = series.some((one) => one.points || one.low) ? 0.04 : 0;
      if (x?.log) return [low / (high / low) ** room, high * (high / low) ** room];
      return [low - room * (high - low), high + room * (high - low)];
    }

    // From the least to the largest value in sight, raw values and intervals included.
    yRange() {
      const { y: axis, range, drawn, shown } = this.state;
      if (axis?.range) return axis.range;
      let [low, high] = [Infinity, -Infinity];
      const include = (x, y) => {
        if (!isNumber(y) || (axis?.log && y <= 0) || (range && (x < range[0] || x > range[1]))) return;
        low = Math.min(low, y);
        high = Math.max(high, y);
      };
      for (const { xs, ys } of drawn) for (let i = 0; i < xs.length; i++) include(xs[i], ys[i]);
      for (const series of shown) for (const bounds of [series.low, series.high]) if (bounds) series.x.forEach((x, i) => include(x, bounds[i]));
      if (low > high) return axis?.log ? [0.1, 1] : [0, 1];
      if (shown.some((one) => one.fill)) return [0, (high || 1) * 1.06];
      if (axis?.log) return isPoint(low, high) ? [low / 2, low * 2] : [low / 1.1, high * 1.1];
      const room = isPoint(low, high) ? Math.abs(low) * 0.1 || 0.5 : 0.06 * (high - low);
      return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
    }

    // ---- pointer, keyboard, zoom

    onCursor(plot) {
      const { left, event } = plot.cursor;
      if (!event || !isNumber(left) || left < 0) return this.tip.hide(); // moved by another figure
      this.tip.show(plot.posToVal(left, "x"), left);
    }

    onSelect(plot) {
      const { left, width } = plot.select;
      if (width < MIN_DRAG) return;
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    }

    zoom(range) {
      if (this.state.onZoom) this.state.onZoom(range); // the caller draws all figures that share it
      else this.update({ range });
    }

    onKey(event) {
      const { drawn, plot } = this.state;
      const first = drawn.find((line) => line.xs.length);
      if (!first || event.ctrlKey || event.metaKey || event.altKey) return;
      const { xs } = first;
      const here = this.tip.x === null ? -1 : viewer.nearestIndex(xs, this.tip.x);
      const step = event.shiftKey ? 10 : 1;
      const places = { ArrowRight: here + step, ArrowLeft: here - step, Home: 0, End: xs.length - 1 };
      if (event.key === "0") this.zoom(null);
      else if (event.key in places) {
        const x = xs[Math.max(0, Math.min(xs.length - 1, places[event.key]))];
        const left = plot.valToPos(x, "x");
        plot.setCursor({ left, top: 10 }, false);
        this.tip.show(x, left);
      } else return;
      event.preventDefault();
      event.stopPropagation();
    }

    // ---- words around the picture

    describe() {
      const { shown, title, y, legend } = this.state;
      const ends = shown.slice(0, 6).map((one) => `${one.name} ends at ${format.number(one.y.findLast(isNumber))}`);
      this.box.setAttribute("aria-label", `${title}: ${ends.join(", ") || "no data"}. Arrow keys read values, 0 shows all.`);
      this.title.textContent = title;
      this.legend.hidden = legend === false;
      this.legend.replaceChildren(...(legend === false ? [] : this.state.series.map((series) => this.legendItem(series))));
      const lost = y?.log ? shown.reduce((sum, one) => sum + one.y.filter((value) => isNumber(value) && value <= 0).length, 0) : 0;
      this.note.hidden = !lost;
      this.note.textContent = lost ? `${format.count(lost, "value")} of 0 or less: not on a logarithmic axis.` : "";
    }

    legendItem(series) {
      const { hidden } = this.state;
      const isShown = !hidden.has(series.name);
      const line = { x1: 0, y1: 4, x2: 24, y2: 4, stroke: colorOf(series), "stroke-width": 2.5, "stroke-dasharray": dashOf(series).join(" ") || null };
      const swatch = h("svg:svg", { viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": "true" },
        series.line === false ? h("svg:circle", { cx: 12, cy: 4, r: 3.5, fill: colorOf(series) }) : h("svg:line", line));
      const toggle = () => {
        if (!hidden.delete(series.name)) hidden.add(series.name);
        this.update({});
      };
      return h("li", null, h("button", { type: "button", class: isShown ? "quiet" : "quiet off", "aria-pressed": String(isShown), title: isShown ? "Hide" : "Show", on: { click: toggle } }, swatch, " ", series.name));
    }
  }

  Object.assign(viewer, { smooth, chart: (settings) => new Chart(settings) });
})();
