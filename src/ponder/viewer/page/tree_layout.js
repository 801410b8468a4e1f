// Where the nodes of a tree stand: Reingold and Tilford's tidy layout in linear time (Buchheim, Jünger, Leipert 2002),
// without recursion, on typed arrays. `depth` runs along one axis, `across` along the other; siblings are one unit apart.
// A node's parent has a smaller index, so a loop over indices needs no stack.
(() => {
  "use strict";

  // The parent of each node; that of roots is `count`, a node that is not drawn.
  function parentsOf(parent) {
    const count = parent.length;
    const parents = new Int32Array(count + 1);
    for (let i = 0; i < count; i++) {
      const p = parent[i];
      parents[i] = p === null || p === undefined || p < 0 || p >= i ? count : p;
    }
    parents[count] = -1;
    return parents;
  }

  // Children of each node in the order of their indices: those of node i are list[start[i]] ... list[start[i + 1] - 1].
  function childLists(parents) {
    const count = parents.length - 1;
    const start = new Int32Array(count + 2);
    for (let i = 0; i < count; i++) start[parents[i] + 1]++;
    for (let i = 0; i <= count; i++) start[i + 1] += start[i];
    const next = start.slice(0, count + 1);
    const list = new Int32Array(count);
    for (let i = 0; i < count; i++) list[next[parents[i]]++] = i;
    return { start, list };
  }

  class Tidy {
    constructor(parents, children) {
      const count = parents.length - 1;
      this.parents = parents;
      this.children = children;
      this.prelim = new Float64Array(count + 1);
      this.mod = new Float64Array(count + 1);
      this.shift = new Float64Array(count + 1);
      this.change = new Float64Array(count + 1);
      this.thread = new Int32Array(count + 1).fill(-1);
      this.ancestor = new Int32Array(count + 1);
      for (let i = 0; i <= count; i++) this.ancestor[i] = i;
      this.position = new Int32Array(count + 1); // among its siblings
    }

    firstChild(i) {
      const { start, list } = this.children;
      return start[i] < start[i + 1] ? list[start[i]] : -1;
    }

    nextLeft(i) {
      const child = this.firstChild(i);
      return child >= 0 ? child : this.thread[i];
    }

    nextRight(i) {
      const { start, list } = this.children;
      return start[i] < start[i + 1] ? list[start[i + 1] - 1] : this.thread[i];
    }

    // Place the children of a node beside each other; each child's own subtree is placed already.
    place(node) {
      const { start, list } = this.children;
      const from = start[node], to = start[node + 1];
      if (from === to) return;
      let fallback = list[from];
      for (let k = from; k < to; k++) {
        const child = list[k];
        this.position[child] = k - from;
        if (k > from) {
          const middle = this.prelim[child];
          this.prelim[child] = this.prelim[list[k - 1]] + 1;
          if (this.firstChild(child) >= 0) this.mod[child] = this.prelim[child] - middle;
        }
        fallback = this.apportion(child, k > from ? list[k - 1] : -1, list[from], fallback);
      }
      let shift = 0, change = 0;
      for (let k = to - 1; k >= from; k--) {
        const child = list[k];
        this.prelim[child] += shift;
        this.mod[child] += shift;
        change += this.change[child];
        shift += this.shift[child] + change;
      }
      this.prelim[node] = (this.prelim[list[from]] + this.prelim[list[to - 1]]) / 2;
    }

    // Push a subtree away from its left siblings until their contours are one unit apart.
    apportion(node, leftSibling, firstSibling, fallback) {
      if (leftSibling < 0) return fallback;
      const { prelim, mod, thread, ancestor } = this;
      let insideRight = node, outsideRight = node, insideLeft = leftSibling, outsideLeft = firstSibling;
      let sumIR = mod[insideRight], sumOR = mod[outsideRight], sumIL = mod[insideLeft], sumOL = mod[outsideLeft];
      for (;;) {
        const deeperLeft = this.nextRight(insideLeft), deeperRight = this.nextLeft(insideRight);
        if (deeperLeft < 0 || deeperRight < 0) break;
        insideLeft = deeperLeft;
        insideRight = deeperRight;
        outsideLeft = this.nextLeft(outsideLeft);
        outsideRight = this.nextRight(outsideRight);
        ancestor[outsideRight] = node;
        const overlap = prelim[insideLeft] + sumIL - (prelim[insideRight] + sumIR) + 1;
        if (overlap > 0) {
          this.moveSubtree(this.isSibling(ancestor[insideLeft], node) ? ancestor[insideLeft] : fallback, node, overlap);
          sumIR += overlap;
          sumOR += overlap;
        }
        sumIL += mod[insideLeft];
        sumIR += mod[insideRight];
        sumOL += mod[outsideLeft];
        sumOR += mod[outsideRight];
      }
      const left = this.nextRight(insideLeft), right = this.nextLeft(insideRight);
      if (left >= 0 && this.nextRight(outsideRight) < 0) {
        thread[outsideRight] = left;
        mod[outsideRight] += sumIL - sumOR;
      }
      if (right >= 0 && this.nextLeft(outsideLeft) < 0) {
        thread[outsideLeft] = right;
        mod[outsideLeft] += sumIR - sumOL;
        fallback = node;
      }
      return fallback;
    }

    isSibling(a, b) {
      return this.parents[a] === this.parents[b];
    }

    moveSubtree(left, right, distance) {
      const between = this.position[right] - this.position[left];
      this.change[right] -= distance / between;
      this.shift[right] += distance;
      this.change[left] += distance / between;
      this.prelim[right] += distance;
      this.mod[right] += distance;
    }
  }

  // The depth of each node and its place across, which `low` and `high` bound for a whole subtree.
  function layout(parent) {
    const count = parent.length;
    const parents = parentsOf(parent), children = childLists(parents);
    const tidy = new Tidy(parents, children);
    for (let i = count - 1; i >= 0; i--) tidy.place(i);
    tidy.place(count);
    const depth = new Int32Array(count), across = new Float64Array(count), sums = new Float64Array(count + 1);
    sums[count] = tidy.mod[count];
    let lowest = Infinity, highest = -Infinity, levels = 0;
    for (let i = 0; i < count; i++) {
      const p = parents[i];
      depth[i] = p === count ? 0 : depth[p] + 1;
      across[i] = tidy.prelim[i] + sums[p];
      sums[i] = tidy.mod[i] + sums[p];
      lowest = Math.min(lowest, across[i]);
      highest = Math.max(highest, across[i]);
      levels = Math.max(levels, depth[i] + 1);
    }
    for (let i = 0; i < count; i++) across[i] -= lowest;
    const low = across.slice(), high = across.slice();
    for (let i = count - 1; i >= 0; i--) {
      const p = parents[i];
      if (p === count) continue;
      low[p] = Math.min(low[p], low[i]);
      high[p] = Math.max(high[p], high[i]);
    }
    return { count, depth, across, low, high, children, parents, width: count ? highest - lowest : 0, levels };
  }

  viewer.treeLayout = { layout };
})();
