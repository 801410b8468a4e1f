// The shell of the viewer: DOM helper, formatters, data access, router, keys and theme.
//
// Texts of models are only ever put into text nodes: they can never become HTML. A page adds itself:
//
//   viewer.pages.add({name: "runs", title: "Runs", path: /^\/runs$/, key: "r", render(root, params) { ... }})
//
// `render` fills `root` and may return a function that is called when the page is left. `params` holds the query of
// the hash (`#/run/ID?x=tokens` gives params.x) and `params.match`, the groups of `path`.
"use strict";

(() => {
  const viewer = (window.viewer = window.viewer || {});
  const $ = (id) => document.getElementById(id);

  // ---- DOM

  const SAFE_LINK = /^(#|blob:|data:image\/|https?:\/\/)/;
  const SVG = "http://www.w3.org/2000/svg";

  // An element: h("a", {class: "run", href: "#/runs", on: {click: open}}, "text", anotherElement). Children are
  // elements, texts, lists of them, or null. `style` is an object of CSS properties. "svg:rect" makes SVG elements.
  function h(tag, attributes, ...children) {
    const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) setOne(element, name, value);
    append(element, children);
    return element;
  }

  function setOne(element, name, value) {
    if (value === null || value === undefined || value === false) return;
    if (name === "on") {
      for (const [kind, listener] of Object.entries(value)) element.addEventListener(kind, listener);
    } else if (name === "style") {
      for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, setting);
    } else if (name === "data") {
      Object.assign(element.dataset, value);
    } else if (name.startsWith("on")) {
      throw new Error(`h: listeners go into on: {...}, not into ${name}`);
    } else if ((name === "href" || name === "src") && !SAFE_LINK.test(value)) {
      throw new Error(`h: ${name} may not be ${value}`);
    } else if (name === "value" || name === "checked" || name === "indeterminate") {
      element[name] = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }

  function append(element, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      element.append(child instanceof Node ? child : String(child));
    }
  }

  // A drop-down list. `options` are [value, text] pairs or plain texts.
  function select(label, options, value, onChange, attributes) {
    const list = h("select", { ...attributes, on: { change: (event) => onChange(event.target.value) } });
    for (const option of options) {
      const [key, text] = Array.isArray(option) ? option : [option, option];
      list.append(h("option", { value: key, selected: String(key) === String(value) }, text));
    }
    return h("label", { class: "field" }, `${label} `, list);
  }

  function checkbox(label, checked, onChange) {
    const box = h("input", { type: "checkbox", checked, on: { change: (event) => onChange(event.target.checked) } });
    return h("label", { class: "field check" }, box, ` ${label}`);
  }

  // Calls `run` once, `wait` milliseconds after the last call.
  function later(run, wait = 150) {
    let timer = 0;
    return (...values) => {
      clearTimeout(timer);
      timer = setTimeout(() => run(...values), wait);
    };
  }

  // ---- formatters

  const UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  function trimZeros(text) {
    return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
  }

  const format = {
    // 4 significant digits; – where there is no number
    number(value) {
      if (!isNumber(value)) return "–";
      const size = Math.abs(value);
      if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(2).replace(/\.?0+e/, "e");
      if (Number.isInteger(value)) return value.toLocaleString("en-US");
      return trimZeros(value.toFixed(Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(size))))));
    },
    // 12.3k, 4.56M
    short(value) {
      if (!isNumber(value)) return "–";
      const unit = UNITS.find(([size]) => Math.abs(value) >= size);
      if (!unit) return format.number(value);
      return trimZeros((value / unit[0]).toPrecision(3)) + unit[1];
    },
    integer: (value) => (isNumber(value) ? Math.round(value).toLocaleString("en-US") : "–"),
    percent: (value, digits = 1) => (isNumber(value) ? `${(100 * value).toFixed(digits)} %` : "–"),
    bytes(value) {
      if (!isNumber(value)) return "–";
      for (const [size, unit] of [[1 << 30, "GB"], [1 << 20, "MB"], [1 << 10, "kB"]]) {
        if (value >= size) return `${trimZeros((value / size).toPrecision(3))} ${unit}`;
      }
      return `${value} B`;
    },
    seconds(value) {
      if (!isNumber(value)) return "–";
      if (value < 120) return `${trimZeros(value.toPrecision(3))} s`;
      if (value < 7200) return `${Math.round(value / 60)} min`;
      return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} d`;
    },
    // seconds since the epoch as "5 min ago"
    ago(value) {
      if (!isNumber(value)) return "–";
      const past = Math.max(0, Date.now() / 1000 - value);
      return past < 5 ? "just now" : `${format.seconds(Math.round(past))} ago`;
    },
    date: (value) => (isNumber(value) ? new Date(1000 * value).toLocaleString() : "–"),
    // p values: 0.0312, or <0.0001
    p: (value) => (isNumber(value) ? (value < 1e-4 ? "<0.0001" : value.toFixed(4)) : "–"),
    // "3 runs", "1 run"
    count: (number, noun, nouns) => `${format.integer(number)} ${number === 1 ? noun : nouns || `${noun}s`}`,
  };

  // ---- data: the server, or the shards of an exported copy

  viewer.shards = viewer.shards || {}; // path -> JSON
  viewer.shardFiles = viewer.shardFiles || {}; // path -> the file of an exported copy that holds it
  const answerers = []; // [pattern, function]: what a copy answers from other shards

  // A path with its query in one order, so that one question has one name.
  function canonicalPath(path) {
    const [place, query] = path.split("?");
    if (!query) return place;
    const pairs = query.split("&").filter((pair) => pair && !pair.endsWith("=")).sort();
    const text = pairs.join("&").replaceAll("%2C", ",");
    return text ? `${place}?${text}` : place;
  }

  viewer.shard = (path, json) => {
    viewer.shards[canonicalPath(path)] = json;
    viewer.exported = true;
  };

  // The file of a copy that holds this answer; lists may be written with commas or as %2C.
  const fileOf = (path) => viewer.shardFiles[path] || viewer.shardFiles[path.replaceAll(",", "%2C")];

  function loadShard(path, file) {
    if (!/^data\/[\w.-]+\.js$/.test(file)) return Promise.reject(new Error(`${path} is not part of this copy`));
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = file;
      script.addEventListener("load", () => resolve(viewer.shards[path]));
      script.addEventListener("error", () => reject(new Error(`${file} of this copy is missing`)));
      document.head.append(script);
    });
  }

  class RequestError extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  async function fetchJson(path, signal) {
    let reply;
    try {
      reply = await fetch(path, { signal, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError(0, "The viewer does not answer: is `ponder view` still running?");
    }
    if (reply.ok) return reply.json();
    let message = `the server answered ${reply.status}`;
    try {
      message = String((await reply.json()).error);
    } catch { /* no JSON: the status says what there is to say */ }
    throw new RequestError(reply.status, message);
  }

  const data = {
    // The JSON of an API path such as /api/runs. Rejects with an Error of one sentence.
    async get(path, { signal } = {}) {
      const name = canonicalPath(path);
      if (name in viewer.shards) return viewer.shards[name];
      const file = fileOf(name);
      if (file) return loadShard(name, file);
      if (!viewer.exported) return fetchJson(path, signal);
      for (const [pattern, answer] of answerers) {
        const match = pattern.exec(name);
        if (match) return answer(match, new URLSearchParams(name.split("?")[1] || ""));
      }
      throw new RequestError(404, "This is not part of the exported copy: open the runs with `ponder view`.");
    },
    // What an exported copy answers to paths it has no shard of: answer(match, query) -> JSON or its promise.
    answer: (pattern, answer) => answerers.push([pattern, answer]),
    // An API path with a query; empty values are left out.
    path(place, query) {
      const pairs = Object.entries(query || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
      return pairs.length ? `${place}?${pairs.map(([k, v]) => `${k}=${encodeURIComponent(v).replaceAll("%2C", ",")}`).join("&")}` : place;
    },
    // Calls `callback` whenever files of this run grew. Returns the function that ends it.
    watch(run, callback) {
      if (viewer.exported) return () => {};
      let timer = 0;
      const source = typeof EventSource === "function" ? new EventSource(data.path("/api/events", { run })) : null;
      const poll = () => (timer = timer || setInterval(() => callback({}), 2000));
      if (source) {
        source.addEventListener("grew", (event) => callback(JSON.parse(event.data)));
        source.addEventListener("error", () => source.readyState === EventSource.CLOSED && poll());
      } else poll();
      return () => {
        clearInterval(timer);
        if (source) source.close();
      };
    },
  };

  // ---- router: the whole state of a view is in the hash

  const pages = [];
  let leave = null; // ends the page that is shown
  let shown = null; // {page, token}
  let lastRun = "";

  viewer.pages = {
    list: pages,
    add(page) {
      pages.push({ home: `/${page.name}`, ...page });
      if (shown) drawNav();
    },
  };

  function parseHash(hash) {
    const [path, query] = (hash.replace(/^#/, "") || "/runs").split("?");
    let place = path;
    try {
      place = decodeURI(path);
    } catch { /* a broken link: no page has this path */ }
    return [place, Object.fromEntries(new URLSearchParams(query || ""))];
  }

  function link(path, query) {
    const pairs = new URLSearchParams();
    for (const [key, value] of Object.entries(query || {})) {
      if (value !== "" && value !== null && value !== undefined && value !== false) pairs.set(key, value);
    }
    const text = pairs.toString().replaceAll("%2C", ",");
    return `#${encodeURI(path)}${text ? `?${text}` : ""}`;
  }

  const route = {
    get path() {
      return parseHash(location.hash)[0];
    },
    get params() {
      return parseHash(location.hash)[1];
    },
    // The run that was looked at last: pages that need one start with it.
    get run() {
      return lastRun;
    },
    set run(id) {
      lastRun = id || "";
      drawNav();
    },
    // The href of a view.
    link,
    go(path, query) {
      location.hash = link(path, query);
    },
    // Changes parts of the query of the present view and does not draw it again: call it from a control.
    set(changes) {
      const [path, query] = parseHash(location.hash);
      history.replaceState(null, "", link(path, { ...query, ...changes }));
    },
  };

  function drawNav() {
    const here = shown && shown.page;
    $("nav").replaceChildren(
      ...pages
        .filter((page) => page.title && !page.hidden && (!page.show || page.show(viewer.info || {})))
        .map((page) => {
          const home = typeof page.home === "function" ? page.home(lastRun) : page.home;
          const current = here && (here === page || here.under === page.name);
          return h("a", { href: link(home), "aria-current": current ? "page" : null, title: page.key ? `${page.title} (${page.key})` : null }, page.title);
        }),
    );
  }

  function show() {
    const hash = location.hash;
    if (hash && !hash.startsWith("#/")) return; // a link within the page
    const [path, query] = parseHash(hash);
    const page = pages.find((one) => one.path.test(path));
    if (leave) leave();
    leave = null;
    alert("");
    pageKeys = [];
    const root = $("main");
    root.replaceChildren();
    root.scrollTop = 0;
    if (!page) {
      shown = { page: null };
      drawNav();
      root.append(h("p", { class: "empty" }, "There is no such page. ", h("a", { href: "#/runs" }, "See the runs")));
      return;
    }
    shown = { page };
    document.title = `${page.title || page.name} · ponder view`;
    drawNav();
    const box = h("div", { class: `page page-${page.name}` });
    root.append(box);
    try {
      const end = page.render(box, { ...query, match: page.path.exec(path) });
      if (typeof end === "function") leave = end;
    } catch (error) {
      showError(error, box);
    }
  }

  // ---- messages

  function alert(message) {
    $("alert").textContent = message || "";
    $("alert").hidden = !message;
  }

  // Shows an error: in `box` where given, else above the page. Errors of aborted requests are left out.
  function showError(error, box) {
    if (error.name === "AbortError") return;
    if (!(error instanceof RequestError)) console.error(error);
    if (box && box.isConnected) box.replaceChildren(h("p", { class: "failure", role: "alert" }, error.message));
    else alert(error.message);
  }

  function download(name, content, type = "text/plain") {
    const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    const anchor = h("a", { href: url, download: name });
    document.body.append(anchor);
    anchor.click();
    anchor.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  // Rows of plain values as CSV. A cell that a spreadsheet would take for a formula gets a quote in front.
  function csv(rows) {
    const cell = (value) => {
      if (value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value))) return "";
      if (typeof value === "number") return String(value);
      let text = String(value);
      if (/^[=+\-@\t\r]/.test(text)) text = `'${text}`;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
  }

  // ---- keys

  let pageKeys = []; // of the page that is shown
  const everywhere = [
    { key: "?", text: "this list", run: () => toggleHelp() },
    { key: "d", text: "light or dark", run: () => theme.toggle() },
    { key: "/", text: "to the filter", run: () => document.querySelector("#main [data-filter]")?.focus() },
    { key: "Escape", text: "leave a field", run: () => document.activeElement?.blur() },
  ];

  // A shortcut of the page that is shown: {key, text, run}. `key` as in KeyboardEvent.key.
  const keys = { add: (...entries) => pageKeys.push(...entries) };

  function goTo(page) {
    location.hash = link(typeof page.home === "function" ? page.home(lastRun) : page.home);
  }

  function allKeys() {
    const ofPages = pages
      .filter((page) => page.key && !page.hidden && (!page.show || page.show(viewer.info || {})))
      .map((page) => ({ key: page.key, text: `page ${page.title}`, run: () => goTo(page) }));
    return [pageKeys, ofPages, everywhere];
  }

  function toggleHelp() {
    if ($("keys").open) return $("keys").close();
    const rows = allKeys().flat().map(({ key, text }) => [h("dt", null, h("kbd", null, key === " " ? "Space" : key)), h("dd", null, text)]);
    $("keys-list").replaceChildren(...rows.flat());
    $("keys").showModal();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if ($("keys").open) {
      if (event.key === "?") toggleHelp();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const inField = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && !/^(checkbox|radio|button)$/.test(event.target.type);
    if (inField && event.key !== "Escape") return;
    const entry = allKeys().flat().find(({ key }) => key === event.key);
    if (!entry) return;
    if (entry.run(event) !== false) event.preventDefault();
  });

  // ---- theme

  const themeListeners = new Set();
  const colors = new Map(); // CSS variables that were asked for
  function themeChanged() {
    colors.clear();
    for (const listener of themeListeners) listener();
  }
  const darkByDefault = matchMedia("(prefers-color-scheme: dark)");
  const stored = {
    get: (key) => {
      try {
        return localStorage.getItem(key);
      } catch {
        return null; // a file:// page or a browser that keeps nothing
      }
    },
    set: (key, value) => {
      try {
        localStorage.setItem(key, value);
      } catch { /* the choice lasts as long as the page */ }
    },
  };

  const theme = {
    get dark() {
      const chosen = document.documentElement.dataset.theme;
      return chosen ? chosen === "dark" : darkByDefault.matches;
    },
    toggle() {
      const chosen = theme.dark ? "light" : "dark";
      document.documentElement.dataset.theme = chosen;
      stored.set("ponder-view-theme", chosen);
      themeChanged();
    },
    // A CSS variable's present value: theme.color("accent").
    color(name) {
      if (!colors.has(name)) colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
      return colors.get(name);
    },
    // The colour of the i-th series: safe for colour-blind readers.
    series: (i) => theme.color(`series-${i % 8}`),
    // Calls `listener` when light and dark change. Returns the function that ends it.
    onChange(listener) {
      themeListeners.add(listener);
      return () => themeListeners.delete(listener);
    },
  };
  darkByDefault.addEventListener("change", themeChanged);
  const chosenTheme = stored.get("ponder-view-theme");
  if (chosenTheme === "light" || chosenTheme === "dark") document.documentElement.dataset.theme = chosenTheme;

  // ---- start

  Object.assign(viewer, {
    h, select, checkbox, later, format, data, route, keys, theme, alert, showError, download, csv, RequestError,
    isNumber,
    // What a box shows until its data is there.
    waiting: (text = "Loading …") => h("p", { class: "waiting", role: "status" }, text),
    live: (text) => ($("live").textContent = text || ""),
  });

  async function start() {
    $("theme").addEventListener("click", () => theme.toggle());
    $("help").addEventListener("click", () => toggleHelp());
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      $("main").focus();
    });
    window.addEventListener("hashchange", show);
    try {
      viewer.info = await data.get("/api/info");
    } catch (error) {
      viewer.info = {};
      show();
      return alert(error.message);
    }
    if (viewer.info.exported) viewer.exported = true;
    show();
  }
  document.addEventListener("DOMContentLoaded", start);
})();
