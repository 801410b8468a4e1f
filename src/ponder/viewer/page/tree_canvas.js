// A tree on a canvas: pan, zoom, hover, choose a node with the mouse, a finger or the arrow keys, scrub through its
// growth. `TreeCanvas` knows nothing of runs: the pages Tree and Ask both use it.
(() => {
  "use strict";

  const MARGIN = 36;
  const MAX_PER_UNIT = 46, MAX_PER_LEVEL = 300;
  const HIT_PX = 14;
  const SIZES = ["visits", "tokens", "equal"];
  const COLORS = ["value", "score", "prior", "visits", "tokens"];

  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const hasNumbers = (column) => Boolean(column) && column.some((x) => x !== null && Number.isFinite(x) && x !== 0);

  class TreeCanvas {
    // `on`: {select(i), hover(i, x, y), draw()}: what the page does then.
    constructor(box, on = {}) {
      this.on = on;
      this.canvas = viewer.h("canvas", {
        class: "tree-canvas", tabindex: "0", role: "application",
        "aria-label": "Search tree. Arrow keys move between nodes, plus and minus zoom, 0 shows all of it.",
      });
      box.append(this.canvas);
      this.view = { left: MARGIN, top: MARGIN, perLevel: 100, perUnit: 20 };
      this.colorBy = "value";
      this.sizeBy = "visits";
      this.selected = -1;
      this.frame = 0;
      this.isTouched = false; // the reader has moved the view: growth no longer fits it to the window
      this.drawCount = 0;
      this.listen();
      this.observer = new ResizeObserver(() => this.resize());
      this.observer.observe(this.canvas);
      this.endTheme = viewer.theme.onChange(() => this.redraw());
    }

    close() {
      this.observer.disconnect();
      this.endTheme();
      cancelAnimationFrame(this.frame);
    }

    // ---- data

    // New columns, or more of them. `keep`: the view and the selection stay as they are.
    setData(data, keep = false) {
      this.data = data;
      this.tree = viewer.treeLayout.layout(data.parent);
      this.until = this.tree.count;
      this.onPath = new Uint8Array(this.tree.count);
      this.markPath();
      if (!keep) this.selected = -1;
      this.prepare();
      this.resize();
      if (!keep || !this.isTouched) this.fit();
    }

    get count() { return this.tree ? this.tree.count : 0; }

    colorChoices() { return COLORS.filter((name) => hasNumbers(this.data[name])); }
    sizeChoices() { return SIZES.filter((name) => name === "equal" || hasNumbers(this.data[name])); }

    markPath() {
      const { parents, count } = this.tree;
      const chosen = this.data.chosen;
      if (typeof chosen !== "number" || chosen < 0 || chosen >= count) return;
      for (let i = chosen; i < count && i >= 0; i = parents[i]) this.onPath[i] = 1;
    }

    // Colours, radii and sums for the columns that are shown.
    prepare() {
      const colorBy = this.colorChoices().includes(this.colorBy) ? this.colorBy : this.colorChoices()[0];
      const values = colorBy ? this.knownValues(colorBy) : null;
      const [low, high] = viewer.colors.range(values || []);
      this.colorName = colorBy || "";
      const isPart = low >= 0 && high <= 1; // probabilities and rewards from 0 to 1 keep that range
      this.scale = isPart ? viewer.colors.scale(0, 1) : viewer.colors.scale(low, high);
      this.values = values;
      const sizeBy = this.sizeChoices().includes(this.sizeBy) ? this.sizeBy : this.sizeChoices()[0];
      const sizes = sizeBy === "equal" ? null : this.data[sizeBy];
      const largest = sizes ? Math.log1p(viewer.colors.range(sizes)[1]) || 1 : 1;
      this.radius = sizes ? (i) => 3 + 8 * (Math.log1p(Math.max(0, sizes[i] || 0)) / largest) : () => 5;
      this.sizeName = sizeBy;
      this.summarize();
    }

    // A node that a search never visited has no value yet, rather than the value 0.
    knownValues(name) {
      const { visits } = this.data, values = this.data[name];
      return name === "value" && hasNumbers(visits) ? values.map((value, i) => (visits[i] ? value : null)) : values;
    }

    summarize() { this.summary = viewer.treeDrawing.summarize(this.tree, this.until, this.values); }

    setColor(name) {
      this.colorBy = name;
      this.prepare();
      this.redraw();
    }

    setSize(name) {
      this.sizeBy = name;
      this.prepare();
      this.redraw();
    }

    // How many nodes have grown.
    setUntil(count) {
      this.until = clamp(Math.round(count), 0, this.count);
      this.summarize();
      this.redraw();
    }

    // ---- view

    resize() {
      const box = this.canvas.getBoundingClientRect();
      const ratio = Math.min(2, window.devicePixelRatio || 1);
      const [width, height] = [Math.max(1, Math.round(box.width)), Math.max(1, Math.round(box.height))];
      if (width === this.width && height === this.height && ratio === this.ratio) return;
      Object.assign(this, { width, height, ratio });
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
      if (this.tree && !this.isTouched) this.fit();
      else this.redraw();
    }

    fitScales() {
      const { width, levels } = this.tree;
      const labels = this.data.snippet ? Math.min(170, this.width * 0.25) : 0; // room for the labels of the last level
      return {
        perLevel: clamp((this.width - 2 * MARGIN - labels) / Math.max(1, levels - 1), 0.02, 220),
        perUnit: clamp((this.height - 2 * MARGIN) / Math.max(1, width), 1e-4, MAX_PER_UNIT),
      };
    }

    // The whole tree in the window.
    fit() {
      if (!this.tree || !this.width) return;
      const scales = this.fitScales();
      this.view = { ...scales, left: MARGIN, top: (this.height - this.tree.width * scales.perUnit) / 2 };
      this.isTouched = false;
      this.redraw();
    }

    zoom(factor, x = this.width / 2, y = this.height / 2) {
      const { view } = this;
      const least = this.fitScales();
      const perUnit = clamp(view.perUnit * factor, Math.min(least.perUnit * 0.5, view.perUnit), MAX_PER_UNIT);
      const perLevel = clamp(view.perLevel * Math.sqrt(factor), Math.min(least.perLevel, view.perLevel), MAX_PER_LEVEL);
      view.top = y - ((y - view.top) * perUnit) / view.perUnit;
      view.left = x - ((x - view.left) * perLevel) / view.perLevel;
      Object.assign(view, { perUnit, perLevel });
      this.isTouched = true;
      this.redraw();
    }

    pan(dx, dy) {
      this.view.left += dx;
      this.view.top += dy;
      this.isTouched = true;
      this.redraw();
    }

    // Bring a node into the window.
    reveal(i) {
      const { view, tree } = this;
      const x = view.left + tree.depth[i] * view.perLevel, y = view.top + tree.across[i] * view.perUnit;
      if (x < MARGIN || x > this.width - MARGIN) view.left += this.width / 2 - x;
      if (y < MARGIN || y > this.height - MARGIN) view.top += this.height / 2 - y;
    }

    select(i, reveal = true) {
      if (i < 0 || i >= this.count) return;
      this.selected = i;
      if (i >= this.until) this.setUntil(i + 1);
      if (reveal) this.reveal(i);
      this.redraw();
      this.on.select?.(i);
    }

    // ---- drawing

    redraw() {
      if (!this.frame && this.tree) this.frame = requestAnimationFrame(() => this.draw());
    }

    inks() {
      const color = viewer.theme.color;
      return {
        page: color("panel") || "#fff", ink: color("ink") || "#111", soft: color("soft") || "#666",
        line: color("edge") || color("line") || "#ccc", none: color("line") || "#ccc",
        path: color("lost") || "#c2410c", pruned: color("alert") || "#a3261b",
        cites: color("won") || "#0072b2", selected: color("accent") || "#2f6f62",
      };
    }

    drawing(pen) {
      const { tree, data, view, until, width, height, onPath, selected, scale, values, radius, summary } = this;
      const entry = (value) => (value === null || value === undefined || !Number.isFinite(value) ? -1 : scale.entry(value));
      return new viewer.treeDrawing.Drawing(pen, {
        tree, data, view, until, width, height, onPath, selected, radius, deepest: summary.deepest,
        colors: scale.colors, inks: this.inks(), color: (i) => (values ? entry(values[i]) : -1),
        meanColor: (i) => entry(summary.mean(i)),
      });
    }

    draw() {
      this.frame = 0;
      if (!this.tree || !this.width) return;
      const pen = this.canvas.getContext("2d");
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      this.drawn = this.drawing(pen);
      this.drawn.draw();
      this.drawCount++;
      this.on.draw?.();
    }

    toSvg() {
      const pen = new viewer.SvgPen(this.width, this.height);
      this.drawing(pen).draw();
      return pen.toString();
    }

    toPng() { return new Promise((resolve) => this.canvas.toBlob(resolve, "image/png")); }

    // The node nearest to a point, or -1.
    nodeAt(x, y) {
      if (!this.drawn) return -1;
      let best = -1, least = HIT_PX * HIT_PX;
      for (const i of this.drawn.nodes) {
        const dx = this.drawn.x(i) - x, dy = this.drawn.y(i) - y;
        if (dx * dx + dy * dy < least) [best, least] = [i, dx * dx + dy * dy];
      }
      return best;
    }

    // ---- mouse, fingers, keys

    listen() {
      const { canvas } = this;
      const pointers = new Map();
      let moved = 0;
      const place = (event) => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        if (event.shiftKey) return this.pan(-event.deltaY - event.deltaX, 0);
        this.zoom(Math.exp(-clamp(event.deltaY, -200, 200) * 0.003), ...place(event));
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        canvas.setPointerCapture(event.pointerId);
        pointers.set(event.pointerId, place(event));
        moved = pointers.size > 1 ? 99 : 0;
        canvas.focus({ preventScroll: true });
      });
      canvas.addEventListener("pointermove", (event) => {
        const at = place(event), before = pointers.get(event.pointerId);
        if (!before) return this.hover(...at);
        moved += Math.abs(at[0] - before[0]) + Math.abs(at[1] - before[1]);
        const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
        pointers.set(event.pointerId, at);
        if (other) this.pinch(before, at, other);
        else if (moved > 4) this.pan(at[0] - before[0], at[1] - before[1]);
      });
      const release = (event) => {
        if (pointers.delete(event.pointerId) && event.type === "pointerup" && moved <= 4) {
          const i = this.nodeAt(...place(event));
          if (i >= 0) this.select(i, false);
        }
      };
      canvas.addEventListener("pointerup", release);
      canvas.addEventListener("pointercancel", release);
      canvas.addEventListener("pointerleave", () => this.on.hover?.(-1));
      canvas.addEventListener("dblclick", (event) => this.zoom(2, ...place(event)));
      canvas.addEventListener("keydown", (event) => this.key(event));
    }

    pinch(before, at, other) {
      const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
      this.zoom(distance(at, other) / distance(before, other), (at[0] + other[0]) / 2, (at[1] + other[1]) / 2);
      this.pan((at[0] - before[0]) / 2, (at[1] - before[1]) / 2);
    }

    hover(x, y) { this.on.hover?.(this.nodeAt(x, y), x, y); }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.tree) return;
      const moves = { ArrowLeft: "parent", ArrowRight: "child", ArrowUp: "previous", ArrowDown: "next", Home: "root", End: "answer" };
      if (moves[event.key]) this.move(moves[event.key]);
      else if (event.key === "+" || event.key === "=") this.zoom(1.4);
      else if (event.key === "-") this.zoom(1 / 1.4);
      else if (event.key === "0") this.fit();
      else return;
      event.preventDefault();
    }

    // The node beside the selected one.
    move(direction) {
      if (!this.count) return;
      const to = this.selected < 0 ? (direction === "answer" ? this.neighbour("answer", 0) : 0) : this.neighbour(direction, this.selected);
      if (to >= 0 && to < this.count) this.select(to);
    }

    neighbour(direction, i) {
      const { parents, children, count } = this.tree;
      const { start, list } = children;
      if (direction === "root") return 0;
      if (direction === "answer") return typeof this.data.chosen === "number" ? this.data.chosen : i;
      if (direction === "parent") return parents[i] === count ? i : parents[i];
      if (direction === "child") {
        const nodes = Array.from(list.subarray(start[i], start[i + 1])).filter((child) => child < this.until);
        return nodes.find((child) => this.onPath[child]) ?? nodes[0] ?? i;
      }
      return this.beside(i, direction === "next" ? 1 : -1);
    }

    // The next node at the same depth: a sibling, or a cousin.
    beside(i, step) {
      const { depth, across } = this.tree;
      let best = i, least = Infinity;
      for (let k = 0; k < this.until; k++) {
        const away = (across[k] - across[i]) * step;
        if (depth[k] === depth[i] && away > 0 && away < least) [best, least] = [k, away];
      }
      return best;
    }
  }

  viewer.TreeCanvas = TreeCanvas;
})();
