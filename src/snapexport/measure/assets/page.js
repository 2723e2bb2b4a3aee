// ---- The note at a token ----

function heldLines(token) {
  if (!data.layers.length) return ["kept by every head of every layer"];
  const all = chosenLayers.length;
  const where = (layers) => (layers.length === all ? (all > 1 ? " in all layers" : "") : ` in ${layers.length} of ${all} layers`);
  const lines = [];
  const sinks = inSinks(token);
  const ring = inRing(token);
  if (sinks.length) lines.push("sink" + where(sinks));
  if (ring.length) lines.push("in the ring" + where(ring));
  if (sinks.length + ring.length === all) return lines;
  const layers = chosenLayers.filter((layer) => layerCounts[layer][token]);
  if (layers.length) {
    lines.push(`kept by ${number(counts[token])} of ${number(voters)} heads`);
    lines.push((layers.length > 1 ? "layers (heads): " : "layer (heads): ") + layers.map((layer) => `${layer} (${layerCounts[layer][token]})`).join(", "));
  } else lines.push(lines.length ? "dropped elsewhere" : "dropped");
  return lines;
}

/** A square for each layer (across) and head (down): what became of one token. */
function heldPicture(token) {
  const size = chosenLayers.length > 24 ? 9 : 13;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", chosenLayers.length * size);
  svg.setAttribute("height", chosenHeads.length * size);
  svg.setAttribute("aria-hidden", "true");
  chosenLayers.forEach((layer, x) =>
    chosenHeads.forEach((head, y) => {
      const { sinks, ring } = data.layers[layer];
      const how = token < sinks ? "sink" : token >= ring ? "ring" : hasKept(layer, head, token) ? "shade4" : "line";
      const half = how === "line" || how === "ring" ? 0.35 : 0; // dropped: a dot; ring: a low bar
      const square = document.createElementNS(svg.namespaceURI, "rect");
      square.setAttribute("x", (x + (how === "line" ? half : 0)) * size);
      square.setAttribute("y", (y + half) * size);
      square.setAttribute("width", how === "line" ? size * 0.3 : size - 1.5);
      square.setAttribute("height", half ? size * 0.3 : size - 1.5);
      square.setAttribute("fill", `var(--${how})`);
      svg.append(square);
    }),
  );
  return svg;
}

function showNote(node) {
  const i = Number(node.dataset.i);
  noted = i;
  const tokens = tokensOf(i);
  const token = data.layers.length ? mostKept(i) : tokens[0];
  const name = data.bare[tokens[0]] ?? spanText(i);
  const several = tokens.length > 1 ? `tokens ${number(tokens[0])}–${number(tokens.at(-1))} share ` : `token ${number(token)} `;
  const head = element("p", "", several);
  head.append(element("code", "", JSON.stringify(name.length > 200 ? name.slice(0, 200) + "…" : name)));
  const lines = heldLines(token);
  if (tokens.length > 1 && counts?.[token]) lines.unshift(`the most kept, token ${number(token)}:`);
  const note = get("note");
  note.replaceChildren(head, ...lines.map((line) => element("p", "", line)));
  if (chosenLayers.length * chosenHeads.length > 1)
    note.append(heldPicture(token), element("small", "", "layers across, heads down"));
  note.hidden = false;
  placeNote(note, node.getClientRects()[0]);
}

function placeNote(note, at) {
  const { width, height } = note.getBoundingClientRect();
  const below = at.bottom + 8 + height < innerHeight;
  note.style.left = Math.max(8, Math.min(at.left, innerWidth - width - 8)) + "px";
  note.style.top = (below ? at.bottom + 8 : Math.max(8, at.top - 8 - height)) + "px";
}

/** What the strip shows under the pointer: a layer, a column of tokens, and the text there. */
function showStripNote(token, event) {
  const box = get("strip").getBoundingClientRect();
  const clamp = (value, count) => Math.max(0, Math.min(count - 1, Math.floor(value)));
  const layer = clamp(((event.clientY - box.top) / box.height) * data.layers.length, data.layers.length);
  const from = clamp(token, data.tokens);
  const to = clamp(token + data.tokens / box.width, data.tokens);
  const { sinks, ring } = data.layers[layer];
  const kept = Math.max(...layerCounts[layer].slice(from, to + 1));
  const how = from < sinks ? "sink" : to >= ring ? "in the ring" : kept ? `kept by ${kept} of ${headsOf(layer)} heads` : "dropped";
  const text = shown(spanStart(spanOf(from)), Math.min(spanStart(spanOf(from)) + 60, data.text.length));
  const head = element("p", "", `layer ${layer}, token ${number(from)}: ${how}`);
  const note = get("note");
  noted = -1;
  note.replaceChildren(head, element("code", "", text + "…"));
  note.hidden = false;
  placeNote(note, { left: event.clientX + 12, top: box.top, bottom: box.bottom });
}

