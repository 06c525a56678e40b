/** Draft trees. */

const NODE_BYTES = 11;

/** N draft tokens, parents before children. */
export interface Tree {
  tokens: Int32Array;
  scores: Float32Array; // the probability that the node is accepted
  parents: Int16Array; // the place of the parent; -1: child of the text
  origins: Uint8Array; // bits of the sources: datastores in their order, prompt lookup, recycled logits
}

/** Read the `nodes` of an answer, column by column. For little-endian machines, as all usual ones are. */
export function unpack(nodes: Uint8Array): Tree {
  const n = nodes.length / NODE_BYTES;
  const { buffer } = new Uint8Array(nodes); // a copy, which begins where its columns are aligned
  return {
    tokens: new Int32Array(buffer, 0, n),
    scores: new Float32Array(buffer, 4 * n, n),
    parents: new Int16Array(buffer, 8 * n, n),
    origins: new Uint8Array(buffer, 10 * n, n),
  };
}

export const EMPTY = unpack(new Uint8Array());

/** How many draft tokens are accepted if the model writes `output`: the longest path that spells its beginning. */
export function acceptedLength(tree: Tree, output: number[]): number {
  let [node, length] = [-1, 0];
  tree.tokens.forEach((token, place) => {
    if (tree.parents[place] === node && token === output[length]) [node, length] = [place, length + 1];
  });
  return length;
}
