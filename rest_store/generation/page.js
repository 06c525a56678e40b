"use strict";
// Shows the draft tree of the chosen forward pass. Passes are chosen by their links, the two
// buttons and the arrow keys.

const data = JSON.parse(document.getElementById("data").textContent);
const links = [...document.querySelectorAll("a.pass")];
const panel = document.getElementById("pass");
const KEY = "Downwards: the text, ✓ drafted. Beside it: other draft tokens at that place. " +
  "Letters are sources; percentages say how probable it was, before the pass, that the token " +
  "would be accepted.";
let chosen = 0;

/** Return a new element; children are elements and texts. */
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return the CSS class of a node: that of its one source, or that of several. */
function sourceClass(origins) {
  if (!origins) return "model";
  const isOne = (origins & (origins - 1)) === 0;
  return isOne ? `source-${Math.log2(origins)}` : "several";
}

/** Return the label and the letter of each source in a mask. */
function sourcesOf(origins) {
  const sources = data.labels.map((label, bit) => [label, "ABCDEFGH"[bit]]);
  return sources.filter((_, bit) => (origins >> bit) & 1);
}

/** Return a text of one line in which white space can be seen. */
function visible(text) {
  return text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "→") || "∅";
}

/** Return a duration as text, with about three digits. */
function duration(microseconds) {
  const milliseconds = microseconds / 1000;
  if (microseconds < 995) return `${milliseconds.toFixed(2)} ms`;
  if (microseconds < 99500) return `${milliseconds.toFixed(1)} ms`;
  if (microseconds < 999500) return `${milliseconds.toFixed(0)} ms`;
  return `${(microseconds / 1e6).toFixed(2)} s`;
}

/** Return a token of the tree as a box: its text, then its sources and acceptance probability. */
function box(text, kind, below, description) {
  const word = visible(text);
  return make("span", { class: `node ${kind}`, title: `${word} : ${description}` },
    make("bdi", { class: "word" }, word),
    make("span", { class: "below", "aria-hidden": "true" }, below),
    make("span", { class: "hidden" }, `, ${description}`));
}

/** Return a score in thousandths as text; it is negative where a node has none. */
function percentage(score) {
  if (score < 0) return "";
  return score < 10 ? "<1 %" : `${Math.round(score / 10)} %`;
}

function nodeBox(pass, node, accepted) {
  const sources = sourcesOf(pass.origins[node]);
  const percent = percentage(pass.scores[node]);
  const letters = sources.map(([, letter]) => letter).join("");
  const description = [
    accepted ? "accepted" : "not accepted",
    percent && `acceptance probability ${percent}`,
    `from ${sources.map(([label]) => label).join(" and ")}`,
  ].filter(Boolean).join(", ");
  const below = [accepted ? "✓" : "", letters, percent].filter(Boolean).join(" ");
  return box(pass.texts[node], sourceClass(pass.origins[node]), below, description);
}

/** Return the nodes that follow each node (-1: the context), the likeliest first. */
function childrenOf(pass) {
  const children = new Map([[-1, []]]);
  pass.parents.forEach((_, node) => children.set(node, []));
  pass.parents.forEach((parent, node) => children.get(parent).push(node));
  for (const nodes of children.values()) nodes.sort((a, b) => pass.scores[b] - pass.scores[a]);
  return children;
}

/** Return a list of nodes that were not accepted, each with the list of its children. */
function branches(pass, children, nodes) {
  return make("ul", {}, ...nodes.map((node) => {
    const item = make("li", {}, nodeBox(pass, node, false));
    const following = children.get(node);
    if (following.length) item.append(branches(pass, children, following));
    return item;
  }));
}

/** Return the draft tree: downwards the text, and beside each token the others at its place. */
function tree(pass) {
  const children = childrenOf(pass);
  const path = make("ol", {});
  if (pass.context !== null) {
    const last = box(pass.context, "context", "so far", "the last token so far");
    path.append(make("li", {}, last));
  }
  [-1, ...pass.accepted].forEach((parent, place) => {
    const node = pass.accepted[place];
    const others = children.get(parent).filter((other) => other !== node);
    const item = make("li", { class: "accepted" });
    if (node !== undefined) {
      item.append(nodeBox(pass, node, true));
    } else if (pass.bonus !== null) {
      item.append(box(pass.bonus, "model", "the model", "chosen by the model itself"));
    } else if (!others.length) {
      return;
    }
    if (others.length) item.append(branches(pass, children, others));
    path.append(item);
  });
  const attributes = { class: "tree", tabindex: "0", role: "group", "aria-label": "Draft tree" };
  return make("div", attributes, path);
}

