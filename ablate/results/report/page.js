(function () {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paper = window.matchMedia("print");

  function painted(part, palette, key) {
    if (key === "values" || key === "datasets") return part;
    if (Array.isArray(part)) return part.map((item) => painted(item, palette));
    if (part !== null && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([k, v]) => [k, painted(v, palette, k)]));
    }
    return typeof part === "string" && Object.hasOwn(palette, part) ? palette[part] : part;
  }

  function draw() {
    const specs = read("specs");
    const palette = read("palettes")[dark.matches && !paper.matches ? "dark" : "light"];
    for (const box of document.querySelectorAll("[data-figure]")) {
      const spec = painted(specs[box.dataset.figure], palette);
      const options = { actions: false, renderer: "canvas", tooltip: { theme: dark.matches ? "dark" : "light" } };
      vegaEmbed(box, spec, options).then(openTrials).catch((error) => {
        box.textContent = "This figure could not be drawn (" + error.message + "); see the PNG beside this page.";
      });
    }
  }

  // On a page of `ablate ui` a click on a point opens its trial.
  function openTrials(drawn) {
    const trials = drawn.view.container().closest("[data-trials]")?.dataset.trials;
    drawn.view.addEventListener("click", (event, item) => {
      const number = trials && String(item?.datum?.trial ?? "").match(/\d[\d,]*/);
      if (number) location.href = trials + number[0].replaceAll(",", "");
    });
  }

  document.addEventListener("replaced", draw);
  dark.addEventListener("change", draw);
  paper.addEventListener("change", draw);
  draw();
})();
