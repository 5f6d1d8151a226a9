// Sends the picture, the sound and the question as any client does, and writes the answer as it streams.
import { $, KEY, say, seconds } from "./status.js";

const LONGEST_TOKENS = 128;
let running = null;

// A file of this page as a data: URL.
async function dataUrl(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: HTTP ${answer.status}`);
  const blob = await answer.blob();
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

async function content() {
  const parts = [];
  if ($("with-picture").checked) parts.push({ type: "image_url", image_url: { url: await dataUrl("picture.png") } });
  if ($("with-sound").checked) {
    const data = (await dataUrl("word.wav")).split(",")[1];
    parts.push({ type: "input_audio", input_audio: { data, format: "wav" } });
  }
  parts.push({ type: "text", text: $("question").value });
  return parts;
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// The server's own words where it refuses.
async function refusal(answer) {
  const body = await answer.json().catch(() => ({}));
  return `HTTP ${answer.status}: ${body.error?.message ?? "no reason was given"}`;
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the answer broke off");
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const event of whole) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function ask(signal) {
  const begun = performance.now();
  const body = {
    messages: [{ role: "user", content: await content() }], max_tokens: LONGEST_TOKENS, temperature: 0, stream: true,
  };
  const answer = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!answer.ok) throw new Error(await refusal(answer));
  let model = "", end = null;
  for await (const event of events(answer)) {
    if (event.error) throw new Error(event.error.message);
    model = event.model;
    for (const choice of event.choices) {
      $("answer").append(choice.delta.content ?? "");
      end = choice.finish_reason ?? end;
    }
  }
  const cut = end === "length" ? `, cut off at ${LONGEST_TOKENS} tokens` : "";
  return `\u25cf ${model} answered in ${seconds((performance.now() - begun) / 1000)}${cut}.`;
}

async function submit() {
  if (running) return running.abort();
  running = new AbortController();
  say($("ask"), "Stop");
  say($("answer"), "");
  say($("try-state"), "\u25d0 asking", "quiet");
  $("answer").setAttribute("aria-busy", "true"); // so that a reader hears it once, whole
  try {
    say($("try-state"), await ask(running.signal), "quiet");
  } catch (error) {
    const stopped = error.name === "AbortError";
    say($("try-state"), stopped ? "\u25a0 stopped" : `\u2715 No answer (${error.message}).`, stopped ? "quiet" : "bad");
  }
  $("answer").setAttribute("aria-busy", "false");
  say($("ask"), "Ask");
  running = null;
  return undefined;
}

$("try").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
