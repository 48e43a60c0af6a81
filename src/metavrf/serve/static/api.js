// The server's HTTP interface, as this page uses it.

/** An answer that is an error: `status`, and the server's sentence as its message. */
export class Refusal extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

const PATIENCE = 10_000; // milliseconds after which a request counts as lost, so that it cannot hold up those behind it

async function ask(path, body) {
  const post = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response, answer;
  try {
    response = await fetch(path, { ...post, signal: AbortSignal.timeout(PATIENCE) });
    answer = await response.json().catch((error) => {
      if (response.ok) throw error;
      return {};
    });
  } catch {
    throw new Refusal(0, "The server does not answer. Is “metavrf serve” still running?");
  }
  if (!response.ok) throw new Refusal(response.status, answer.detail ?? `The server answered ${response.status}.`);
  return answer;
}

export const describe = () => ask("/api/models");

/** Keeps one task on the server in step with the page: at most one request is under way, and the newest state wins. */
export class Task {
  /** `kind`: drawing or curve. `support()`: what to fit, or null. `query()`: what to predict, or null. `show(answer, ms)`. */
  constructor(kind, { support, query, show, notice }) {
    Object.assign(this, { kind, support, query, show, notice });
    this.id = null;
    this.fitted = false;
    this.busy = false;
    this.again = false;
  }

  /** The support set has changed. */
  changed() {
    this.fitted = false;
    this.refresh();
  }

  /** What is asked for has changed. */
  async refresh() {
    this.again = true;
    if (this.busy) return;
    this.busy = true;
    while (this.again) {
      this.again = false;
      try {
        await this.round();
        this.notice("");
      } catch (error) {
        if (!(error instanceof Refusal)) throw error;
        await this.mend(error);
      }
    }
    this.busy = false;
  }

  async round() {
    const started = performance.now();
    const support = this.support();
    if (!support) return this.show(null);
    if (!this.fitted) {
      this.fitted = true; // unless it changes while we wait
      const { task } = await ask("/api/fit", { kind: this.kind, ...(this.id && { task: this.id }), ...support });
      this.id = task;
    }
    const query = this.query();
    if (!query) return this.show(null);
    const answer = await ask("/api/predict", { kind: this.kind, task: this.id, ...query });
    this.show(answer, performance.now() - started);
  }

  async mend(error) {
    this.fitted = false;
    if (error.status === 404 && this.id) { // the server has dropped the task, or was started anew
      this.id = null;
      this.again = true;
      return;
    }
    this.notice(error.message);
    if (error.status === 0 || error.status === 503) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      this.again = true;
    }
  }
}
