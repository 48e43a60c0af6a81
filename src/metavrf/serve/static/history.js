// State with undo and redo, kept in the browser's storage so that a reload loses nothing. States are never changed in place.

const MOST = 200;

export class History {
  constructor(key, empty, onChange) {
    this.key = key;
    this.empty = empty;
    this.onChange = onChange;
    this.past = [];
    this.future = [];
    this.state = this.stored() ?? empty;
  }

  stored() {
    try {
      const found = JSON.parse(localStorage.getItem(this.key));
      return found && Object.keys(this.empty).every((name) => name in found) ? found : null;
    } catch {
      return null;
    }
  }

  /** Take a new state; `quiet` ones (a pen that moves, a point that is dragged) are no step of their own. */
  set(changes, { quiet = false } = {}) {
    if (!quiet) {
      this.past = [...this.past.slice(1 - MOST), this.state];
      this.future = [];
    }
    this.move({ ...this.state, ...changes }, !quiet);
  }

  undo() {
    if (!this.past.length) return;
    this.future.push(this.state);
    this.move(this.past.pop(), true);
  }

  redo() {
    if (!this.future.length) return;
    this.past.push(this.state);
    this.move(this.future.pop(), true);
  }

  move(state, keep) {
    const before = this.state;
    this.state = state;
    if (keep) this.keep();
    this.onChange(before);
  }

  keep() {
    try {
      localStorage.setItem(this.key, JSON.stringify(this.state));
    } catch {
      // private windows and full disks: the page works, a reload forgets
    }
  }
}

/** Buttons, and Ctrl+Z / Ctrl+Y within `area`, for a history. */
export function controls(history, area, undo, redo) {
  undo.addEventListener("click", () => history.undo());
  redo.addEventListener("click", () => history.redo());
  area.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.target instanceof HTMLInputElement) return;
    const key = event.key.toLowerCase();
    if (key !== "z" && key !== "y") return;
    event.preventDefault();
    if (key === "y" || event.shiftKey) history.redo();
    else history.undo();
  });
  return () => {
    undo.disabled = !history.past.length;
    redo.disabled = !history.future.length;
  };
}
