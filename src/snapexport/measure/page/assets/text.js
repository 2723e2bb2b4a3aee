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
