// One head in detail: its map over the image, what it does in words and numbers, and a handle on its centre.

import { div, h, keepChildren, para, say, section, setProp, setProps, span } from "../dom.js";
import { OVERLAY, drawBars, fixedText } from "../draw.js";
import { answerTo } from "./asks.js";
import { chooseNetwork, createColourBar } from "./choices.js";
import {
  cellExtent,
  createField,
  createHandle,
  drawImage,
  extentOf,
  pictureExtent,
  pictureSize,
  reachesBeyond,
  steerQuery,
  unionOf,
} from "./field.js";
import { paintMap, placeMarks, smallView } from "./matrix.js";
import {
  headSentence,
  headWord,
  lookWords,
  percent,
  reportUnitOf,
  shiftWords,
  statisticText,
  unitOf,
  whyWords,
} from "./words.js";
import { cellCentre, nearestCell } from "../scene.js";
import { rowNumbers } from "../statistics.js";

/** @import { Model } from "./model.js" */
/** @import { RowNumbers } from "../statistics.js" */

/**
 * Numbers of a head report that are of many images, with what they are called here, and units; lengths have that of the
 * report.
 * @type {string[][]}
 */
const REPORT_ONLY = [
  ["position_score", "position score", ""],
  ["content_share", "content share", "%"],
  ["distance", "attention distance"],
];

/** What the numbers of a head mean. */
const NUMBER_WORDS =
  "Mean shift: where the head looks on average. Spread: how far from there. Entropy: 0 if one key has all the" +
  " attention. Hard share: what the strongest key has.";

/** Makes a large map: the photograph in grey, and over it where a head looks. @param {Model} model */
function createLargeMap(model) {
  const { state } = model;
  const picture = h("canvas", { class: "grey" });
  const canvas = h("canvas", { class: "heat" });
  const field = createField([picture, canvas]);
  return {
    field,
    canvas,
    /** @param {number} number of the layer @param {number} head @returns {boolean} whether keys lie beyond the image */
    update(number, head) {
      const { query, prefix, average } = state.get();
      const layer = model.network().layers[number];
      const keys = extentOf(layer.keys, layer.keys.grid);
      const edge = pictureExtent(model);
      field.setExtent(unionOf(keys, edge));
      drawImage(model, picture);
      picture.style.visibility = average ? "hidden" : "";
      field.place(picture, edge);
      field.place(canvas, keys);
      const padded = reachesBeyond(keys, edge);
      field.showImageEdge(edge, padded);
      field.showQuery(prefix === null ? cellExtent(layer, nearestCell(layer, query)) : null);
      canvas.hidden = !model.shown(number);
      if (!canvas.hidden) paintMap(model, canvas, number, head, null, undefined, OVERLAY);
      return padded;
    },
  };
}

/** Says what a head is, by its number and its word. @param {Model} model @param {number} number @param {number} head */
function titleOf(model, number, head) {
  const layer = model.network().layers[number];
  const word = headWord(layer, model.shown(number)?.rows, head, model.isChanged(number, head));
  return [`Layer ${layer.number}, head ${head + 1}`, word].filter(Boolean).join(": ");
}

/** Makes the place of a second head beside the chosen one. @param {Model} model @param {() => void} leave the focus */
function createBeside(model, leave) {
  const { state } = model;
  const name = h("figcaption");
  const putAway = () => {
    state.set({ beside: [] });
    leave();
  };
  const drop = h("button", { onclick: putAway }, "Put away");
  const element = h("figure", { class: "beside" }, name, drop);
  /** Made when it is first asked for. @type {ReturnType<typeof createLargeMap> | null} */
  let map = null;
  return {
    element,
    update() {
      const [layer, head] = state.get().beside;
      element.hidden = head === undefined;
      if (element.hidden) return;
      map ??= createLargeMap(model);
      const { element: field } = map.field;
      if (!field.parentNode) element.prepend(field);
      map.update(layer, head);
      say(name, titleOf(model, layer, head));
      setProps(field, { role: "img", "aria-label": `Map of ${titleOf(model, layer, head)}` });
    },
  };
}

