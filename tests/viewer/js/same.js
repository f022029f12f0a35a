// Prints whether two modules are one when formatted: node same.js ONE OTHER. Run by tests/viewer/test_page.py.

import { readFileSync } from "node:fs";
import { argv, stdout } from "node:process";
import { format } from "prettier";

const options = /** @type {const} */ ({ parser: "babel", objectWrap: "collapse" });
const [one, other] = await Promise.all(argv.slice(2).map((file) => format(readFileSync(file, "utf8"), options)));
stdout.write(String(one === other));
