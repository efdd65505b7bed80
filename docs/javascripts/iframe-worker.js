// The search box runs in a worker, which a browser refuses to start for a page from the disk.
// There, and only there, the worker's script runs in a hidden frame. The theme looks for the
// name of this file, and would otherwise load such a script from the network.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const script = document.createElement("script");
      script.src = url;
      frame.srcdoc = `<!doctype html>${script.outerHTML}`;
      this.loaded = new Promise((done) => frame.addEventListener("load", done));
      document.body.append(frame);
      this.frame = frame;
    }

    async postMessage(data) {
      await this.loaded;
      const inside = this.frame.contentWindow;
      inside.postMessage = (answer) =>
        this.dispatchEvent(new MessageEvent("message", { data: answer }));
      inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
  window.Worker = window.IFrameWorker;
}
