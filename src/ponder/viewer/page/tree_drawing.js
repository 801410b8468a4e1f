// Draws what is visible of a tree with any pen (a canvas's, or `SvgPen`). Subtrees outside the window are passed over
// whole; subtrees smaller than a pixel or two become one bar. The work of a frame depends on the window, not the tree.
(() => {
  "use strict";

  const BAR_BELOW = 2.5; // px between siblings: below it, small subtrees become bars
  const EDGES_PER_STROKE = 400; // one very long path is slower than several
  const MAX_CITES = 3000;
  const LABEL_PX = 11, LABEL_WIDTH = 6.7; // of a letter
  const MAX_RADIUS = 11;

  // What a drawing needs: `tree` is a layout, `data` the columns of the nodes, `until` how many nodes have grown,
  // `view` {left, top, perLevel, perUnit} in px, `color(i)` an index of `colors` or -1, `radius(i)` in px.
  class Drawing {
    constructor(pen, options) {
      Object.assign(this, { pen, ...options });
      this.lastRow = new Int32Array(this.tree.levels).fill(-1e9);
      this.edges = [];
      this.pathEdges = [];
      this.bars = new Map(); // colour -> [x, y, width, height, ...]
      this.nodes = [];
    }

    x(i) { return this.view.left + this.tree.depth[i] * this.view.perLevel; }
    y(i) { return this.view.top + this.tree.across[i] * this.view.perUnit; }

    draw() {
      const { pen, width, height, inks } = this;
      pen.globalAlpha = 1;
      pen.fillStyle = inks.page;
      pen.fillRect(0, 0, width, height);
      this.collect();
      this.strokeEdges(this.edges, inks.line, 1);
      this.drawCites();
      this.drawBars();
      this.strokeEdges(this.pathEdges, inks.path, 2.5);
      for (const i of this.nodes) this.drawNode(i);
      this.drawLabels();
      return this.nodes.length;
    }

    // Which nodes, edges and bars are in the window: depth first, children in order, so that places at one depth come
    // in order too, and a second mark on the same pixel row is left out.
    collect() {
      const { tree, until } = this;
      const { start, list } = tree.children;
      const stack = [];
      const push = (node) => { for (let k = start[node + 1] - 1; k >= start[node]; k--) stack.push(list[k]); };
      push(tree.count);
      while (stack.length) {
        const i = stack.pop();
        if (i >= until || !this.isNear(i)) continue;
        const isBar = this.view.perUnit < BAR_BELOW && this.subtreeHeight(i) < 2 && !this.onPath[i];
        if (this.isNew(i)) {
          this.addEdge(i);
          if (isBar) this.addBar(i);
          else if (this.isInside(i)) this.nodes.push(i);
        }
        if (!isBar) push(i);
      }
    }

    subtreeHeight(i) { return (this.tree.high[i] - this.tree.low[i]) * this.view.perUnit; }

    // Whether the subtree, or the edge that leads to it, may be in the window.
    isNear(i) {
      const { tree, view, width, height } = this;
      if (view.left + (tree.depth[i] - 1) * view.perLevel > width + 20) return false;
      let low = view.top + tree.low[i] * view.perUnit, high = view.top + tree.high[i] * view.perUnit;
      if (low <= height + 20 && high >= -20) return true;
      const p = tree.parents[i];
      if (p === tree.count) return false;
      const y = this.y(p);
      low = Math.min(low, y);
      high = Math.max(high, y);
      return low <= height && high >= 0 && this.isNew(i, 8); // a few edges of a fan that leaves the window
    }

    isInside(i) {
      const x = this.x(i), y = this.y(i);
      return x > -20 && x < this.width + 20 && y > -20 && y < this.height + 20;
    }

    // Whether nothing was drawn yet on this row of pixels at this depth. The path and the selection always are.
    isNew(i, rowHeight = 1) {
      if (this.onPath[i] || i === this.selected) return true;
      if (this.view.perUnit >= rowHeight && rowHeight === 1) return true;
      const row = Math.floor(this.y(i) / rowHeight) * rowHeight, depth = this.tree.depth[i];
      if (this.lastRow[depth] === row) return false;
      this.lastRow[depth] = row;
      return true;
    }

    addEdge(i) {
      const p = this.tree.parents[i];
      if (p !== this.tree.count) (this.onPath[i] ? this.pathEdges : this.edges).push(p, i);
    }

    addBar(i) {
      const { tree, view, deepest } = this;
      const color = this.meanColor(i);
      if (!this.bars.has(color)) this.bars.set(color, []);
      const x = this.x(i), levels = deepest[i] - tree.depth[i];
      const top = view.top + tree.low[i] * view.perUnit;
      this.bars.get(color).push(x - 1, Math.round(top), Math.max(2, levels * view.perLevel + 2), Math.max(1, Math.round(this.subtreeHeight(i))));
    }

    drawBars() {
      const { pen, colors, inks } = this;
      for (const [color, boxes] of this.bars) {
        pen.fillStyle = color < 0 ? inks.soft : colors[color].css;
        for (let k = 0; k < boxes.length; k += 4) pen.fillRect(boxes[k], boxes[k + 1], boxes[k + 2], boxes[k + 3]);
      }
    }

    strokeEdges(edges, ink, lineWidth) {
      const { pen } = this;
      const isCurved = this.view.perUnit > 6 && this.view.perLevel > 12;
      pen.strokeStyle = ink;
      pen.lineWidth = this.view.perUnit < BAR_BELOW && lineWidth < 2 ? 0.5 : lineWidth;
      for (let from = 0; from < edges.length; from += 2 * EDGES_PER_STROKE) {
        pen.beginPath();
        for (let k = from; k < Math.min(edges.length, from + 2 * EDGES_PER_STROKE); k += 2) {
          const x = this.x(edges[k]), y = this.y(edges[k]), toX = this.x(edges[k + 1]), toY = this.y(edges[k + 1]);
          pen.moveTo(x, y);
          if (isCurved) pen.bezierCurveTo((x + toX) / 2, y, (x + toX) / 2, toY, toX, toY);
          else pen.lineTo(toX, toY);
        }
        pen.stroke();
      }
    }

    // Dashed, from a step to the step that it quotes.
    drawCites() {
      const { pen, data, until, width, height } = this;
      pen.strokeStyle = this.inks.cites;
      pen.lineWidth = 1.3;
      pen.setLineDash([5, 4]);
      pen.beginPath();
      let count = 0;
      for (const [i, j] of data.cites || []) {
        if (i >= until || j >= until || count >= MAX_CITES) continue;
        const x = this.x(i), y = this.y(i), toX = this.x(j), toY = this.y(j);
        if (Math.max(x, toX) < 0 || Math.min(x, toX) > width || Math.max(y, toY) < 0 || Math.min(y, toY) > height) continue;
        const bend = Math.min(60, 12 + Math.abs(toY - y) / 4);
        pen.moveTo(x, y);
        pen.bezierCurveTo(x - bend, y, toX + bend, toY, toX, toY);
        count++;
      }
      pen.stroke();
      pen.setLineDash([]);
    }

    // The bound on a radius is what keeps neighbours apart.
    nodeRadius(i) {
      const room = Math.min(this.view.perUnit * 0.46, this.view.perLevel * 0.4, MAX_RADIUS);
      return Math.max(1, Math.min(this.radius(i), room));
    }

    drawNode(i) {
      const { pen, data, inks, colors } = this;
      const x = this.x(i), y = this.y(i), r = this.nodeRadius(i), color = this.color(i);
      const isPruned = this.isPruned(i);
      pen.fillStyle = color < 0 ? inks.none : colors[color].css;
      if (r < 2 && i !== this.selected && i !== data.chosen) return pen.fillRect(x - r, y - r, 2 * r, 2 * r);
      pen.beginPath();
      if (this.tree.parents[i] === this.tree.count) pen.rect(x - r, y - r, 2 * r, 2 * r);
      else if (data.meta && data.meta[i]) this.diamond(x, y, r * 1.25);
      else pen.arc(x, y, r, 0, 2 * Math.PI);
      if (isPruned) pen.globalAlpha = 0.45;
      pen.fill();
      pen.globalAlpha = 1;
      pen.strokeStyle = this.onPath[i] ? inks.path : inks.soft;
      pen.lineWidth = this.onPath[i] ? 2 : 0.8;
      pen.stroke();
      if (isPruned && r >= 2.5) this.cross(x, y, r * 0.9);
      if (i === data.chosen) this.ring(x, y, r + 3.5, inks.path, 2);
      if (i === this.selected) this.ring(x, y, r + 6.5, inks.selected, 2);
    }

    isPruned(i) {
      const reason = this.data.pruned && this.data.pruned[i];
      return reason !== null && reason !== undefined && reason !== false && reason !== "" && reason !== -1;
    }

    diamond(x, y, r) {
      const { pen } = this;
      pen.moveTo(x, y - r);
      pen.lineTo(x + r, y);
      pen.lineTo(x, y + r);
      pen.lineTo(x - r, y);
      pen.closePath();
    }

    cross(x, y, r) {
      const { pen } = this;
      pen.strokeStyle = this.inks.pruned;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x - r, y - r);
      pen.lineTo(x + r, y + r);
      pen.moveTo(x - r, y + r);
      pen.lineTo(x + r, y - r);
      pen.stroke();
    }

    ring(x, y, r, ink, lineWidth) {
      const { pen } = this;
      pen.strokeStyle = ink;
      pen.lineWidth = lineWidth;
      pen.beginPath();
      pen.arc(x, y, r, 0, 2 * Math.PI);
      pen.stroke();
    }

    // The x of the nodes in each band of a line's height.
    rowsOfNodes() {
      const rows = new Map();
      for (const i of this.nodes) {
        const row = Math.floor(this.y(i) / LABEL_PX);
        if (!rows.has(row)) rows.set(row, []);
        rows.get(row).push(this.x(i));
      }
      return rows;
    }

    // How far it is from a node to the next one in its line, or to the end of the window.
    roomRight(i, rows) {
      const x = this.x(i), row = Math.floor(this.y(i) / LABEL_PX);
      let end = this.width;
      for (const near of [row - 1, row, row + 1]) for (const other of rows.get(near) || []) if (other > x + 1 && other < end) end = other;
      return end - x;
    }

    // The beginning of each step's text beside its node, where there is room for it.
    drawLabels() {
      const { pen, data, view, tree } = this;
      if (!data.snippet || view.perUnit < 11.5 || view.perLevel < 70) return;
      pen.font = `${LABEL_PX}px system-ui, sans-serif`;
      pen.textBaseline = "middle";
      const rows = this.rowsOfNodes();
      for (const i of this.nodes) {
        const text = labelText(data.snippet[i]);
        const isLeaf = tree.children.start[i] === tree.children.start[i + 1];
        const offset = this.nodeRadius(i) + (i === data.chosen || i === this.selected ? 10 : 5);
        const room = isLeaf ? Math.min(330, this.roomRight(i, rows) - offset - 8) : view.perLevel - 2 * offset;
        const letters = Math.floor(room / LABEL_WIDTH);
        if (!text || letters < 4 || (!isLeaf && view.perUnit < 18 && !this.onPath[i])) continue; // it would be on the line above
        pen.fillStyle = this.onPath[i] ? this.inks.ink : this.inks.soft;
        const y = isLeaf ? this.y(i) : this.y(i) - Math.min(9, view.perUnit * 0.5); // an inner label stands above its edges
        pen.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, this.x(i) + offset, y);
      }
    }
  }

  // One line without control characters.
  const labelText = (text) => (text ? text.replace(/[\s\u0000-\u001f\u007f\u2028\u2029\u202a-\u202e\u2066-\u2069]+/g, " ").trim() : "");

  // Of the nodes that have grown: the greatest depth below each, and the mean of `values` below each (NaN: none).
  function summarize(tree, until, values) {
    const { parents, depth, count } = tree;
    const deepest = depth.slice(), sum = new Float64Array(count + 1), known = new Int32Array(count + 1);
    for (let i = Math.min(until, count) - 1; i >= 0; i--) {
      const value = values ? values[i] : null;
      if (value !== null && value !== undefined && Number.isFinite(value)) {
        sum[i] += value;
        known[i]++;
      }
      const p = parents[i];
      sum[p] += sum[i];
      known[p] += known[i];
      if (p !== count && deepest[i] > deepest[p]) deepest[p] = deepest[i];
    }
    return { deepest, mean: (i) => (known[i] ? sum[i] / known[i] : NaN) };
  }

  viewer.treeDrawing = { Drawing, summarize, labelText };
})();