const hideNote = () => (get("note").hidden = true);

/** The note of the current token goes with it; any other would be beside a token not its own. */
function followNote() {
  const node = nodeOf(current);
  if (noted !== current || !node || get("note").hidden) hideNote();
  else placeNote(get("note"), node.getClientRects()[0]);
}

// ---- The overview: position by layer ----

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** For each column, the mean count of a layer's positions in it. */
function columnMeans(layer, width) {
  return range(width).map((column) => {
    const from = Math.floor((column * data.tokens) / width);
    const to = Math.max(from + 1, Math.floor(((column + 1) * data.tokens) / width));
    let sum = 0;
    for (let token = from; token < to; token++) sum += layerCounts[layer][token];
    return sum / (to - from);
  });
}

function drawStrip() {
  const canvas = get("strip").firstElementChild;
  const width = (canvas.width = Math.round(canvas.clientWidth * devicePixelRatio));
  const row = Math.round(Math.max(4, Math.min(20, 150 / data.layers.length)) * devicePixelRatio);
  canvas.height = row * data.layers.length;
  canvas.style.height = canvas.height / devicePixelRatio + "px";
  const context = canvas.getContext("2d");
  const means = data.layers.map((_, layer) => columnMeans(layer, width));
  const most = means.flat().reduce((a, b) => Math.max(a, b), 0);
  means.forEach((columns, layer) => drawLayer(context, layer, row, columns.map((mean) => mean / (most || 1))));
}

/** Sinks: a full block. Ring: a low bar. Kept: the stronger, the more of the column (0 to 1). */
function drawLayer(context, layer, row, columns) {
  const width = columns.length;
  const { sinks, ring } = data.layers[layer];
  const x = (token) => (token * width) / data.tokens;
  const top = layer * row;
  const strength = chosenLayers.includes(layer) ? 1 : 0.25;
  const high = Math.max(1, row - devicePixelRatio);
  context.fillStyle = colour("--shade4");
  columns.forEach((part, column) => {
    context.globalAlpha = strength * part ** 0.7; // lifts the weak ones
    context.fillRect(column, top, 1, high);
  });
  context.globalAlpha = strength;
  context.fillStyle = colour("--ring");
  if (ring < data.tokens) context.fillRect(x(ring), top + high / 2, Math.max(2, width - x(ring)), high / 2);
  context.fillStyle = colour("--sink");
  if (sinks) context.fillRect(0, top, Math.max(3 * devicePixelRatio, x(sinks)), high);
}

/** The tokens between the tools and the window's end. */
function visibleTokens() {
  const top = Math.max(0, get("tools").getBoundingClientRect().bottom);
  return [top, innerHeight].map((y) => {
    const chunk = chunks[search(chunks.length, (k) => chunks[k].node.getBoundingClientRect().top, y)];
    const place = chunk.node.getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (y - place.top) / place.height));
    return firstToken[chunk.first] + part * (firstToken[chunk.last] - firstToken[chunk.first]);
  });
}

function showView() {
  const [from, to] = visibleTokens();
  const view = get("view").style;
  view.left = (100 * from) / data.tokens + "%";
  view.width = (100 * (to - from)) / data.tokens + "%";
  get("strip").setAttribute("aria-valuenow", Math.round(from));
  get("strip").setAttribute("aria-valuetext", `tokens ${number(Math.round(from))} to ${number(Math.round(to))} are in view`);
}

function goToToken(token) {
  const inside = Math.max(0, Math.min(data.tokens - 1, Math.floor(token)));
  goTo(spanOf(inside));
}

// ---- Choosing ----

function describe() {
  const one = chosenLayers.length === 1 && data.layers[chosenLayers[0]];
  const heads = chosenHeads.length > 1 ? "each head" : "the head";
  get("selection").textContent = one
    ? `${number(one.sinks)} sinks, ${number(data.tokens - one.ring)} in the ring, ` +
      (one.K ? `${number(one.kept)} of ${number(one.ring - one.sinks)} others kept by ${heads}` : "no vote in this layer")
    : !voters
      ? "only sinks and ring: no vote"
      : `${number(counts.reduce((n, kept) => n + (kept > 0), 0))} positions kept by a vote of any head`;
}

/** How sinks (or the ring) of the chosen layers are marked; `edge` is a token that they reach first. */
function markItems(name, region, inside, edge) {
  const all = chosenLayers.length;
  const there = inside(edge).length;
  const borders = new Set(chosenLayers.map((layer) => data.layers[layer][region]));
  const items = there === all ? [[name, name]] : [];
  return there && (there < all || borders.size > 1) ? [...items, [`${name}-some`, `${name} of some layers`]] : items;
}

