// A client of /v1/chat/completions. Text is only ever set as text: nothing that a model writes runs.

const MOST_BYTES = 16 * 1024 * 1024; // of all files of a question; a body may have twice as many
const get = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");

let model = "";
let longest = 0; // prompt, in tokens
let messages = []; // of the conversation so far
let files = []; // {name, text} of the next question
let running = null; // the AbortController of the answer that comes

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function complain(text) {
  get("trouble").textContent = text;
  get("trouble").hidden = !text;
}

// ---- The server ----

const KEY = "snapexport.key";
const headers = (key) => ({ "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) });

/** An answer of the server, once its status is good. */
async function request(path, options) {
  const key = sessionStorage.getItem(KEY);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: headers(key) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401 && key === sessionStorage.getItem(KEY)) askForKey();
  const body = await answer.json().catch(() => null);
  throw new Error(body?.error?.message ?? `The server answered with status ${answer.status}.`);
}

function askForKey() {
  sessionStorage.removeItem(KEY);
  get("access").hidden = false;
  get("key").focus();
}

async function connect() {
  const { data } = await (await request("/v1/models")).json();
  model = data[0].id;
  document.title = get("model").textContent = model;
  longest = data[0].max_model_len;
  get("limit").textContent = `reads up to ${number(longest)} tokens`;
  get("access").hidden = true;
  complain("");
}

/** The lines of a stream of events, comments among them. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const found = (rest + (value ?? "")).split("\n");
    rest = done ? "" : found.pop();
    yield* found;
    if (done) return;
  }
}

/** What a stream says: {done, total} of its prefill, chunks, and an error as an exception. */
async function* events(body) {
  for await (const line of lines(body)) {
    const prefill = /^: prefill (\d+)\/(\d+)/.exec(line);
    if (prefill) yield { done: Number(prefill[1]), total: Number(prefill[2]) };
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const chunk = JSON.parse(line.slice(6));
    if (chunk.error) throw new Error(chunk.error.message);
    yield { chunk };
  }
}

// ---- A question and its answer ----

function add(node) {
  get("hint").hidden = true;
  get("talk").append(node);
  node.scrollIntoView({ block: "end" });
  return node;
}

function showQuestion(question) {
  const node = element("article", "asked");
  if (files.length) node.append(element("p", "line", files.map((file) => file.name).join(", ")));
  node.append(element("div", "body", question));
  add(node);
}

/** The files, then the question: its tokens vote on what is kept of them. */
function contentOf(question) {
  const named = files.length > 1;
  const texts = files.map(({ name, text }) => (named ? `File: ${name}\n\n${text}` : text));
  return [...texts, question].join("\n\n");
}

async function ask(question) {
  const asked = { role: "user", content: contentOf(question) };
  running = new AbortController();
  setRunning(true);
  showQuestion(question);
  const answer = add(element("article", "answer"));
  const [reason, body] = ["reason body", "body"].map((name) => answer.appendChild(element("div", name)));
  try {
    await stream(asked, { answer, reason, body });
  } catch (error) {
    if (error.name !== "AbortError") complain(error.message);
    if (!body.textContent) {
      answer.previousSibling.remove();
      answer.remove();
      get("question").value ||= question;
    } else answer.append(element("p", "line", "stopped"));
  }
  if (body.textContent) {
    messages.push(asked, { role: "assistant", content: body.textContent });
    files = [];
    showFiles();
  }
  setRunning(false);
}

async function stream(asked, { answer, reason, body }) {
  const started = performance.now();
  const wantsKept = get("kept").checked;
  const given = await request("/v1/chat/completions", {
    method: "POST",
    signal: running.signal,
    body: JSON.stringify({
      model, messages: [...messages, asked], stream: true, stream_options: { include_usage: true },
      ...(wantsKept && { kept: true }),
    }),
  });
  let first, usage, kept, ended;
  for await (const { chunk, done, total } of events(given.body)) {
    if (!chunk) {
      showProgress(done, total);
      continue;
    }
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.content || delta.reasoning_content) {
      first ??= performance.now();
      get("work").hidden = true;
      write(reason, delta.reasoning_content);
      write(body, delta.content);
    }
    ended = chunk.choices[0]?.finish_reason ?? ended;
    usage = chunk.usage ?? usage;
    kept = chunk.kept ?? kept;
  }
  if (usage) answer.append(element("p", "line", spellUsage(usage, ended, (first - started) / 1000, (performance.now() - first) / 1000)));
  if (kept) answer.append(picture(kept));
  else if (wantsKept) answer.append(element("p", "line", "The server did not say what was kept."));
  answer.scrollIntoView({ block: "nearest" });
}

