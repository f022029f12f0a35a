// Runs the networks of a scene on its images: node run.js SCENE FOLDER. Run by tests/viewer/test_page_program.py.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { argv } from "node:process";
import { liveLayer, openScene } from "../../../src/convattn/viewer/static/js/scene.js";
import { runOnImage } from "../../../src/convattn/viewer/static/js/program.js";
import { readBuffer } from "./files.js";

const [file, folder] = argv.slice(2);
const scene = openScene(readBuffer(readFileSync(file)));
for (const [number, network] of scene.networks.entries()) {
  for (const image of scene.images.keys()) {
    const write = (/** @type {string} */ what, /** @type {Float32Array} */ data) =>
      writeFileSync(join(folder, `${number}-${image}-${what}`), data);
    const result = runOnImage(scene, number, image);
    write("scores", result.scores);
    for (const [layer, { input, output }] of result.layers.entries()) {
      write(`${layer}-input`, input.data);
      write(`${layer}-output`, output.data);
    }
    const last = result.layers.length - 1;
    const live = liveLayer(scene, network.layers[last]);
    const layers = new Map([[last, { ...live, values: live.values.map((value) => 2 * value) }]]);
    write("doubled", runOnImage(scene, number, image, { layers }).scores);
    write("resumed", runOnImage(scene, number, image, { layers, from: { result, layer: last } }).scores);
  }
}
