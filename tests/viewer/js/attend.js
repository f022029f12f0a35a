// Computes layers: for every N.scene of a folder, N.features → N.output. Run by tests/viewer/test_live_layer.py.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { argv } from "node:process";
import { attend, positionRow } from "../../../src/convattn/viewer/static/js/attention.js";
import {
  geometryOf,
  liveLayer,
  floatsOf,
  readSafetensors,
  openScene,
} from "../../../src/convattn/viewer/static/js/scene.js";
import { readBuffer } from "./files.js";

const folder = argv[2];
for (const file of readdirSync(folder).filter((name) => name.endsWith(".scene"))) {
  const place = join(folder, file.replace(".scene", ""));
  const scene = openScene(readBuffer(readFileSync(join(folder, file))));
  const { tensors } = readSafetensors(readBuffer(readFileSync(`${place}.features`)));
  const [rows, cols, channels] = tensors.get("features")?.shape ?? [];
  const features = { rows, cols, channels, data: floatsOf(tensors, "features") };
  const layer = scene.networks[0].layers[0];
  const live = liveLayer(scene, layer);
  writeFileSync(`${place}.output`, attend(features, live).data);
  writeFileSync(`${place}.direct`, attend(features, { ...live, axes: null }).data);
  const [last, middle] = [live.geometry.grid[0] - 1, Math.floor(live.geometry.grid[1] / 2)];
  writeFileSync(`${place}.row`, positionRow(geometryOf(layer), live.scores, live.heads, [last, middle]));
}
