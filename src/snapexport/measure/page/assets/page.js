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
