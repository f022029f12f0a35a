// The images of the scene, and one's own: the query stays where it is when the image is swapped.

import { div, h, keepChildren, para, reasonOf, say, setProps, span } from "../dom.js";
import { keyTarget } from "../keys.js";
import { nearestInside } from "../scene.js";
import { drawImage } from "./query.js";

/** @typedef {import("./model.js").Model} Model */

/**
 * @param {Model} model
 * @param {HTMLElement} dropZone where files may be dropped
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createImages(model, dropZone) {
  const { scene, state, source } = model;
  const strip = h("div", { class: "thumbs", role: "toolbar", "aria-label": "Image" });
  const status = h("p", { class: "caption", role: "status" });
  const file = h("input", { type: "file", accept: "image/*", onchange: () => void take(file.files?.[0]) });
  const own = h("label", { class: "button file-button" }, file, span("Own image …"));
  const note = para("caption image-note");
  const element = div("images", strip, source.upload ? own : null, status, note);

  /** @param {number} image */
  const choose = (image) => state.set({ image, average: false });

  /** @param {File | undefined} picked */
  async function take(picked) {
    if (!picked || !source.upload) return;
    say(status, `Reading ${picked.name} …`);
    try {
      choose(await source.upload(picked));
      say(status, "");
    } catch (error) {
      say(status, reasonOf(error));
    }
    file.value = "";
  }

  strip.addEventListener("keydown", (event) => {
    const thumbs = /** @type {HTMLElement[]} */ ([...strip.children]);
    const across = thumbs.filter(({ offsetTop }) => offsetTop === thumbs[0].offsetTop).length;
    const { image } = state.get();
    const target = keyTarget(event, [Math.floor(image / across), image % across]);
    if (!target) return;
    const [row, col] = nearestInside(target, [Math.ceil(thumbs.length / across), across]);
    choose(Math.min(row * across + col, thumbs.length - 1));
    thumbs[state.get().image].focus();
  });

  if (source.upload) {
    const drag = (/** @type {DragEvent} */ event) => {
      event.preventDefault();
      dropZone.classList.toggle("drop-here", event.type === "dragover");
      if (event.type === "drop") void take(event.dataTransfer?.files[0]);
    };
    setProps(dropZone, { ondragover: drag, ondragleave: drag, ondrop: drag });
  }

  return {
    element,
    update() {
      const { image, average } = state.get();
      note.textContent = (!average && scene.images[image].note) || "";
      note.hidden = !note.textContent;
      keepChildren(strip, scene.images.length, (number) => {
        const { name, label } = scene.images[number];
        const canvas = h("canvas");
        drawImage(model, canvas, number); // the button takes a copy: every canvas on a page costs each of its frames
        const text = label && label !== name ? `${name}, ${label}` : name;
        const copy = h("img", { src: canvas.toDataURL(), alt: "" });
        const onclick = () => choose(number);
        return h("button", { class: "thumb", "aria-label": text, title: text, onclick }, copy);
      }).forEach((button, at) =>
        setProps(button, { tabindex: at === image ? 0 : -1, "aria-pressed": at === image && !average }),
      );
    },
  };
}
