// Speaks to the server, with the token of the address; the token is kept for this tab only.

const KEY = "shoal-token";

export function takeToken() {
  const words = new URLSearchParams(location.hash.slice(1));
  const token = words.get("token");
  if (!token) return;
  sessionStorage.setItem(KEY, token);
  words.delete("token");
  const rest = words.toString().replace(/=(?=&|$)/g, "");
  history.replaceState(null, "", `#${rest || "runs"}`);
}

export class Refused extends Error {
  constructor(status, words) { super(words); this.status = status; }
}

export async function ask(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}`, ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said.error ?? `${answer.status} ${answer.statusText}`);
}

export function path(run, part = "") {
  return `/api/runs/${encodeURIComponent(run)}${part}`;
}

// Calls `changed` whenever the server has something new, until the signal ends it; `trouble` while it cannot be reached.
export async function follow(run, signal, changed, trouble) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
  const address = run === null ? "/api/stream" : `/api/stream?run=${encodeURIComponent(run)}`;
  while (!signal.aborted) {
    try {
      const answer = await fetch(address, { headers, signal });
      if (!answer.ok) throw new Refused(answer.status, (await answer.json()).error);
      trouble(null);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        if (piece.value.includes("event: change")) changed();
      }
    } catch (error) {
      if (signal.aborted) return;
      trouble(error);
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}
