/** A draft session of one generation: the service drafts, this end holds the text. The protocol: docs/reference/protocol.md. */

import { randomBytes } from "node:crypto";

import { status } from "@grpc/grpc-js";

import { DraftError } from "./errors.js";
import type { Call, Service } from "./service.js";
import { EMPTY, readTree, type Tree } from "./tree.js";

const LATE_MS = 1000;
const PAUSE_MS = 1000; // for which a service is left alone at least, after it failed
const MAX_UNSENT = 512; // calls of `accept` since the last tree; a message has room for 1024

export interface Options {
  datastores?: string[]; // to draft from, by name; all by default
  tokenizerFingerprint?: string; // of the model: the service refuses to draft from datastores of another tokenizer
  lateMs?: number; // a step waits no longer for its tree
}

/** Opens its stream with the first tree, and another one, from the text, after it broke. One call at a time. */
export class DraftSession {
  private readonly text: number[];
  private accepted: object[] = []; // tokens that this stream has not got yet
  private call?: Call;
  private answers!: AsyncIterator<any>;
  private pausedUntil = 0;

  constructor(
    private readonly service: Service,
    prompt: number[],
    private readonly options: Options = {},
  ) {
    this.text = [...prompt];
  }

  /**
   * The draft tree that is worth verifying next; empty while the service is away, or the text too long for it.
   * Raises DraftError if the service refuses the request itself.
   *
   * @param costs the time of a step that verifies 0, 1, .. draft tokens: the tree is cut to the size that is worth it.
   */
  async draft(maxNodes = 16, costs: number[] = []): Promise<Tree> {
    const tooLong = this.text.length > this.service.maxSessionTokens;
    if (tooLong || Date.now() < this.pausedUntil) return EMPTY;
    const [began, again] = [Date.now(), this.call !== undefined];
    try {
      return await this.ask({ maxNodes, costs });
    } catch (caught: any) {
      this.close();
      if (!(caught.code in status)) throw caught;
      const error = DraftError.from(caught);
      if (!error.passes) throw error;
      if (again && error.code === status.UNAVAILABLE) return this.draft(maxNodes, costs); // on a new stream
      this.pausedUntil = Date.now() + Math.max(PAUSE_MS, 9 * (Date.now() - began)); // waiting is a tenth of all time
      return EMPTY;
    }
  }

  /**
   * Append the tokens that the model produced. It travels with the next request.
   *
   * @param topK rows of the model's most likely tokens after each of `tokens`, and before these rows those of earlier
   *   tokens; all as long, -1: unknown.
   * @param nodeTopK the same after the text and after each node of the tree drafted last, if that was verified.
   */
  accept(tokens: number[], topK?: number[][], nodeTopK?: number[][]): void {
    this.text.push(...tokens);
    if (this.accepted.length >= MAX_UNSENT) this.close(); // the next stream begins with the text
    if (this.call) this.accepted.push({ tokens, topK: topKMessage(topK), nodeTopK: topKMessage(nodeTopK) });
  }

  close(): void {
    this.call?.end();
    this.call = undefined;
    this.accepted = [];
  }

  private async ask(draft: object): Promise<Tree> {
    const { accepted } = this;
    this.accepted = [];
    if (this.call) {
      this.call.write({ accepted, draft });
    } else {
      this.call = this.service.draftSession();
      this.call.on("error", () => {}); // `answers` raises it
      this.answers = this.call[Symbol.asyncIterator]();
      this.call.write({ open: this.opening(), draft });
    }
    const timer = setTimeout((call: Call) => call.cancel(), this.options.lateMs ?? LATE_MS, this.call);
    const { value, done } = await this.answers.next().finally(() => clearTimeout(timer));
    if (done) throw { code: status.UNAVAILABLE, details: "the service ended the session" };
    return value.tree ? readTree(value.tree) : EMPTY;
  }

  private opening(): object {
    const { datastores, tokenizerFingerprint } = this.options;
    return {
      selection: { datastores, tokenizerFingerprint },
      tokens: new Uint8Array(Int32Array.from(this.text).buffer),
      promptLookup: true,
      recycledLogits: randomBytes(16), // a source, whose key nobody else has
    };
  }
}

/** The message TopK of rows of tokens: int32[rows, k], little-endian. */
function topKMessage(rows: number[][] = []): object | undefined {
  return rows.length ? { k: rows[0].length, tokens: new Uint8Array(Int32Array.from(rows.flat()).buffer) } : undefined;
}