/**
 * @param {Model} model
 * @param {HTMLElement} effects  what the network says of the image: it stands by the ring
 * @returns {{element: HTMLElement, map: HTMLElement, update: () => void, said: () => string}}
 */
export function createDetail(model, effects) {
  const { state } = model;
  const map = createLargeMap(model);
  const { field, canvas } = map;
  const handle = createHandle(model, field);
  field.element.append(handle.element);
  steerQuery(model, field, "attention map");
  const beside = createBeside(model, () => keep.focus());
  const bar = createColourBar(model, OVERLAY);

  const title = h("h2");
  const answer = h("p", { class: "answer", "data-testid": "answer" });
  const sentence = h("p", { class: "sentence", "data-testid": "sentence" });
  const bars = div("prefix-bars");
  const numbers = h("tbody");
  const heads = ["Number", "This query", "Over images"].map((text) => h("th", { scope: "col" }, text));
  const table = h(
    "table",
    { class: "numbers" },
    h("caption", null, "Numbers of this head"),
    h("thead", null, h("tr", null, ...heads)),
    numbers,
  );
  const paddingNote = para("caption", "Hatched: padding around the image.");
  const layerSentence = para("layer-sentence");
  const opacity = h("input", {
    type: "range",
    min: "0",
    max: "100",
    value: "100",
    "aria-label": "From the image to the map",
    oninput: () => fade(),
  });
  const fade = () => canvas.style.setProperty("opacity", `${Number(opacity.value) / 100}`);
  fade();
  let heard = ""; // what the map shows, for those who hear it
  const keep = h("button", { onclick: () => state.set({ beside: [state.get().layer, state.get().head] }) });
  say(keep, "Keep beside");
  const element = section(
    "detail",
    "Chosen head",
    title,
    div("detail-map", field.element, bars, beside.element),
    div("under-map", handle.tools),
    effects,
    answer,
    sentence,
    div("under-map", paddingNote, keep),
    div(
      "under-map all-only",
      bar.element,
      h("label", { class: "slider" }, span("Image"), opacity, span("Map")),
      table,
      para("caption", NUMBER_WORDS),
      layerSentence,
    ),
  );

  function update() {
    const { layer: number, head, query, prefix } = state.get();
    const layer = model.layer();
    const shown = model.shown(number);
    say(title, titleOf(model, number, head));
    say(layerSentence, layer.sentence ?? "");
    paddingNote.hidden = !map.update(number, head);
    beside.update();
    bar.update();
    handle.update(prefix === null ? cellCentre(layer.place, nearestCell(layer, query)) : null);
    table.hidden = !shown;
    say(answer, answerTo(model));
    if (!shown) {
      heard = model.trouble() || "This layer has no such map.";
      say(sentence, heard);
      setProp(field.element, "aria-label", `${heard} Arrow keys move the query.`);
      bars.hidden = true;
      return;
    }
    const found = rowNumbers(layer, shown.rows, head);
    const words = headSentence(layer, head, found);
    const report = model.isChanged(number, head) ? null : layer.statistics?.[head];
    say(sentence, report ? whyWords(report, layer.measured_on) : `${words}.`);
    heard = `${words}.`;
    setProp(field.element, "aria-label", `${heard} Arrow keys move the query.`);
    showPrefix(found.prefix);
    if (state.get().controls) showNumbers(found);
  }

  /** @param {number[]} shares */
  function showPrefix(shares) {
    const names = model.layer().prefix;
    bars.hidden = !names.length;
    keepChildren(bars, names.length, () => div("prefix-bar", h("span"), h("canvas"), h("span"))).forEach(
      ({ children: [share, bar, token] }, at) => {
        drawBars(/** @type {HTMLCanvasElement} */ (bar), [shares[at]], 100);
        say(share, percent(shares[at]));
        say(token, names[at]);
      },
    );
  }

  /** @param {RowNumbers} found */
  function showNumbers(found) {
    const { layer: number, head } = state.get();
    const layer = model.layer();
    const report = layer.statistics?.[head];
    const [unit, reportUnit] = [unitOf(layer), reportUnitOf(layer)];
    heads[2].hidden = !report;
    const past = model.isChanged(number, head);
    table.classList.toggle("past", past);
    say(heads[2], past ? "Over images, as measured" : "Over images");
    /** @type {[string, string, string | null][]} name, of this query, of the report */
    const lines = [
      ["mean shift", found.shift ? shiftWords(found.shift, unit, 2) : "–", statisticText(report?.shift, reportUnit)],
      ["spread", found.shift ? `${fixedText(found.spread)} ${unit}` : "–", statisticText(report?.spread, reportUnit)],
      ["entropy", `${fixedText(found.entropy)} nats`, statisticText(report?.entropy, "nats")],
      ["hard share", percent(found.hardShare), statisticText(report?.hard_share, "%")],
    ];
    if (layer.prefix.length)
      lines.push(["prefix share", percent(found.prefixShare), statisticText(report?.prefix_share, "%")]);
    if (report)
      for (const [name, text, unit] of REPORT_ONLY)
        if (report[name]) lines.push([text, "", statisticText(report[name], unit ?? reportUnit)]);
    keepChildren(numbers, lines.length, () => h("tr", null, h("th", { scope: "row" }), h("td"), h("td"))).forEach(
      ({ children }, at) => {
        lines[at].forEach((text, column) => say(children[column], text ?? ""));
        setProp(children[2], "hidden", !report);
      },
    );
  }

  return { element, map: field.element, update, said: () => heard };
}

