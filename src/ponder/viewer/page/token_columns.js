// The numbers of a token that a rollout can be coloured by: their names, their scales, and what they say in words.
(() => {
  "use strict";
  const { format, isNumber } = viewer;

  // `middle`: a number that means "nothing to see"; colours go both ways from it, at least as far as `least`, so that
  // rounding is not coloured. `toward`: the end that is strong. `tip`: what the number is.
  const KINDS = {
    logprobs: { title: "log-probability", toward: "low", zero: 0, tip: "log-probability that the token was sampled with" },
    advantages: { title: "advantage", middle: 0, tip: "advantage that the token is trained with" },
    ratio: { title: "ratio", middle: 1, least: 0.05, tip: "probability that the token was sampled with, divided by the reference's" },
    entropy: { title: "entropy", toward: "high", zero: 0, tip: "entropy of the model's distribution at the token, in nats" },
    reference: { title: "reference", toward: "low", zero: 0, tip: "log-probability that the reference gives the token" },
    values: { title: "value", toward: "high", tip: "the critic's value before the token" },
    version: { title: "weights", isKind: true, tip: "version of the weights that sampled the token" },
  };
  const BLUE = [0, 114, 178], ORANGE = [213, 94, 0], GREEN = [0, 158, 115];
  const STRONGEST = 0.72, ENTRIES = 64;

  const tint = (rgb, part) => ({ css: `rgb(${rgb.join(" ")} / ${(STRONGEST * part).toFixed(3)})` });

  // Columns of one number per token, by name.
  function columnsOf(trace) {
    const count = trace.texts?.length ?? trace.ids?.length ?? 0;
    const isColumn = (values) => Array.isArray(values) && values.length === count && values.some(isNumber);
    const out = {};
    const known = new Set(["ids", "texts", "sampled", "step"]);
    const names = [...Object.keys(KINDS), ...Object.keys(trace).filter((name) => !known.has(name) && !(name in KINDS))];
    for (const name of names) if (isColumn(trace[name])) out[name] = trace[name];
    return out;
  }

  const title = (name) => KINDS[name]?.title ?? name;
  const tip = (name) => KINDS[name]?.tip ?? null;

  // A scale for a column: {color(value) -> css or "", legend fields}.
  function scaleOf(name, values) {
    const kind = KINDS[name] || { toward: "high" };
    if (kind.isKind) return kindScale(values);
    let [low, high] = viewer.colors.range(values, 0.005);
    if (kind.middle !== undefined) {
      const reach = Math.max(Math.abs(high - kind.middle), Math.abs(low - kind.middle), kind.least ?? 0) || 1;
      [low, high] = [kind.middle - reach, kind.middle + reach];
    }
    if (kind.zero !== undefined) [low, high] = kind.toward === "low" ? [Math.min(low, -1e-3), 0] : [0, Math.max(high, 1e-3)];
    if (!(high > low)) high = low + 1;
    const colors = Array.from({ length: ENTRIES }, (_, k) => {
      const part = k / (ENTRIES - 1);
      if (kind.middle !== undefined) return part < 0.5 ? tint(BLUE, 1 - 2 * part) : tint(ORANGE, 2 * part - 1);
      return kind.toward === "low" ? tint(ORANGE, 1 - part) : tint(GREEN, part);
    });
    const entry = (value) => Math.round(Math.max(0, Math.min(1, (value - low) / (high - low))) * (ENTRIES - 1));
    return { low, high, middle: kind.middle ?? null, reverse: false, colors, color: (value) => (isNumber(value) ? colors[entry(value)].css : "") };
  }

  function kindScale(values) {
    const kinds = [...new Set(values.filter(isNumber))].sort((a, b) => a - b);
    const css = new Map(kinds.map((kind, i) => [kind, `color-mix(in srgb, ${viewer.colors.kind(i)} 45%, transparent)`]));
    return { kinds, css, color: (value) => css.get(value) ?? "" };
  }

  // A number with its meaning, for the panel of one token.
  function words(name, value) {
    if (!isNumber(value)) return "–";
    if (name === "logprobs" || name === "reference") return `${format.number(value)} (${format.percent(Math.exp(value))})`;
    if (name === "ratio") return `${format.number(value)} × reference`;
    return format.number(value);
  }

  viewer.tokenColumns = { columnsOf, scaleOf, title, tip, words };
})();