function outcome(pass, number) {
  const nodes = pass.parents.length;
  const own = pass.bonus === null ? "" : ", then the model's own token";
  if (number === 0) {
    return "The prompt's pass: nothing is drafted yet, and the model writes one token.";
  }
  if (!nodes) return "Nothing was drafted: the model writes one token.";
  return `${pass.accepted.length} of ${counted(nodes, "draft token")} accepted${own}.`;
}

/** Return how long the step took, as text and as a bar. */
function times(pass) {
  const [all, drafting, forward] = pass.times;
  const rest = Math.max(0, all - drafting - forward);
  const shares = [["drafting", drafting], ["forward pass", forward], ["the rest", rest]];
  const list = make("dl", { class: "times" });
  for (const [name, time] of shares) {
    list.append(make("div", {}, make("dt", {}, name), make("dd", {}, duration(time))));
  }
  const bar = make("div", { class: "timebar", "aria-hidden": "true" });
  for (const [, time] of shares) bar.append(make("span", { style: `flex-grow:${time}` }));
  return [bar, list];
}

/** Return a button that chooses the pass `step` passes further. */
function button(text, label, step) {
  const element = make("button", { type: "button", "aria-label": label }, text);
  element.disabled = !links[chosen + step];
  element.addEventListener("click", () => {
    choose(chosen + step);
    const again = panel.querySelector(`button[aria-label="${label}"]`);
    (again.disabled ? panel.querySelector("button:enabled") : again)?.focus();
  });
  return element;
}

/** Mark the text of a pass, and draw its tree. */
function show(number) {
  links[chosen].removeAttribute("aria-current");
  chosen = Math.min(Math.max(number, 0), links.length - 1);
  const pass = data.passes[chosen];
  links.forEach((link, place) => { link.tabIndex = place === chosen ? 0 : -1; });
  links[chosen].setAttribute("aria-current", "step");
  panel.replaceChildren(
    make("div", { class: "head" },
      make("h2", {}, `Forward pass ${chosen + 1} of ${links.length}`),
      make("div", { class: "buttons" },
        button("←", "Previous pass", -1),
        button("→", "Next pass", 1))),
    make("p", { class: "outcome", role: "status" }, outcome(pass, chosen)),
    ...times(pass),
    ...(pass.parents.length ? [tree(pass), make("p", { class: "soft key" }, KEY)] : []),
  );
}

/** Show a pass that the reader chose: in sight, in the address, focused if that is in the text. */
function choose(number) {
  const follows = document.activeElement.classList.contains("pass");
  show(number);
  if (follows) links[chosen].focus({ preventScroll: true });
  const isNarrow = getComputedStyle(panel).position === "static"; // the panel is below the text
  if (isNarrow) panel.scrollIntoView({ block: "nearest" });
  links[chosen].scrollIntoView({ block: "nearest" });
  history.replaceState(null, "", `#${links[chosen].id}`);
}

/** Return the pass that the address names, or else the first one with an accepted draft. */
function passOfAddress() {
  const named = links.findIndex((link) => `#${link.id}` === location.hash);
  return named >= 0 ? named : Math.max(0, data.passes.findIndex((pass) => pass.accepted.length));
}

for (const [number, link] of links.entries()) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    link.focus({ preventScroll: true });
    choose(number);
  });
}

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const wide = event.target.closest?.(".tree");
  if (wide && wide.scrollWidth > wide.clientWidth) return; // there the keys scroll
  const places = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: links.length - 1 };
  if (!(event.key in places)) return;
  event.preventDefault();
  choose(places[event.key]);
});
window.addEventListener("hashchange", () => show(passOfAddress()));
if (links.length) show(passOfAddress());
