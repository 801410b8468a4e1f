// The runs that a page is about: a row of names to leave out, to bring to the front, and a list to add from.
"use strict";

(() => {
  const { h, data, route } = viewer;

  // viewer.runChooser({ids, title, fits(run), onChange(ids)}) -> {element, runs: Map of id -> run, ready: Promise}
  function runChooser({ ids, title, fits, onChange }) {
    const chosen = [...ids];
    const runs = new Map();
    const element = h("div", { class: "controls chooser", role: "group", "aria-label": title });

    function change() {
      route.set({ runs: chosen.join(",") });
      draw();
      onChange([...chosen]);
    }

    function chip(id, i) {
      const name = runs.get(id)?.name || id;
      const front = () => {
        chosen.splice(i, 1);
        chosen.unshift(id);
        change();
      };
      const remove = () => {
        chosen.splice(i, 1);
        change();
      };
      return h("span", { class: "chip" },
        h("i", { class: "swatch", style: { background: viewer.theme.series(i) } }),
        h("a", { href: route.link(`/run/${id}`) }, name),
        i > 0 ? h("button", { type: "button", class: "quiet", title: "Compare with this one", "aria-label": `Put ${name} first`, on: { click: front } }, "⇤") : "",
        h("button", { type: "button", class: "quiet", title: "Leave out", "aria-label": `Leave out ${name}`, on: { click: remove } }, "✕"));
    }

    function draw() {
      const others = [...runs.values()].filter((run) => fits(run) && !chosen.includes(run.id));
      const list = h("select", { "aria-label": "Add a run", data: { filter: "" }, on: { change: () => { if (list.value) { chosen.push(list.value); change(); } } } },
        h("option", { value: "" }, others.length ? "Add a run …" : "No other run fits"), others.map((run) => h("option", { value: run.id }, `${run.name} · ${run.task || run.job}`)));
      element.replaceChildren(...chosen.map(chip), list);
    }

    const ready = data.get("/api/runs").then((answer) => {
      for (const run of answer.runs) runs.set(run.id, run);
      draw();
    });
    draw();
    return { element, runs, ready, get ids() { return [...chosen]; }, name: (id) => runs.get(id)?.name || id };
  }

  viewer.runChooser = runChooser;
})();
