// Prints what the guided tour shows in numbers, as JSON. Run by tests/viewer/test_tour.py.

import { argv, stdout } from "node:process";
import {
  certifiedError,
  offCentreMass,
  KERNELS,
  namedTaps,
} from "../../../src/convattn/viewer/static/js/learn/kernels.js";
import { compareEncodings, waveFeatures } from "../../../src/convattn/viewer/static/js/learn/step-encodings.js";

const sharpness = /** @type {number[]} */ (JSON.parse(argv[2]));
const bounds = Object.keys(KERNELS).map((name) => ({
  name,
  kernel: namedTaps(name).map(({ weight }) => weight),
  offsets: namedTaps(name).map(({ offset }) => offset),
  bounds: sharpness.map((alpha) => certifiedError(alpha, namedTaps(name))),
}));
const encodings = [
  [1, 400],
  [8, 24],
].map(([waves, width]) =>
  compareEncodings([0, 0], "a spot", waves, width).map(({ name, parameters, additive }) => ({
    name,
    parameters,
    additive,
  })),
);
const leaks = sharpness.map((alpha) => offCentreMass(alpha));
stdout.write(JSON.stringify({ bounds, leaks, encodings, waves: waveFeatures(3) }));