function shadeItem(level) {
  const least = Math.floor(((level - 1) * voters) / SHADES) + 1;
  const most = Math.floor((level * voters) / SHADES);
  if (least > most) return [];
  const text = voters === 1 ? "kept" : least === most ? number(least) : `${number(least)}–${number(most)}`;
  return [[`shade${level}`, text]];
}

function showLegend() {
  const items = [
    ...markItems("sink", "sinks", inSinks, 0),
    ...markItems("ring", "ring", inRing, data.tokens - 1),
    ["dropped", "dropped"],
    ...range(SHADES).flatMap((i) => shadeItem(i + 1)),
  ];
  const nodes = items.map(([name, text]) => {
    const item = element("li", "", text);
    item.prepend(element("span", name === "dropped" ? name : `held ${name}`, "token"));
    return item;
  });
  if (voters > 1) nodes.push(element("li", "", `of ${number(voters)} heads kept it`));
  get("legend").replaceChildren(...nodes);
}

function choose(countAgain) {
  const [layer, head] = [get("layer").value, get("head").value];
  chosenLayers = layer === "" ? range(data.layers.length) : [Number(layer)];
  chosenHeads = head === "" ? range(data.heads) : [Number(head)];
  if (countAgain) layerCounts = data.layers.map((_, one) => countLayer(one));
  count();
  chunks.filter((chunk) => chunk.shaded).forEach(showShaded);
  for (const node of get("bare").children) node.className = spanClass(Number(node.dataset.i));
  describe();
  showLegend();
  drawStrip();
  hideNote();
}

function fillSelect(id, all, name, length, countAgain) {
  const select = get(id);
  select.append(new Option(all, ""), ...range(length).map((i) => new Option(`${name} ${i}`, i)));
  select.addEventListener("change", () => choose(countAgain));
}

// ---- Mouse and keys ----

function listen() {
  for (const id of ["text", "bare"]) {
    get(id).addEventListener("mouseover", (event) => event.target.dataset.i && showNote(event.target));
    get(id).addEventListener("mouseleave", hideNote);
    get(id).addEventListener("click", (event) => event.target.dataset.i && goTo(Number(event.target.dataset.i)));
  }
  get("bare").addEventListener("focusin", (event) => showNote(event.target));
  get("bare").addEventListener("focusout", hideNote);
  get("text").addEventListener("keydown", stepThroughText);
  get("text").addEventListener("blur", hideNote);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideNote());
  addEventListener("scroll", followNote, { passive: true });
}

function listenToStrip() {
  const strip = get("strip");
  const at = (event) => ((event.clientX - strip.getBoundingClientRect().left) / strip.clientWidth) * data.tokens;
  strip.addEventListener("click", (event) => goToToken(at(event)));
  strip.addEventListener("mousemove", (event) => showStripNote(at(event), event));
  strip.addEventListener("mouseleave", hideNote);
  strip.addEventListener("keydown", stepThroughStrip);
  strip.setAttribute("aria-valuemin", 0);
  strip.setAttribute("aria-valuemax", data.tokens - 1);
  addEventListener("scroll", () => requestAnimationFrame(showView), { passive: true });
  addEventListener("resize", () => (drawStrip(), showView()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawStrip);
}

function stepThroughText(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { ArrowRight: 1, ArrowLeft: -1, n: 1, p: -1 }[event.key];
  if (!step) return;
  const from = current < 0 ? spanOf(visibleTokens()[0]) - step : current;
  const kept = (i) => data.layers.length && counts[mostKept(i)];
  let i = from + step;
  if (event.key.length === 1) while (i >= 0 && i < spanCount() && !kept(i)) i += step;
  if (i >= 0 && i < spanCount()) goTo(i);
  event.preventDefault();
}

function stepThroughStrip(event) {
  const now = current < 0 ? visibleTokens()[0] : firstToken[current];
  const step = Math.max(1, data.tokens / 100);
  const to = { ArrowRight: now + step, ArrowUp: now + step, ArrowLeft: now - step, ArrowDown: now - step,
    PageUp: now + 10 * step, PageDown: now - 10 * step, Home: 0, End: data.tokens - 1 }[event.key];
  if (to === undefined) return;
  goToToken(to);
  event.preventDefault();
}

async function start() {
  spans = new Uint32Array(await unpacked(data.spans));
  bits = new Uint8Array(await unpacked(data.bits));
  countTokens();
  if (data.layers.length) {
    fillSelect("layer", "all", "layer", data.layers.length, false);
    fillSelect("head", "all", "head", data.heads, true);
    get("axis").append(element("span", "", `position 0 · layers 0 (top) to ${data.layers.length - 1}`), element("span", "", number(data.tokens - 1)));
    choose(true);
    listenToStrip();
  }
  showBare();
  showText();
  if (data.layers.length) showView();
  listen();
}

start().catch((error) => {
  get("trouble").hidden = false;
  get("trouble").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or newer.`;
});
