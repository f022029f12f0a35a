// Asks a scene for rows and writes what comes: node ask.js SCENE ASKED.json FOLDER. Run by tests/viewer/test_image_maps.py.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { argv } from "node:process";
import { rowsOf } from "../../../src/convattn/viewer/static/js/rows.js";
import { openScene } from "../../../src/convattn/viewer/static/js/scene.js";
import { readBuffer } from "./files.js";

const [scene, asked, folder] = argv.slice(2);
const opened = openScene(readBuffer(readFileSync(scene)));
const answers = [];
for (const [number, one] of JSON.parse(readFileSync(asked, "utf8")).entries()) {
  for (const rows of rowsOf(opened, one)) {
    const file = `${number}-${rows.layer}`;
    writeFileSync(join(folder, `${file}.weights`), rows.weights);
    writeFileSync(join(folder, `${file}.prefix`), rows.prefix);
    answers.push({ asked: number, ...rows, weights: `${file}.weights`, prefix: `${file}.prefix` });
  }
}
process.stdout.write(JSON.stringify(answers));
