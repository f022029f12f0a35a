// What the network says of the image: class scores, computed in the page, and how they change when heads are moved.

import { softmaxOf } from "../attention.js";
import { h, say } from "../dom.js";
import { fixedText } from "../draw.js";
import { runOnImage } from "../program.js";
import { percent } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("../program.js").NetworkResult} NetworkResult */

/** Classes that are listed. */
const SHOWN_CLASSES = 5;

/**
 * @param {Model} model
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createClasses(model) {
  const { scene, state } = model;
  const list = h("ol", { class: "class-list" });
  const note = h("p", { class: "caption" });
  const element = h(
    "section",
    { class: "classes", "aria-label": "Class scores" },
    h("h2", null, "What the network sees"),
    list,
    note,
  );
  /** @type {{key: string, result: NetworkResult} | null} */
  let base = null;

  /** @param {number} network @param {number} image @returns {NetworkResult} */
  function unmoved(network, image) {
    const key = `${network}/${image}`;
    if (base?.key !== key) base = { key, result: runOnImage(scene, network, image) };
    return base.result;
  }

  return {
    element,
    update() {
      const { network: number, image, average } = state.get();
      const network = model.network();
      element.hidden = !network.program || average;
      if (element.hidden) return;
      const result = unmoved(number, image);
      const before = softmaxOf(result.scores);
      const first = model.firstMoved();
      const now =
        first === null
          ? before
          : softmaxOf(runOnImage(model.liveScene(), number, image, { from: { result, layer: first } }).scores);
      const names = network.classes ?? Array.from(before, (_, at) => `class ${at}`);
      const order = [...now.keys()].sort((one, other) => now[other] - now[one]).slice(0, SHOWN_CLASSES);
      const items = order.map((at) => {
        const change = now[at] - before[at];
        const moved = first !== null && Math.abs(change) >= 0.0005;
        return h(
          "li",
          {
            style: { "--share": `${100 * now[at]}%`, "--before": `${100 * before[at]}%` },
            class: moved ? "moved" : "",
          },
          h("span", { class: "class-name" }, names[at]),
          h(
            "span",
            { class: "class-share" },
            percent(now[at]),
            moved ? h("small", null, ` ${change > 0 ? "+" : ""}${fixedText(100 * change, 1)}`) : null,
          ),
          h("span", { class: "class-bar", "aria-hidden": true }),
        );
      });
      list.replaceChildren(...items);
      const { label } = scene.images[image];
      const truth = label ? `The image is labelled ${label}. ` : "";
      say(
        note,
        truth +
          (first === null
            ? "Computed in this page."
            : "With the heads as they are now; the small numbers are what moving them changed, in points."),
      );
    },
  };
}
