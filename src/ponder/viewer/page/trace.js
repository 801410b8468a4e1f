// One completion token by token. #/trace/RUN/NUMBER?leaf=&color=&token=
(() => {
  "use strict";
  const { h, format, data, route } = viewer;

  const LINE_PX = 24;
  const MARGIN_LINES = 12;

  function render(root, params) {
    const [, run, number] = params.match;
    route.run = run;
    const abort = new AbortController();
    root.append(viewer.waiting());
    const place = `/api/runs/${run}/traces/${number}`;
    let page = null;
    data.get(data.path(`${place}/tokens`, { leaf: params.leaf }), { signal: abort.signal })
      .then((tokens) => { page = new TokenPage(root, run, Number(number), tokens, params); })
      .catch((error) => viewer.showError(error, root));
    return () => {
      abort.abort();
      page?.close();
    };
  }

  class TokenPage {
    constructor(root, run, number, tokens, params) {
      Object.assign(this, { root, run, number, tokens, params });
      this.texts = tokens.texts || (tokens.ids || []).map((id) => `⟨${id}⟩`);
      this.columns = viewer.tokenColumns.columnsOf({ ...tokens, texts: this.texts });
      this.names = Object.keys(this.columns);
      this.colorBy = this.names.includes(params.color) ? params.color : this.names[0] || "";
      this.selected = params.token !== undefined ? Number(params.token) : -1;
      this.build();
      this.observer = new ResizeObserver(() => this.reflow());
      this.observer.observe(this.scroller);
      this.endTheme = viewer.theme.onChange(() => this.drawOverview());
      this.reflow();
      if (this.selected >= 0) this.select(this.selected);
      this.keys();
    }

    close() {
      this.observer.disconnect();
      this.endTheme();
    }

    build() {
      const { run, number, names } = this;
      const count = this.texts.length;
      const masked = (this.tokens.sampled || []).filter((sampled) => !sampled).length;
      this.legendBox = h("div", { class: "legends" });
      this.inner = h("div", { class: "token-inner" });
      this.scroller = h("div", {
        class: "token-scroller", tabindex: "0", role: "group", "aria-label": "Tokens: arrow keys move between them",
        on: { scroll: () => requestAnimationFrame(() => this.drawLines()), keydown: (event) => this.key(event), mousemove: (event) => this.hover(event), mouseleave: () => this.showToken(this.selected), click: (event) => this.click(event) },
      }, this.inner);
      this.overview = h("canvas", { class: "token-overview", "aria-hidden": "true", on: { click: (event) => this.jump(event) } });
      this.frame = h("div", { class: "token-frame" });
      this.side = h("section", { class: "token-side", "aria-label": "The token", "aria-live": "polite" });
      const facts = [format.count(count, "token"), masked ? `${format.integer(masked)} masked` : ""].filter(Boolean).join(" · ");
      this.root.replaceChildren(
        h("div", { class: "headline" }, h("h2", null, `Trace ${number}, token by token`), h("span", { class: "soft" }, facts), h("span", { class: "spacer" }),
          h("a", { class: "button", href: route.link(`/rollouts/${run}/${number}`) }, "Completions"),
          h("a", { class: "button", href: route.link(`/tree/${run}/${number}`, { node: this.params.leaf }) }, "Tree"),
          h("button", { type: "button", on: { click: () => this.saveCsv() } }, "CSV")),
        h("div", { class: "controls" },
          names.length ? viewer.select("Colour by", names.map((name) => [name, viewer.tokenColumns.title(name)]), this.colorBy, (name) => this.setColor(name), { name: "color" })
            : h("span", { class: "soft" }, "These tokens have no numbers: they were not sampled."),
          this.legendBox),
        this.tokens.texts ? "" : this.wholeText(),
        h("div", { class: "token-split" }, h("div", { class: "token-main" }, this.scroller, h("div", { class: "token-strip" }, this.overview, this.frame)), this.side));
      this.prepareColor();
      this.showToken(-1);
    }

    // Where the texts of single tokens are not known: the texts of the steps, and the tokens by their ids.
    wholeText() {
      const pieces = (this.tokens.pieces || []).map((piece) => h("div", { class: "model-text" }, String(piece.text ?? "")));
      return h("details", { class: "panel", open: true }, h("summary", null, "The text (this run does not have the texts of single tokens)"), pieces);
    }

    // ---- colours

    setColor(name) {
      this.colorBy = name;
      route.set({ color: name });
      this.prepareColor();
      this.drawLines(true);
      this.drawOverview();
    }

    prepareColor() {
      const values = this.columns[this.colorBy];
      this.scale = values ? viewer.tokenColumns.scaleOf(this.colorBy, values) : null;
      const mark = h("span", { class: "mark" }, h("span", { class: "mark-masked", "aria-hidden": "true" }), "masked: not trained on");
      const shown = [];
      if (this.scale?.kinds) shown.push(...this.scale.kinds.slice(0, 8).map((kind) => h("span", { class: "mark" }, h("span", { class: "mark-kind", style: { background: this.scale.css.get(kind) } }), String(kind))));
      else if (this.scale) shown.push(h("div", { title: viewer.tokenColumns.tip(this.colorBy) }, viewer.colors.legend(this.scale, viewer.tokenColumns.title(this.colorBy))));
      if (this.tokens.sampled?.includes(false)) shown.push(mark);
      this.legendBox.replaceChildren(...shown);
    }

    isMasked(i) { return this.tokens.sampled ? this.tokens.sampled[i] === false : false; }

    // ---- lines

    reflow() {
      const width = this.scroller.clientWidth;
      if (!width || width === this.width) return;
      this.width = width;
      this.letterPx ||= measureLetter(this.inner);
      const columns = Math.max(16, Math.floor((width - 24) / this.letterPx));
      if (columns !== this.lineColumns) {
        this.lineColumns = columns;
        this.lines = viewer.tokenLines.breakLines(this.texts, columns);
        this.inner.style.height = `${this.lines.count * LINE_PX + 16}px`;
      }
      this.first = this.last = -1;
      this.drawLines(true);
      this.drawOverview();
    }

    drawLines(anew = false) {
      if (!this.lines) return;
      const { scroller, lines } = this;
      const first = Math.max(0, Math.floor(scroller.scrollTop / LINE_PX) - MARGIN_LINES);
      const last = Math.min(lines.count, Math.ceil((scroller.scrollTop + (scroller.clientHeight || 600)) / LINE_PX) + MARGIN_LINES);
      if (!anew && first === this.first && last === this.last) return;
      [this.first, this.last] = [first, last];
      const rows = [];
      for (let line = first; line < last; line++) rows.push(this.line(line));
      this.inner.replaceChildren(...rows);
      this.drawWindow();
    }

    line(line) {
      const { lines } = this;
      const row = h("div", { class: "token-line", style: { top: `${line * LINE_PX + 8}px` } });
      for (let k = lines.starts[line]; k < lines.starts[line + 1]; k++) row.append(this.piece(lines.token[k], lines.text[k]));
      return row;
    }

    piece(i, text) {
      const element = document.createElement("span");
      element.className = this.isMasked(i) ? "token masked" : "token";
      if (i === this.selected) element.classList.add("selected");
      element.dataset.token = i;
      const value = this.columns[this.colorBy]?.[i];
      const color = this.scale && value !== null ? this.scale.color(value) : "";
      if (color) element.style.backgroundColor = color;
      element.textContent = text;
      return element;
    }

    // A narrow picture of the whole text, for orientation: each row has the strongest colour of its lines.
    drawOverview() {
      const { overview, lines } = this;
      const height = this.scroller.clientHeight || 1;
      if (!lines) return;
      overview.width = 28;
      overview.height = height;
      const pen = overview.getContext("2d");
      pen.clearRect(0, 0, 28, height);
      if (!this.scale) return this.drawWindow();
      const values = this.columns[this.colorBy];
      const perLine = Math.min(LINE_PX, height / lines.count);
      for (let line = 0; line < lines.count; line++) {
        const from = lines.starts[line], to = lines.starts[line + 1];
        const parts = Math.min(4, to - from); // four parts across
        for (let part = 0; part < parts; part++) {
          const i = lines.token[from + Math.floor(((to - from) * part) / parts)];
          const color = this.scale.color(values[i]);
          if (!color || color.startsWith("color-mix")) continue;
          pen.fillStyle = color;
          pen.fillRect((28 * part) / parts, line * perLine, 28 / parts, Math.max(1, perLine));
        }
      }
      this.drawWindow();
    }

    // The frame in the overview that marks what is in sight.
    drawWindow() {
      if (!this.lines) return;
      const perPx = Math.min(1, this.scroller.clientHeight / (this.lines.count * LINE_PX));
      this.frame.style.top = `${this.scroller.scrollTop * perPx}px`;
      this.frame.style.height = `${Math.max(4, Math.min(this.scroller.clientHeight, this.lines.count * LINE_PX) * perPx)}px`;
    }

    jump(event) {
      const box = this.overview.getBoundingClientRect();
      const perPx = Math.min(1, box.height / (this.lines.count * LINE_PX));
      this.scroller.scrollTop = (event.clientY - box.top) / perPx - this.scroller.clientHeight / 2;
    }

    // ---- one token

    tokenOf(event) {
      const element = event.target.closest?.("[data-token]");
      return element ? Number(element.dataset.token) : -1;
    }

    hover(event) {
      const i = this.tokenOf(event);
      if (i >= 0) this.showToken(i);
    }

    click(event) {
      const i = this.tokenOf(event);
      if (i >= 0) this.select(i, false);
    }

    select(i, reveal = true) {
      this.selected = Math.max(0, Math.min(this.texts.length - 1, i));
      route.set({ token: this.selected });
      if (reveal) this.reveal(this.selected);
      this.drawLines(true);
      this.showToken(this.selected);
    }

    reveal(i) {
      const top = viewer.tokenLines.lineOf(this.lines, i) * LINE_PX;
      const { scroller } = this;
      if (top < scroller.scrollTop || top > scroller.scrollTop + scroller.clientHeight - 2 * LINE_PX) scroller.scrollTop = top - scroller.clientHeight / 3;
    }

    showToken(i) {
      if (i < 0) return this.side.replaceChildren(h("p", { class: "soft" }, "Point at a token to see all of its numbers; arrow keys move between tokens."));
      const { tokens } = this;
      const rows = this.names.map((name) => [h("dt", { class: name === this.colorBy ? "current" : null, title: viewer.tokenColumns.tip(name) }, viewer.tokenColumns.title(name)), h("dd", null, viewer.tokenColumns.words(name, this.columns[name][i]))]);
      this.side.replaceChildren(
        h("h3", null, `Token ${format.integer(i)}`),
        h("div", { class: "token-text model-text" }, JSON.stringify(this.texts[i]).slice(1, -1)),
        h("dl", { class: "facts" },
          tokens.ids ? [h("dt", null, "id"), h("dd", null, String(tokens.ids[i]))] : "",
          rows,
          tokens.step ? [h("dt", null, "step"), h("dd", null, h("a", { href: route.link(`/tree/${this.run}/${this.number}`, { node: tokens.step[i] }) }, String(tokens.step[i])))] : "",
          this.isMasked(i) ? [h("dt", null, "masked"), h("dd", null, "not sampled by the policy: no loss on it")] : ""));
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const line = () => viewer.tokenLines.lineOf(this.lines, Math.max(0, this.selected));
      const lineToken = (n) => this.lines.token[this.lines.starts[Math.max(0, Math.min(this.lines.count - 1, n))]] ?? this.selected;
      const moves = {
        ArrowRight: () => this.selected + 1, ArrowLeft: () => this.selected - 1, ArrowDown: () => lineToken(line() + 1), ArrowUp: () => lineToken(line() - 1),
        Home: () => 0, End: () => this.texts.length - 1,
      };
      if (!moves[event.key]) return;
      this.select(moves[event.key]());
      event.preventDefault();
      event.stopPropagation();
    }

    keys() {
      const next = (by) => () => {
        const at = this.names.indexOf(this.colorBy);
        const name = this.names[(at + by + this.names.length) % this.names.length];
        const list = this.root.querySelector("select[name=color]");
        if (list && name) [list.value] = [name];
        if (name) this.setColor(name);
      };
      viewer.keys.add(
        { key: "]", text: "colour by the next number", run: next(1) },
        { key: "[", text: "colour by the number before", run: next(-1) },
        { key: "ArrowRight", text: "to the next token", run: () => this.select(this.selected + 1) },
        { key: "ArrowLeft", text: "to the token before", run: () => this.select(this.selected - 1) },
        { key: "u", text: "up to the completions", run: () => route.go(`/rollouts/${this.run}/${this.number}`) });
    }

    saveCsv() {
      const { tokens, names } = this;
      const rows = [["position", "id", "text", "sampled", ...names]];
      this.texts.forEach((text, i) => rows.push([i, tokens.ids?.[i], text, this.isMasked(i) ? 0 : 1, ...names.map((name) => this.columns[name][i])]));
      viewer.download(`tokens-${this.run}-${this.number}.csv`, viewer.csv(rows), "text/csv");
    }
  }

  function measureLetter(box) {
    const probe = h("span", { class: "token probe" }, "0".repeat(100));
    box.append(probe);
    const width = probe.getBoundingClientRect().width / 100;
    probe.remove();
    return width || 8;
  }

  viewer.pages.add({ name: "trace", title: "Tokens", hidden: true, under: "rollouts", path: /^\/trace\/([\w-]+)\/(\d+)$/, render });
})();
