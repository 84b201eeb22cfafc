// What the server says: requests, and streams that end when the tab is hidden, as browsers allow six per server.

const UNSEEN = 20000; // milliseconds
const MOST_AGAIN = 3;

// An object without a prototype, as keys are names that programs choose: every other one has a "constructor".
export const named = (entries = []) => Object.setPrototypeOf(Object.fromEntries(entries), null);

const parse = (text) => JSON.parse(text, (_, value) => (value && typeof value === "object" && !Array.isArray(value) ? Object.setPrototypeOf(value, null) : value));

export async function get(path) {
  return answered(await asked(path));
}

export async function getText(path) {
  const response = await asked(path);
  return response.ok ? response.text() : answered(response);
}

export async function post(path, body = {}) {
  return answered(await asked(path, { method: "POST", body: JSON.stringify(body) }));
}

// Ask again after a failure: browsers end all requests when the machine gets or loses a network.
async function asked(path, request = {}) {
  for (let left = request.method ? 0 : MOST_AGAIN; ; left -= 1) {
    try {
      return await fetch(path, request);
    } catch {
      if (!left) throw new Error("no answer: tflaunch web has ended or cannot be reached");
    }
    await new Promise((wake) => setTimeout(wake, 300));
  }
}

async function answered(response) {
  if (response.status === 403) throw new Error("tflaunch web was started again: open the link that it printed");
  const found = await response.text().then(parse).catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(found.error);
  return found;
}

export const apiOf = (run) => `/api/runs/${encodeURIComponent(run)}`;

export class Stream {
  constructor(path, handlers) {
    Object.assign(this, { path, handlers, source: null, isOver: false });
    this.look = () => {
      clearTimeout(this.timer);
      if (document.hidden) this.timer = setTimeout(() => this.pause(), UNSEEN);
      else this.resume();
    };
    document.addEventListener("visibilitychange", this.look);
    this.look();
  }

  resume() {
    if (this.source || this.isOver) return;
    this.source = new EventSource(this.path);
    this.source.onopen = () => {
      said("live", "connected");
      this.handlers.open?.();
    };
    this.source.onerror = () => this.failed();
    for (const [name, handler] of Object.entries(this.handlers)) {
      if (name !== "open") this.source.addEventListener(name, (event) => handler(parse(event.data)));
    }
    this.source.addEventListener("over", () => {
      this.isOver = true;
      this.pause();
      said("ended");
    });
  }

  pause() {
    this.source?.close();
    this.source = null;
  }

  async failed() {
    if (this.source?.readyState !== EventSource.CLOSED) return said("waiting", "no answer");
    this.pause();
    try {
      const response = await asked(this.path); // an EventSource does not tell why it was refused
      if (!response.ok) await answered(response);
      response.body.cancel();
      this.timer = setTimeout(this.look, 1000);
    } catch (error) {
      if (this.isOver) return; // another page is shown
      said("refused", "closed", this.handlers.trouble ? "" : error.message);
      this.handlers.trouble?.({ sentence: error.message });
    }
  }

  close() {
    this.isOver = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.look);
    this.pause();
  }
}

// Say how the link to the server is, and, below, what follows from it.
function said(state, text = state, sentence = null) {
  const place = document.getElementById("link");
  place.className = state;
  place.textContent = text;
  const since = new Date().toLocaleTimeString([], { hour12: false });
  const lost = `No answer since ${since}: what is shown is as it was then. If tflaunch web has ended, start it again and open its link.`;
  const trouble = document.getElementById("trouble");
  if (state === "waiting" && !trouble.hidden) return; // the first time counts
  trouble.textContent = ["waiting", "refused"].includes(state) ? sentence ?? lost : "";
  trouble.hidden = !trouble.textContent;
}