// The chosen head in other networks of the scene, beside each other: trained, untrained, converted.

/**
 * @param {Model} model
 * @param {() => void} showOverview called when the reader wants all heads of a network
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createComparison(model, showOverview) {
  const { scene, state } = model;
  const columns = scene.networks.map(({ title, note }, number) => {
    const canvas = h("canvas");
    const text = para("compare-numbers");
    const beside = h("input", { type: "checkbox", onchange: () => toggle(number) });
    const box = h("label", { class: "check" }, beside, span(title));
    const choose = () => {
      chooseNetwork(model, number);
      showOverview();
    };
    const open = h("button", { onclick: choose }, "Show all its heads");
    const figure = div("compare-map", h("span", { class: "frame" }, canvas, h("i")));
    const element = div("compare-column", box, figure, text, open);
    if (note) box.title = note;
    return { element, canvas, text, beside, open, figure };
  });
  const element = section(
    "compare",
    "Networks side by side",
    h("h2", null, "This head in other networks"),
    div("compare-columns", ...columns.map((column) => column.element)),
  );
  element.hidden = scene.networks.length < 2;

  /** @param {number} number */
  function toggle(number) {
    const { compare } = state.get();
    const next = compare.includes(number) ? compare.filter((other) => other !== number) : [...compare, number];
    state.set({ compare: next.sort((one, other) => one - other) });
  }

  return {
    element,
    update() {
      if (element.hidden) return;
      const { layer: number, head, network, compare } = state.get();
      for (const [at, { canvas, text, beside, open, figure }] of columns.entries()) {
        const present = at === network;
        beside.checked = present || compare.includes(at);
        beside.disabled = present;
        open.hidden = present || !beside.checked;
        const layer = scene.networks[at].layers[number];
        const shown = beside.checked ? model.shown(number, at) : null;
        const view = smallView(model, number, at);
        const missing = !layer || head >= layer.heads;
        figure.hidden = !shown || missing;
        if (figure.hidden || !shown || !view) {
          const reason = missing ? "It has no such head." : "It has no map of this query and image.";
          say(text, beside.checked ? reason : "");
          continue;
        }
        placeMarks(figure, view, pictureSize(model));
        paintMap(model, canvas, number, head, view, at);
        const found = rowNumbers(layer, shown.rows, head);
        say(text, [lookWords(layer, found), `hard share ${percent(found.hardShare)}`].filter(Boolean).join(", "));
      }
    },
  };
}
