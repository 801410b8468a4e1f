// Colours for numbers: viridis for what runs from low to high, blue-white-orange for what has a middle (an advantage of
// 0, a ratio of 1), Okabe-Ito's colours for kinds. All of them can be told apart by colour-blind readers.
(() => {
  "use strict";

  const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"];
  const DIVERGING = ["08519c", "3182bd", "6baed6", "bdd7e7", "f4f1ec", "fdd0a2", "fdae6b", "e6762b", "a63603"];
  const KINDS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];
  const ENTRIES = 64;

  const channels = (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));

  // ENTRIES colours along the stops, each {css, ink}: the ink is black or white, whichever reads better on it.
  function table(stops) {
    return Array.from({ length: ENTRIES }, (_, entry) => {
      const place = (entry / (ENTRIES - 1)) * (stops.length - 1);
      const at = Math.min(stops.length - 2, Math.floor(place));
      const [from, to] = [channels(stops[at]), channels(stops[at + 1])];
      const rgb = from.map((value, i) => Math.round(value + (to[i] - value) * (place - at)));
      return { css: `rgb(${rgb.join(",")})`, ink: inkOn(rgb) };
    });
  }

  // By the relative luminance of WCAG: above 0.18 black has the better contrast.
  function inkOn(rgb) {
    const [r, g, b] = rgb.map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
  }

  const TABLES = { sequential: table(VIRIDIS), diverging: table(DIVERGING) };

  // A scale from numbers to entries of a table: {low, high, middle, entry(value) -> index, color(value) -> {css, ink}}.
  // A diverging scale reaches equally far to both sides of its middle.
  function scale(low, high, { middle = null, reverse = false } = {}) {
    const colors = middle === null ? TABLES.sequential : TABLES.diverging;
    if (middle !== null) {
      const reach = Math.max(Math.abs(high - middle), Math.abs(low - middle)) || 1;
      [low, high] = [middle - reach, middle + reach];
    }
    if (!(high > low)) high = low + 1;
    const entry = (value) => {
      const part = Math.max(0, Math.min(1, (value - low) / (high - low)));
      return Math.round((reverse ? 1 - part : part) * (ENTRIES - 1));
    };
    return { low, high, middle, reverse, colors, entry, color: (value) => colors[entry(value)] };
  }

  // The least and greatest finite number of an array, [0, 1] where there is none. `trim`: the part of outliers that is
  // left out at each end (the colours then saturate), so that one token does not make all others look alike.
  function range(values, trim = 0) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value === null || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) return [0, 1];
    if (trim <= 0 || values.length < 20) return [low, high];
    const sorted = Float64Array.from(values.filter((value) => value !== null && Number.isFinite(value))).sort();
    const at = Math.floor(trim * sorted.length);
    const [from, to] = [sorted[at], sorted[sorted.length - 1 - at]];
    return to > from ? [from, to] : [low, high];
  }

  // A legend: a bar of the scale's colours between its ends.
  function legend(colors, title, note = "") {
    const { h, format } = viewer;
    const bar = h("canvas", { class: "legend-bar", width: ENTRIES, height: 1, "aria-hidden": "true" });
    const pen = bar.getContext("2d");
    for (let i = 0; i < ENTRIES; i++) {
      pen.fillStyle = colors.colors[colors.reverse ? ENTRIES - 1 - i : i].css;
      pen.fillRect(i, 0, 1, 1);
    }
    const middle = colors.middle === null ? null : h("span", { class: "legend-middle" }, format.number(colors.middle));
    const ends = h("span", { class: "legend-scale" }, bar, h("span", { class: "legend-ends" },
      h("span", null, format.number(colors.low)), middle, h("span", null, format.number(colors.high))));
    return h("div", { class: "legend" }, h("span", { class: "legend-title" }, title), ends, note && h("span", { class: "soft" }, note));
  }

  viewer.colors = { scale, range, legend, KINDS, kind: (i) => KINDS[i % KINDS.length] };
})();
