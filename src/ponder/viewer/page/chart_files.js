// A figure as a file: PNG and SVG as it is shown, CSV with the numbers.
"use strict";

(() => {
  const { format, theme, isNumber } = viewer;
  const { colorOf, dashOf, intervals, knownPlaces, GLYPHS, POINT_RADIUS } = viewer.chartDrawing;
  const FONT = "system-ui, sans-serif";
  const TITLE_HEIGHT = 26;
  const LEGEND_LINE = 18;

  viewer.saveChart = (kind, chart) => {
    if (!chart.state.plot) chart.build();
    const name = (chart.state.file || chart.state.title).replace(/[^\w.-]+/g, "-").toLowerCase();
    if (kind === "CSV") viewer.download(`${name}.csv`, chartCsv(chart), "text/csv");
    else if (kind === "SVG") viewer.download(`${name}.svg`, chartSvg(chart), "image/svg+xml");
    else savePng(chart, `${name}.png`);
  };

  // One row for each point: the series, x, y, and what else there is of it.
  function chartCsv({ state }) {
    const hasInterval = state.series.some((one) => one.low);
    const hasSmooth = state.smoothing > 0;
    const hasLabels = state.series.some((one) => one.labels);
    const head = ["series", state.x?.label || "x", state.y?.label || "y"];
    if (hasSmooth) head.push("smoothed");
    if (hasInterval) head.push("low", "high");
    if (hasLabels) head.push("label");
    const rows = [head];
    for (const series of state.series) {
      const smoothed = hasSmooth ? viewer.smooth(series.y, series.line === false ? 0 : state.smoothing) : [];
      series.x.forEach((x, i) => {
        if (!isNumber(x) || !isNumber(series.y[i])) return;
        const row = [series.name, x, series.y[i]];
        if (hasSmooth) row.push(smoothed[i]);
        if (hasInterval) row.push(series.low?.[i], series.high?.[i]);
        if (hasLabels) row.push(series.labels?.[i]);
        rows.push(row);
      });
    }
    return viewer.csv(rows);
  }

  const legendNames = ({ state }) => (state.legend === false ? [] : state.shown);

  function savePng(chart, name) {
    const source = chart.state.plot.ctx.canvas;
    const ratio = devicePixelRatio || 1;
    const names = legendNames(chart);
    const canvas = document.createElement("canvas");
    canvas.width = source.width;
    canvas.height = source.height + (TITLE_HEIGHT + LEGEND_LINE * names.length + 6) * ratio;
    const ctx = canvas.getContext("2d");
    ctx.fillStyle = theme.color("panel");
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.drawImage(source, 0, TITLE_HEIGHT * ratio);
    ctx.scale(ratio, ratio);
    ctx.fillStyle = theme.color("ink");
    ctx.font = `600 14px ${FONT}`;
    ctx.fillText(chart.state.title, 10, 18);
    ctx.font = `12px ${FONT}`;
    names.forEach((series, i) => {
      const y = TITLE_HEIGHT + source.height / ratio + LEGEND_LINE * i + 10;
      ctx.strokeStyle = colorOf(series);
      ctx.lineWidth = 2.5;
      ctx.setLineDash(dashOf(series));
      ctx.beginPath();
      ctx.moveTo(10, y - 4);
      ctx.lineTo(34, y - 4);
      ctx.stroke();
      ctx.fillText(series.name, 42, y);
    });
    canvas.toBlob((blob) => viewer.download(name, blob));
  }

  // ---- SVG: written as text, every text and name escaped

  const escapeXml = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`).replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd]/g, "�");
  const tag = (name, attributes, content = "") => {
    const words = Object.entries(attributes).filter(([, v]) => v !== undefined && v !== "").map(([k, v]) => ` ${k}="${escapeXml(v)}"`).join("");
    return content === "" ? `<${name}${words}/>` : `<${name}${words}>${content}</${name}>`;
  };
  const label = (x, y, text, more) => tag("text", { x, y, "font-size": 12, fill: theme.color("soft"), ...more }, escapeXml(text));

  function chartSvg(chart) {
    const { state } = chart;
    const { plot } = state;
    const ratio = devicePixelRatio || 1;
    const box = { left: plot.bbox.left / ratio, top: plot.bbox.top / ratio + TITLE_HEIGHT, width: plot.bbox.width / ratio, height: plot.bbox.height / ratio };
    const at = (x, y) => [box.left + plot.valToPos(x, "x"), box.top + plot.valToPos(y, "y")].map((v) => Math.round(v * 100) / 100);
    const names = legendNames(chart);
    const height = plot.height + TITLE_HEIGHT + LEGEND_LINE * names.length + 8;
    const parts = [
      tag("rect", { width: plot.width, height, fill: theme.color("panel") }),
      tag("text", { x: 10, y: 18, "font-size": 14, "font-weight": 600, fill: theme.color("ink") }, escapeXml(state.title)),
      ...svgAxes(state, plot, box),
      tag("clipPath", { id: "box" }, tag("rect", { x: box.left, y: box.top, width: box.width, height: box.height })),
      tag("g", { "clip-path": "url(#box)" }, [...svgBands(chart, at), ...svgLines(chart, at), ...svgMarks(chart, at, box)].join("")),
      ...names.flatMap((series, i) => {
        const y = TITLE_HEIGHT + plot.height + LEGEND_LINE * i + 10;
        return [tag("line", { x1: 10, x2: 34, y1: y - 4, y2: y - 4, stroke: colorOf(series), "stroke-width": 2.5, "stroke-dasharray": dashOf(series).join(" ") }), label(42, y, series.name, { fill: theme.color("ink") })];
      }),
    ];
    return tag("svg", { xmlns: "http://www.w3.org/2000/svg", width: plot.width, height, viewBox: `0 0 ${plot.width} ${height}`, "font-family": FONT }, parts.join(""));
  }

  function svgAxes(state, plot, box) {
    const parts = [];
    const [bottom, right] = [box.top + box.height, box.left + box.width];
    const ticks = (axis) => (axis._splits || []).map((value, i) => [value, axis._values?.[i]]).filter(([, text]) => text !== null && text !== undefined && text !== "");
    for (const [value, text] of ticks(plot.axes[0])) {
      const x = box.left + plot.valToPos(value, "x");
      parts.push(tag("line", { x1: x, x2: x, y1: box.top, y2: bottom, stroke: theme.color("faint") }), label(x, bottom + 16, text, { "text-anchor": "middle" }));
    }
    for (const [value, text] of ticks(plot.axes[1])) {
      const y = box.top + plot.valToPos(value, "y");
      parts.push(tag("line", { x1: box.left, x2: right, y1: y, y2: y, stroke: theme.color("faint") }), label(box.left - 6, y + 4, text, { "text-anchor": "end" }));
    }
    if (state.x?.label) parts.push(label((box.left + right) / 2, bottom + 34, state.x.label, { "text-anchor": "middle" }));
    if (state.y?.label) parts.push(label(12, box.top + box.height / 2, state.y.label, { "text-anchor": "middle", transform: `rotate(-90 12 ${box.top + box.height / 2})` }));
    return parts;
  }

  function svgLines(chart, at) {
    const parts = [];
    for (const { series, xs, ys, faint } of chart.state.drawn) {
      const stroke = colorOf(series);
      let path = "";
      let isPen = false;
      xs.forEach((x, i) => {
        if (!isNumber(ys[i])) return void (isPen = false);
        path += `${isPen ? "L" : "M"}${at(x, ys[i]).join(" ")}`;
        isPen = true;
        if (!faint && (series.points || xs.length === 1)) {
          const [cx, cy] = at(x, ys[i]);
          parts.push(tag("circle", { cx, cy, r: POINT_RADIUS, fill: stroke }, tag("title", {}, escapeXml(`${series.labels?.[i] || series.name}: ${format.number(ys[i])}`))));
        }
      });
      if (series.line !== false && path) parts.push(tag("path", { d: path, fill: "none", stroke, "stroke-width": faint ? 1 : 1.8, opacity: faint ? 0.28 : 1, "stroke-dasharray": faint ? "" : dashOf(series).join(" ") }));
    }
    return parts;
  }

  function svgBands(chart, at) {
    const parts = [];
    for (const series of chart.state.shown) {
      const bounds = intervals(series);
      if (!bounds) continue;
      const [lows, highs] = bounds;
      const places = knownPlaces(series, bounds);
      if (series.line === false) {
        for (const i of places) {
          const [[x, low], [, high]] = [at(series.x[i], lows[i]), at(series.x[i], highs[i])];
          parts.push(tag("path", { d: `M${x} ${low}V${high}M${x - 4} ${low}h8M${x - 4} ${high}h8`, stroke: colorOf(series), "stroke-width": 1.5 }));
        }
      } else if (places.length) {
        const points = [...places.map((i) => at(series.x[i], highs[i])), ...places.reverse().map((i) => at(series.x[i], lows[i]))];
        parts.push(tag("polygon", { points: points.map((p) => p.join(",")).join(" "), fill: colorOf(series), opacity: 0.15 }));
      }
    }
    return parts;
  }

  function svgMarks(chart, at, box) {
    return (chart.state.marks || []).filter((mark) => isNumber(mark.x)).map((mark) => {
      const x = at(mark.x, 1)[0];
      const line = mark.kind === "checkpoint" ? "" : tag("line", { x1: x, x2: x, y1: box.top + 14, y2: box.top + box.height, stroke: theme.color("soft"), "stroke-dasharray": "3 3", opacity: 0.6 });
      return line + label(x, box.top + 11, GLYPHS[mark.kind] || "•", { "text-anchor": "middle", "font-size": 11 });
    });
  }

  Object.assign(viewer, { chartCsv, chartSvg });
})();
