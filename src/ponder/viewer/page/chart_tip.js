// The values of a figure at the pointer, or where the arrow keys went.
"use strict";

(() => {
  const { h, format, isNumber } = viewer;
  const { colorOf, GLYPHS } = viewer.chartDrawing;
  const MAX_LINES = 12;
  const MAX_MARKS = 4;
  const MARK_REACH = 6; // pixels

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

  class ChartTip {
    constructor(state) {
      this.state = state;
      this.x = null; // where it is
      this.element = h("div", { class: "tip", hidden: true, role: "status" });
    }

    // Of each series the point nearest to x, the nearest first.
    valuesAt(x) {
      const rows = [];
      for (const series of this.state.shown) {
        const line = this.state.drawn.findLast((one) => one.series === series); // the smooth one, where there are two
        if (!line?.xs.length) continue;
        const i = nearestIndex(line.xs, x);
        const at = line.keep[i];
        rows.push({ series, x: line.xs[i], shown: line.ys[i], raw: series.y[at], low: series.low?.[at], high: series.high?.[at], label: series.labels?.[at] });
      }
      return rows.sort((a, b) => Math.abs(a.x - x) - Math.abs(b.x - x));
    }

    line(row) {
      const isSmoothed = this.state.smoothing > 0 && row.series.line !== false;
      const value = isSmoothed ? `${format.number(row.shown)} (raw ${format.number(row.raw)})` : format.number(row.raw);
      const interval = isNumber(row.low) ? ` [${format.number(row.low)}, ${format.number(row.high)}]` : "";
      return h("div", null, h("i", { class: "swatch", style: { background: colorOf(row.series) } }), `${row.label || row.series.name}: `, h("b", null, value), interval);
    }

    // `left`: pixels from the left end of the axes.
    show(x, left) {
      const { plot, marks, series } = this.state;
      const rows = this.valuesAt(x);
      if (!rows.length) return this.hide();
      this.x = rows[0].x;
      const isScatter = series.every((one) => one.line === false);
      const most = isScatter ? 1 : MAX_LINES;
      const near = (marks || []).filter((mark) => isNumber(mark.x) && Math.abs(plot.valToPos(mark.x, "x") - plot.valToPos(x, "x")) < MARK_REACH);
      this.element.replaceChildren(
        h("div", { class: "soft" }, `${this.state.x?.label || "x"} ${format.number(this.x)}`),
        ...rows.slice(0, most).map((row) => this.line(row)),
        !isScatter && rows.length > most ? h("div", { class: "soft" }, `and ${rows.length - most} more`) : "",
        ...near.slice(0, MAX_MARKS).map((mark) => h("div", null, `${GLYPHS[mark.kind] || "•"} ${mark.text || mark.kind}`)),
      );
      this.element.hidden = false;
      this.place(left);
    }

    place(left) {
      const width = this.element.parentNode.clientWidth;
      const own = this.element.offsetWidth;
      const side = left > width / 2 ? -own - 14 : 14;
      this.element.style.left = `${Math.max(2, Math.min(width - own - 4, left + this.state.plot.over.offsetLeft + side))}px`;
    }

    hide() {
      this.element.hidden = true;
    }
  }

  Object.assign(viewer, { ChartTip, nearestIndex });
})();
