/* How does search work on pages opened from a folder? Browsers start no worker from file://, so a frame does its work.
   It has what the search script uses: messages both ways, and importScripts. Elsewhere this does nothing. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      const load = (address) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script");
          script.src = new URL(address, document.baseURI).href;
          script.onload = done;
          script.onerror = failed;
          inside.document.head.append(script);
        });
      inside.postMessage = (data) => this.answer(data);
      inside.importScripts = (...addresses) => addresses.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      this.inside = inside;
      this.loaded = load(url);
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (typeof this.onmessage === "function") this.onmessage(event);
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
