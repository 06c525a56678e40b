/** Replays recordings (JSON lines, see `rest-store bench record`) in place of a model, and prints M of each. */

import { readFileSync } from "node:fs";

import { DraftSession } from "./draft-session.js";
import { Service } from "./service.js";
import { acceptedLength } from "./tree.js";

const LATE_MS = 60_000; // a replay has time; a generation waits a few steps long at most

interface Recording {
  prompt: number[];
  output: number[];
  topk?: number[][]; // the model's most likely tokens after each token of prompt and output
}

/** The number of steps that an output takes. */
async function replay(service: Service, { prompt, output, topk = [] }: Recording, maxNodes: number): Promise<number> {
  const session = new DraftSession(service, prompt, { lateMs: LATE_MS });
  const unknown = topk[0]?.map(() => -1);
  let [position, known, steps] = [0, Math.max(0, prompt.length - 1), 0]; // a prompt's pass gives what follows it alone
  while (position < output.length) {
    const tree = await session.draft(maxNodes);
    // A model verifies the tree here: it accepts a path, and adds a token of its own, which it has not read yet.
    const tokens = output.slice(position, position + acceptedLength(tree, output.slice(position)) + 1);
    position += tokens.length;
    const read = prompt.length + position - 1;
    session.accept(tokens, unknown && [...topk.slice(known, read), unknown]);
    known = read;
    steps += 1;
  }
  session.close();
  return steps;
}

const [target, file, maxNodes = "16"] = process.argv.slice(2);
if (!file) {
  console.error("usage: npm start -- HOST:PORT|unix:/path FILE [MAX_NODES]");
  process.exit(2);
}
try {
  const service = await Service.connect(target);
  for (const line of readFileSync(file, "utf8").trim().split("\n")) {
    const recording: Recording = JSON.parse(line);
    const tokens = recording.output.length;
    const steps = await replay(service, recording, Number(maxNodes));
    console.log(`${tokens} tokens in ${steps} steps, M ${(tokens / steps).toFixed(2)}`);
  }
  service.close();
} catch (error) {
  console.error(String(error));
  process.exit(1);
}
