"use strict";
// Draws the page from its data. Nothing is fetched, and text is only ever set as text.

const SHADES = 5;
const CHUNK = 256; // tokens that are shaded together when they come into view
const get = (id) => document.getElementById(id);
const data = JSON.parse(get("data").textContent);
const number = (value) => value.toLocaleString("en");
const range = (count) => Array.from({ length: count }, (_, i) => i);

async function unpacked(base64) {
  const raw = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---- The prompt: spans of characters, each of one token or more ----

let spans, bits; // uint32 [spans, 3], uint8 [layers, heads, bytes]
let firstToken; // of each span, and one more
const spanCount = () => spans.length / 3;
const spanStart = (i) => spans[3 * i];
const spanEnd = (i) => spans[3 * i + 1];
const spanText = (i) => data.text.slice(spanStart(i), spanEnd(i));
const tokensOf = (i) => range(spans[3 * i + 2]).map((k) => firstToken[i] + k);

function countTokens() {
  firstToken = new Uint32Array(spanCount() + 1);
  for (let i = 0; i < spanCount(); i++) firstToken[i + 1] = firstToken[i] + spans[3 * i + 2];
}

const spanOf = (token) => search(spanCount(), (k) => firstToken[k], token);

/** The last index whose value is at most `value`; values ascend. */
function search(length, valueAt, value) {
  let low = 0;
  for (let high = length; high - low > 1; ) {
    const middle = (low + high) >> 1;
    if (valueAt(middle) <= value) low = middle;
    else high = middle;
  }
  return low;
}

// ---- What was kept: of the chosen layers and heads ----

let chosenLayers = range(data.layers.length);
let chosenHeads = range(data.heads);
let layerCounts = []; // for each layer: how many of the chosen heads kept a position
let counts; // the same, summed over the chosen layers
let voters; // how many heads of the chosen layers vote at all

function hasKept(layer, head, token) {
  const row = (layer * data.heads + head) * Math.ceil(data.tokens / 8);
  return (bits[row + (token >> 3)] >> (token & 7)) & 1;
}

function countLayer(layer) {
  const width = Math.ceil(data.tokens / 8);
  const kept = new Uint16Array(data.tokens);
  for (const head of chosenHeads) {
    const row = (layer * data.heads + head) * width;
    for (let byte = 0; byte < width; byte++)
      for (let left = bits[row + byte], k = 8 * byte; left; left >>= 1, k++) kept[k] += left & 1;
  }
  return kept;
}

function count() {
  counts = new Uint16Array(data.tokens);
  for (const layer of chosenLayers) layerCounts[layer].forEach((n, token) => (counts[token] += n));
  voters = chosenLayers.reduce((sum, layer) => sum + (data.layers[layer].K ? headsOf(layer) : 0), 0);
}

/** How many of the chosen heads a layer has. */
const headsOf = (layer) => chosenHeads.filter((head) => head < data.layers[layer].heads).length;

const inSinks = (token) => chosenLayers.filter((layer) => token < data.layers[layer].sinks);
const inRing = (token) => chosenLayers.filter((layer) => token >= data.layers[layer].ring);
const shade = (kept) => (kept ? Math.ceil((SHADES * kept) / voters) : 0);
const mostKept = (i) => tokensOf(i).reduce((a, b) => (counts[b] > counts[a] ? b : a));

const markOf = (name, layers) =>
  layers.length === chosenLayers.length ? [name] : layers.length ? [name + "-some"] : [];

function spanClass(i) {
  if (!data.layers.length) return "";
  const names = [];
  const token = mostKept(i);
  if (counts[token]) names.push("shade" + shade(counts[token]));
  names.push(...markOf("sink", inSinks(firstToken[i])), ...markOf("ring", inRing(firstToken[i + 1] - 1)));
  if (names.length) names.push("held");
  if (/^\s*\n\s*$/.test(spanText(i))) names.push("newline");
  return names.join(" ");
}

// ---- The text: plain until it comes into view, so that long prompts stay light ----

let chunks = []; // {first, last, node, shaded}
let current = -1; // the span that the keys have come to
let noted = -1; // the span that the note is on

/** Chunks end at a line's end where there is one. */
function cutIntoChunks() {
  for (let first = 0; first < spanCount(); ) {
    let last = first + 1;
    const enough = (i) => i - first >= 4 * CHUNK || (i - first >= CHUNK && data.text[spanEnd(i - 1) - 1] === "\n");
    while (last < spanCount() && !enough(last)) last++;
    chunks.push({ first, last, node: element("div", "chunk"), shaded: false });
    first = last;
  }
}

const chunkStart = (chunk) => (chunk.first ? spanEnd(chunk.first - 1) : 0);
const chunkEnd = (chunk) => (chunk.last < spanCount() ? spanEnd(chunk.last - 1) : data.text.length);
/** Control characters as their pictures, of the same length. */
const visible = (text) =>
  text.replace(/[\x00-\x08\x0b-\x1f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0))).replace(/\x7f/g, "\u2421");
const shown = (start, end) => visible(data.text.slice(start, end));

function showPlain(chunk) {
  chunk.node.textContent = shown(chunkStart(chunk), chunkEnd(chunk));
  chunk.shaded = false;
}

function showShaded(chunk) {
  const nodes = [];
  let at = chunkStart(chunk);
  for (let i = chunk.first; i < chunk.last; i++) {
    if (spanEnd(i) === spanStart(i)) continue;
    nodes.push(shown(at, spanStart(i)));
    const node = element("span", spanClass(i), shown(spanStart(i), spanEnd(i)));
    node.dataset.i = i;
    if (i === current) node.classList.add("current");
    nodes.push(node);
    at = spanEnd(i);
  }
  chunk.node.replaceChildren(...nodes.filter((node) => node !== ""), shown(at, chunkEnd(chunk)));
  chunk.shaded = true;
}

function showText() {
  cutIntoChunks();
  const byNode = new Map(chunks.map((chunk) => [chunk.node, chunk]));
  chunks.forEach(showPlain);
  get("text").append(...byNode.keys());
  const watch = new IntersectionObserver(
    (entries) => entries.forEach((entry) => (entry.isIntersecting ? showShaded : showPlain)(byNode.get(entry.target))),
    { rootMargin: "100% 0px" },
  );
  byNode.forEach((_, node) => watch.observe(node));
}

function showBare() {
  for (const [token, name] of Object.entries(data.bare)) {
    const i = spanOf(Number(token));
    const node = element("span", spanClass(i), name);
    node.dataset.i = i;
    node.tabIndex = 0;
    get("bare").append(node);
  }
  get("bare").hidden = !Object.keys(data.bare).length;
}

const chunkOf = (i) => chunks[search(chunks.length, (k) => chunks[k].first, i)];
const nodeOf = (i) => document.querySelector(`#text [data-i="${i}"], #bare [data-i="${i}"]`);

function goTo(i) {
  nodeOf(current)?.classList.remove("current");
  current = i;
  const chunk = chunkOf(i);
  if (!chunk.shaded) showShaded(chunk);
  const node = nodeOf(i);
  if (!node) return;
  node.classList.add("current");
  const place = node.getBoundingClientRect();
  const top = get("tools").getBoundingClientRect().bottom;
  if (place.top < top || place.bottom > innerHeight) scrollBy(0, place.top - (top + innerHeight) / 2);
  showNote(node);
}