/** Adds text, and follows it if its end is in view. */
function write(node, text) {
  if (!text) return;
  const talk = get("talk");
  const follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
  node.append(text);
  if (follows) talk.scrollTop = talk.scrollHeight;
}

function spellUsage(usage, ended, waited, seconds) {
  const speed = usage.completion_tokens > 1 && seconds > 0.1 ? (usage.completion_tokens - 1) / seconds : 0;
  const parts = [`${number(usage.prompt_tokens)} tokens read`, `${number(usage.completion_tokens)} written`];
  if (waited) parts.push(`first after ${waited.toFixed(1)} s`);
  if (speed) parts.push(`${speed.toFixed(1)} a second`);
  if (ended === "length") parts.push("cut at its longest");
  return parts.join(", ");
}

let began; // {time, done} of the first progress that was seen

function showProgress(done, total) {
  const now = performance.now();
  if (!began || done < began.done) began = { now, done };
  const left = done > began.done ? ((now - began.now) * (total - done)) / (done - began.done) / 1000 : 0;
  get("bar").max = total;
  if (done) get("bar").value = done;
  const rest = left >= 1 && done < total ? `, about ${spellSeconds(left)} left` : "";
  get("done").textContent = done ? `read ${number(done)} of ${number(total)} tokens${rest}` : "waiting";
}

const spellSeconds = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

function setRunning(is) {
  if (!is) running = null;
  began = null;
  get("bar").removeAttribute("value");
  get("done").textContent = is ? "reading" : "";
  get("work").hidden = get("stop").hidden = !is;
  get("send").hidden = is;
  get("anew").hidden = is || !messages.length;
  if (is) complain("");
  get("question").focus();
}

// ---- Files ----

async function take(list) {
  complain("");
  for (const file of list) {
    try {
      files.push({ name: file.name, text: await textOf(file) });
    } catch (error) {
      complain(`${file.name}: ${error.message}`);
    }
  }
  showFiles();
  get("question").focus();
}

async function textOf(file) {
  const others = files.reduce((sum, one) => sum + one.text.length, 0);
  if (file.size + others > MOST_BYTES) throw new Error(`more than ${MOST_BYTES >> 20} MiB of files`);
  const text = await file.arrayBuffer().then((bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes)).catch(() => {
    throw new Error("is not text in UTF-8; `snapexport ask` reads PDFs");
  });
  if (!text.trim()) throw new Error("has no text");
  const plain = text.replaceAll("\r\n", "\n").trim();
  await requireRoom(plain);
  return plain;
}

/** Refuses a text that makes a prompt too long by itself. */
async function requireRoom(prompt) {
  if (!model || prompt.length <= longest) return; // the server counts at Send, whatever is here
  const given = await request("/tokenize", { method: "POST", body: JSON.stringify({ model, prompt }) });
  const { count } = await given.json();
  if (count > longest) throw new Error(`has ${number(count)} tokens; ${number(longest)} can be read`);
}

function showFiles() {
  const nodes = files.map((file) => {
    const node = element("li", "", `${file.name}, ${number(file.text.length)} characters`);
    const remove = node.appendChild(element("button", "", "×"));
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${file.name}`);
    remove.addEventListener("click", () => ((files = files.filter((one) => one !== file)), showFiles()));
    return node;
  });
  get("files").replaceChildren(...nodes);
}

// ---- Mouse and keys ----

function send() {
  const question = get("question").value.trim();
  if (running || !question) return;
  get("question").value = "";
  fit();
  if (model) ask(question);
  else connect().then(() => ask(question), (error) => ((get("question").value = question), complain(error.message)));
}

/** Makes the field as high as its text. */
function fit() {
  const field = get("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

function listen() {
  get("ask").addEventListener("submit", (event) => (event.preventDefault(), send()));
  get("question").addEventListener("input", fit);
  get("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
  get("stop").addEventListener("click", () => running?.abort());
  get("anew").addEventListener("click", () => {
    messages = [];
    get("talk").replaceChildren(get("hint"));
    get("hint").hidden = false;
    setRunning(false);
  });
  get("pick").addEventListener("click", () => get("file").click());
  get("file").addEventListener("change", (event) => take([...event.target.files]).then(() => (event.target.value = "")));
  get("access").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, get("key").value.trim());
    get("key").value = "";
    connect().then(() => get("question").focus(), (error) => complain(error.message));
  });
  listenToDrops();
}

function listenToDrops() {
  const mark = (is) => document.body.classList.toggle("dropping", is);
  addEventListener("dragover", (event) => (event.preventDefault(), mark(true)));
  addEventListener("dragleave", (event) => event.relatedTarget || mark(false));
  addEventListener("drop", (event) => {
    event.preventDefault();
    mark(false);
    if (!running) take([...event.dataTransfer.files]);
  });
}

listen();
get("question").focus();
connect().catch((error) => complain(error.message));
