// What the network says of the image: class scores, computed in the page, and how they change when heads are moved.

import { softmaxOf } from "../attention.js";
import { h, keepChildren, para, say, section, setProps } from "../dom.js";
import { fixedText } from "../draw.js";
import { cssShare } from "./field.js";
import { percent } from "./words.js";
import { run, runOnImage } from "../program.js";
import { bytesOf } from "../scene.js";

/** @import { Model } from "./model.js" */
/** @import { NetworkResult } from "../program.js" */

/** Classes that are listed. */
const SHOWN_CLASSES = 5;

/** @param {Model} model @returns {{element: HTMLElement, wait: () => void, update: () => void}} */
export function createClasses(model) {
  const { scene, state } = model;
  const list = h("ol", { class: "class-list" });
  const note = para("caption");
  const element = section("classes", "Class scores", h("h3", null, "What the network sees"), list, note);
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
    /** Marks the scores as those of a moment ago. */
    wait: () => element.classList.add("stale"),
    update() {
      element.classList.remove("stale");
      const { network: number, image, average } = state.get();
      const network = model.network();
      element.hidden = !network.program || average;
      if (element.hidden) return;
      const result = unmoved(number, image);
      const before = softmaxOf(result.scores);
      const first = model.firstMoved();
      const picture = bytesOf(scene.tensors, scene.images[image].picture); // added, maybe, after heads were moved
      const now =
        first === null
          ? before
          : softmaxOf(run(model.movedScene(), network, picture, { from: { result, layer: first } }).scores);
      const names = network.classes ?? Array.from(before, (_, at) => `class ${at}`);
      const order = [...now.keys()].sort((one, other) => now[other] - now[one]).slice(0, SHOWN_CLASSES);
      keepChildren(list, order.length, () =>
        h(
          "li",
          null,
          h("span", { class: "class-name" }),
          h("span", { class: "class-share" }, h("span"), h("small")),
          h("span", { class: "class-bar", "aria-hidden": true }),
        ),
      ).forEach((item, row) => {
        const at = order[row];
        const change = now[at] - before[at];
        const moved = first !== null && Math.abs(change) >= 0.0005;
        const [name, share] = item.children;
        setProps(item, {
          style: { "--share": cssShare(now[at]), "--before": cssShare(before[at]) },
          class: moved ? "moved" : "",
        });
        say(name, names[at]);
        say(share.children[0], percent(now[at]));
        say(share.children[1], moved ? ` ${change > 0 ? "+" : ""}${fixedText(100 * change, 1)}` : "");
      });
      const { label } = scene.images[image];
      const truth = label ? `The image is labelled ${label}. ` : "";
      say(
        note,
        truth +
          (first === null
            ? `Computed in this page${model.isLastEpoch() ? "" : ", at the last epoch: of others it has no weights"}.`
            : "Moved heads are where they are now, all else as in the network; small numbers: what that changed, in points."),
      );
    },
  };
}
