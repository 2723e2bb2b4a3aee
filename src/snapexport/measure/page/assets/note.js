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
