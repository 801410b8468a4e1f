// What a figure draws on its canvas: lines, points, intervals as bands or bars, and marks.
"use strict";

(() => {
  const { theme, isNumber } = viewer;
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]]; // lines that share a colour differ in these
  const GLYPHS = { checkpoint: "▾", resumed: "↻", best: "★", eval: "◆" };
  const MAX_LABELLED_MARKS = 30;
  const MAX_STYLED_LINES = 48; // more are thin and plain: nobody tells their dashes apart
  const POINT_RADIUS = 3.5;

  const colorOf = (series) => theme.series(series.color);
  const dashOf = (series) => DASHES[(series.dash ?? Math.floor(series.color / 8)) % DASHES.length];

  // Draws within the box of the axes, and `margin` pixels beside it: draw(ctx, bbox, ratio of canvas to CSS pixels).
  function clipped(plot, draw, margin = 0) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - margin, bbox.top, bbox.width + 2 * margin, bbox.height);
    ctx.clip();
    draw(ctx, bbox, devicePixelRatio || 1);
    ctx.restore();
  }

  // Functions from values to canvas pixels: valToPos, made once for a whole line.
  function pixels(plot) {
    const along = (scale, start, length) => {
      const { min, max, distr } = plot.scales[scale];
      const f = distr === 3 ? Math.log10 : (value) => value;
      const [low, span] = [f(min), f(max) - f(min)];
      return (value) => start + (length * (f(value) - low)) / span;
    };
    const { left, top, width, height } = plot.bbox;
    return [along("x", left, width), along("y", top + height, -height)];
  }

  function drawLines(plot, { drawn }) {
    clipped(plot, (ctx, bbox, ratio) => {
      const [toX, toY] = pixels(plot);
      const { min, max } = plot.scales.x;
      for (const line of drawn) {
        const { series, xs, ys, faint } = line;
        const isPlain = faint || drawn.length > MAX_STYLED_LINES;
        ctx.strokeStyle = ctx.fillStyle = colorOf(series);
        ctx.globalAlpha = faint ? 0.28 : 1;
        ctx.lineWidth = (isPlain ? 1 : 1.8) * ratio;
        ctx.lineJoin = "bevel"; // round joins and dashes cost most of the time of a drawing
        ctx.setLineDash(isPlain ? [] : dashOf(series).map((part) => part * ratio));
        const first = Math.max(0, xs.findIndex((x) => x >= min) - 1);
        const last = Math.min(xs.length, xs.findLastIndex((x) => x <= max) + 2);
        if (series.line !== false) {
          ctx.beginPath();
          tracePath(ctx, line, [first, last], bbox.width, toX, toY);
          ctx.stroke();
        }
        if (faint || !(series.points || xs.length === 1)) continue;
        ctx.beginPath();
        for (let i = first; i < last; i++) {
          ctx.moveTo(toX(xs[i]) + POINT_RADIUS * ratio, toY(ys[i]));
          ctx.arc(toX(xs[i]), toY(ys[i]), POINT_RADIUS * ratio, 0, 2 * Math.PI);
        }
        ctx.fill();
      }
    });
  }

  // Many points in one column of pixels become its least and its largest.
  function tracePath(ctx, { xs, ys }, [first, last], width, toX, toY) {
    if (last - first <= 2 * width) {
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

  // The interval of each point: [lows, highs]; null where a series has none. A filled one reaches down to 0.
  function intervals(series) {
    if (series.fill) return [series.y.map(() => 0), series.y];
    return series.low ? [series.low, series.high] : null;
  }

  const knownPlaces = (series, [lows, highs]) => series.x.map((_, i) => i).filter((i) => isNumber(series.x[i]) && isNumber(lows[i]) && isNumber(highs[i]));

  function drawBands(plot, { shown }) {
    clipped(plot, (ctx) => {
      const [toX, toY] = pixels(plot);
      for (const series of shown) {
        const bounds = intervals(series);
        if (!bounds || series.line === false) continue;
        const places = knownPlaces(series, bounds);
        ctx.beginPath();
        places.forEach((i) => ctx.lineTo(toX(series.x[i]), toY(bounds[1][i])));
        places.reverse().forEach((i) => ctx.lineTo(toX(series.x[i]), toY(bounds[0][i])));
        ctx.globalAlpha = 0.15;
        ctx.fillStyle = colorOf(series);
        ctx.fill();
      }
    });
  }

  function drawErrorBars(plot, { shown }) {
    clipped(plot, (ctx, _, ratio) => {
      const [toX, toY] = pixels(plot);
      ctx.lineWidth = 1.5 * ratio;
      for (const series of shown) {
        const bounds = intervals(series);
        if (!bounds || series.line !== false) continue;
        ctx.strokeStyle = colorOf(series);
        ctx.beginPath();
        for (const i of knownPlaces(series, bounds)) {
          const [x, low, high, cap] = [toX(series.x[i]), toY(bounds[0][i]), toY(bounds[1][i]), 4 * ratio];
          for (const [x1, y1, x2, y2] of [[x, low, x, high], [x - cap, low, x + cap, low], [x - cap, high, x + cap, high]]) {
            ctx.moveTo(x1, y1);
            ctx.lineTo(x2, y2);
          }
        }
        ctx.stroke();
      }
    });
  }

  function drawMarks(plot, { marks }) {
    const known = (marks || []).filter((mark) => isNumber(mark.x));
    if (!known.length) return;
    clipped(plot, (ctx, bbox, ratio) => {
      const [toX] = pixels(plot);
      ctx.strokeStyle = ctx.fillStyle = theme.color("soft");
      ctx.lineWidth = ratio;
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "center";
      for (const mark of known) {
        const x = toX(mark.x);
        if (mark.kind !== "checkpoint" && known.length <= MAX_LABELLED_MARKS) {
          ctx.globalAlpha = 0.6;
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
    }, 6 * (devicePixelRatio || 1));
  }

  viewer.chartDrawing = { colorOf, dashOf, intervals, knownPlaces, drawLines, drawBands, drawErrorBars, drawMarks, GLYPHS, POINT_RADIUS };
})();
