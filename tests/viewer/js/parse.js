// Parses a module without running it: node parse.js FILE. Run by tests/viewer/test_page.py.

import { spawnSync } from "node:child_process";
import { argv, execPath, exit } from "node:process";

const { status, stderr } = spawnSync(execPath, ["--check", argv[2]], { encoding: "utf8" });
process.stderr.write(stderr);
exit(status ?? 1);
