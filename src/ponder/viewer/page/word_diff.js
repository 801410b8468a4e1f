// What two texts share, word by word: Myers's O(ND) difference algorithm (1986), bounded in length and in edits.
(() => {
  "use strict";

  const MAX_WORDS = 100000; // of one text; the rest is shown as changed
  const MAX_EDITS = 1500; // texts that differ more are shown as replaced: a longer list of edits helps nobody

  // Words with the space after them, so that joined words give the text back.
  const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

  // The edits between two lists as [kind, word]: 0 both, -1 the first only, 1 the second only; null: more than MAX_EDITS.
  function shortestEdits(a, b) {
    const most = Math.min(a.length + b.length, MAX_EDITS);
    const reach = new Int32Array(2 * most + 3), offset = most + 1;
    const history = [];
    for (let edits = 0; edits <= most; edits++) {
      history.push(reach.slice(offset - edits - 1, offset + edits + 2));
      for (let k = -edits; k <= edits; k += 2) {
        const down = k === -edits || (k !== edits && reach[offset + k - 1] < reach[offset + k + 1]);
        let x = down ? reach[offset + k + 1] : reach[offset + k - 1] + 1;
        while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
        reach[offset + k] = x;
        if (x >= a.length && x - k >= b.length) return walkBack(a, b, history, edits);
      }
    }
    return null;
  }

  function walkBack(a, b, history, edits) {
    const out = [];
    let x = a.length, y = b.length;
    for (let d = edits; d >= 0; d--) {
      const reach = history[d], middle = d + 1, k = x - y; // reach[middle + k] is the furthest x on diagonal k before step d
      const down = k === -d || (k !== d && reach[middle + k - 1] < reach[middle + k + 1]);
      const before = d === 0 ? 0 : down ? k + 1 : k - 1;
      const fromX = d === 0 ? 0 : reach[middle + before], fromY = fromX - before;
      while (x > fromX && y > fromY) {
        out.push([0, a[--x]]);
        y--;
      }
      if (d > 0) out.push(down ? [1, b[--y]] : [-1, a[--x]]);
    }
    return out.reverse();
  }

  // Runs of one kind, joined: [[kind, text], ...]. `isWhole` is false where a bound was reached.
  function diff(first, second) {
    const all = [words(first), words(second)];
    const [a, b] = all.map((list) => list.slice(0, MAX_WORDS));
    const rests = all.map((list) => list.slice(MAX_WORDS).join(""));
    let start = 0, end = 0;
    while (start < a.length && start < b.length && a[start] === b[start]) start++;
    while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
    const [middleA, middleB] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
    const edits = shortestEdits(middleA, middleB);
    const parts = [[0, a.slice(0, start).join("")]];
    if (edits) parts.push(...edits);
    else parts.push([-1, middleA.join("")], [1, middleB.join("")]);
    parts.push([0, a.slice(a.length - end).join("")], [-1, rests[0]], [1, rests[1]]);
    return { parts: joined(parts), isWhole: edits !== null && !rests[0] && !rests[1] };
  }

  function joined(parts) {
    const out = [];
    for (const [kind, text] of parts) {
      if (!text) continue;
      if (out.length && out[out.length - 1][0] === kind) out[out.length - 1][1] += text;
      else out.push([kind, text]);
    }
    return out;
  }

  viewer.wordDiff = { diff };
})();
