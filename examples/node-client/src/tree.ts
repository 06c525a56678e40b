/** Draft trees. */

/** N draft tokens, parents before children. */
export interface Tree {
  tokens: Int32Array;
  scores: Float32Array; // the probability that the node is accepted
  parents: Int32Array; // the place of the parent; -1: child of the text
  origins: Uint8Array; // bits of the sources: datastores in their order, prompt lookup, recycled logits
}

/** The message Tree: columns of numbers, little-endian. */
export interface TreeMessage {
  nodes: Uint8Array;
  scores: Uint8Array;
  origins: Uint8Array;
}

/** Read the tree of an answer. For little-endian machines, as all usual ones are. */
export function readTree({ nodes, scores, origins }: TreeMessage): Tree {
  const n = origins.length;
  const columns = copied(nodes);
  return {
    tokens: new Int32Array(columns, 8 * n, n),
    scores: new Float32Array(copied(scores)),
    parents: new Int32Array(columns, 12 * n, n),
    origins: new Uint8Array(copied(origins)),
  };
}

/** A copy of some bytes, which begins where numbers are aligned. */
function copied(bytes: Uint8Array): ArrayBuffer {
  return new Uint8Array(bytes).buffer;
}

const NOTHING = new Uint8Array();
export const EMPTY = readTree({ nodes: NOTHING, scores: NOTHING, origins: NOTHING });

/** How many draft tokens are accepted if the model writes `output`: the longest path that spells its beginning. */
export function acceptedLength(tree: Tree, output: number[]): number {
  let [node, length] = [-1, 0];
  tree.tokens.forEach((token, place) => {
    if (tree.parents[place] === node && token === output[length]) [node, length] = [place, length + 1];
  });
  return length;
}
