// Draws the figures of a page over their static pictures: tooltips, marks that all figures share, and the switch
// between validation and test. drawFigures(root) may be called again after a part of the page was replaced.
(function () {
  "use strict";
  const FAINT = 0.07; // opacity of what is not marked
  const MOST_NAMED = 40; // marked trials in words
  const SEARCH = ["search trial", "stopped early"]; // series of validation numbers
  const SUBJECTS = ["trial", "variant"]; // fields that say what a point is of
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paper = window.matchMedia("print");
  const marked = new Map(); // by scope: the values of the subject field that are marked
  const splits = new Map(); // by figure: the split that its reader chose
  let networks = new Map(); // by scope
  let views = [];

  const read = (root, id) => JSON.parse(root.querySelector("#" + id).textContent);
  const layersOf = (spec) => spec.layer || [spec];
  const rowsOf = (layer, spec) => ((layer.data || spec.data || {}).values || []);
  const scopeOf = (box) => box.closest("[data-dataset]");

  function painted(part, palette, key) {
    if (key === "values" || key === "datasets") return part;
    if (Array.isArray(part)) return part.map((item) => painted(item, palette));
    if (part !== null && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([k, v]) => [k, painted(v, palette, k)]));
    }
    return typeof part === "string" && Object.hasOwn(palette, part) ? palette[part] : part;
  }

  // By trial: the trials of its network, which are a search trial and those that confirm it.
  function networksOf(scope) {
    const groups = new Map();
    for (const [trial, source] of Object.entries(JSON.parse(scope.dataset.confirms || "{}"))) {
      groups.set(source, [...(groups.get(source) || [source]), Number(trial)]);
    }
    return new Map([...groups.values()].flatMap((group) => group.map((trial) => [trial, group])));
  }

  function relatives(scope, trial) {
    if (!networks.has(scope)) networks.set(scope, scope ? networksOf(scope) : new Map());
    return networks.get(scope).get(trial) || [trial];
  }

  // Only the numbers of one split, with the axis named after it and a legend of what is drawn.
  function onSplit(spec, split, scope) {
    const all = layersOf(spec).flatMap((layer) => rowsOf(layer, spec));
    const front = all.filter((row) => row.series === "on the front").flatMap((row) => relatives(scope, row.trial));
    const kept = (row) => SEARCH.includes(row.series) === (split === "validation");
    const isSource = (row) => SEARCH.includes(row.series) && front.includes(row.trial);
    const named = (row) => (isSource(row) ? { ...row, series: "on the front" } : row);
    const present = new Set(all.filter(kept).map((row) => named(row).series));
    const limited = (channel) => {
      if (!channel || !channel.scale) return channel;
      const { domain, range } = channel.scale;
      const pick = (list) => list.filter((_, place) => present.has(domain[place]));
      return { ...channel, scale: { ...channel.scale, domain: pick(domain), range: pick(range) } };
    };
    const layers = layersOf(spec).map((layer) => {
      const encoding = { ...layer.encoding };
      for (const name of ["color", "shape"]) if (encoding[name]) encoding[name] = limited(encoding[name]);
      if (encoding.y && encoding.y.title) encoding.y = { ...encoding.y, title: split + " " + encoding.y.title };
      return { ...layer, encoding, data: { values: rowsOf(layer, spec).filter(kept).map(named) } };
    });
    return { ...spec, layer: layers.filter((layer) => layer.data.values.length > 0) };
  }

  // The specification with a parameter `marked`, which fades the other points, and a brush if it has points to mark.
  function markable(spec, field) {
    let brushed = false;
    const layers = layersOf(spec).map((layer) => {
      const mark = layer.mark.type || layer.mark;
      const encoding = layer.encoding;
      if (!rowsOf(layer, spec).some((row) => field in row)) return layer;
      if (["line", "area"].includes(mark) && !encoding.detail) return layer; // one path for all trials
      const found = { ...layer };
      if (!brushed && ["point", "circle"].includes(mark)) {
        found.params = [...(layer.params || []), { name: "brush", select: { type: "interval", zoom: false } }];
        brushed = true;
      }
      const plain = { value: layer.mark.opacity ?? (["point", "circle", "tick"].includes(mark) ? 0.7 : 1) };
      const opacity = encoding.opacity || plain;
      if (opacity.value === 0) return found;
      const place = "indexof(marked, datum['" + field + "'])";
      const condition = [
        { test: "length(marked) > 0 && " + place + " < 0", value: FAINT },
        { test: place + " >= 0", value: 1 },
        ...[].concat(opacity.condition || []),
      ];
      return { ...found, encoding: { ...encoding, opacity: { ...opacity, condition } } };
    });
    const shown = spec.layer ? { ...spec, layer: layers } : layers[0];
    return { ...shown, params: [...(shown.params || []), { name: "marked", value: [] }] };
  }

  const isWithin = (value, range) => (typeof range[0] === "number" && range.length === 2
    ? Math.min(...range) <= value && value <= Math.max(...range) : range.includes(value));

  const marksOf = (scope) => marked.get(scope ? scope.id : "") || [];

  function mark(root, scope, values) {
    marked.set(scope ? scope.id : "", values);
    for (const each of views) {
      if (each.field && each.scope === scope) each.view.signal("marked", values).runAsync();
    }
    say(scope || root, values);
  }

  function say(place, values) {
    const more = values.length > MOST_NAMED ? ", …" : "";
    const named = "Marked: " + values.slice(0, MOST_NAMED).join(", ") + more;
    place.querySelector(".marked").textContent = values.length ? named : "";
  }

  function onBrush(root, box, spec, field, selection) {
    const fields = Object.entries(selection || {});
    const rows = fields.length ? layersOf(spec).flatMap((layer) => rowsOf(layer, spec)) : [];
    const isInside = (row) => fields.every(([name, range]) => name in row && isWithin(row[name], range));
    const scope = scopeOf(box);
    const values = rows.filter((row) => field in row && isInside(row)).map((row) => row[field]);
    const all = field === "trial" ? values.flatMap((value) => relatives(scope, value)) : values;
    mark(root, scope, [...new Set(all)]);
  }

  function tooltip(field, value, sanitize) {
    if (value === null || typeof value !== "object") return sanitize(String(value));
    const { low, high, ...own } = field ? value : {};
    const interval = high === undefined ? {} : { "95% interval": low + " to " + high };
    const rows = Object.entries(field ? { ...own, ...interval } : value);
    const cell = (kind, text) => '<td class="' + kind + '">' + sanitize(String(text)) + "</td>";
    const lines = rows.map(([name, text]) => "<tr>" + cell("key", name) + cell("value", text) + "</tr>");
    return "<table><tbody>" + lines.join("") + "</tbody></table>";
  }

  async function draw(root, box, original, palette) {
    const figure = box.closest("figure");
    const all = layersOf(original).flatMap((layer) => rowsOf(layer, original));
    const field = SUBJECTS.find((name) => all.some((row) => name in row));
    const split = "tested" in figure.dataset ? splits.get(box.dataset.figure) || "test" : null;
    const scope = scopeOf(box);
    const data = split ? onSplit(original, split, scope) : original;
    const spec = painted(field ? markable(data, field) : data, palette);
    const formatTooltip = (value, sanitize) => tooltip(field, value, sanitize);
    const shown = { disableDefaultStyle: true, formatTooltip };
    const options = { actions: false, renderer: "canvas", ast: true, tooltip: shown }; // ast: without eval
    const { view } = await window.vegaEmbed(box, spec, options);
    box.view = view;
    views.push({ view, field, scope });
    view.addEventListener("click", (event, item) => {
      const trials = scope && scope.dataset.trials; // on a page of `ablate ui`
      if (trials && item && item.datum && "trial" in item.datum) location.href = trials + item.datum.trial;
    });
    if (!field) return;
    view.signal("marked", marksOf(scope)).runAsync();
    if (spec.layer && spec.layer.some((layer) => (layer.params || []).some((each) => each.name === "brush"))) {
      view.addSignalListener("brush", (name, selection) => onBrush(root, box, data, field, selection));
    }
  }

  async function drawAll(root) {
    const specs = read(root, "specs");
    const palette = read(root, "palettes")[dark.matches && !paper.matches ? "dark" : "light"];
    for (const each of views) each.view.finalize();
    views = [];
    networks = new Map();
    for (const part of root.querySelectorAll(".drawn")) part.hidden = false;
    for (const box of root.querySelectorAll("[data-figure]")) {
      const figure = box.closest("figure");
      const picture = figure.querySelector(".static");
      picture.hidden = true;
      try {
        await draw(root, box, specs[box.dataset.figure], palette);
      } catch (error) {
        picture.hidden = false;
        for (const part of figure.querySelectorAll(".drawn")) part.hidden = true;
        console.error(error);
      }
    }
    for (const each of views) if (each.field) say(each.scope || root, marksOf(each.scope));
    for (const button of root.querySelectorAll("figure input[type=radio]")) {
      button.checked = button.value === (splits.get(button.dataset.of) || "test");
      button.onchange = () => {
        splits.set(button.dataset.of, button.value);
        window.drawFigures(root);
      };
    }
  }

  let drawing = Promise.resolve(); // one drawing after the other
  window.drawFigures = (root) => (drawing = drawing.then(() => drawAll(root)));
  const redraw = () => window.drawFigures(document);
  document.addEventListener("replaced", redraw);
  dark.addEventListener("change", redraw);
  paper.addEventListener("change", redraw);
  redraw();
})();
