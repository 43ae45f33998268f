/* How does search work on pages opened from a folder? Browsers start no worker from file://, so a frame does its work.
   It has what the search script uses: messages both ways, and importScripts. Elsewhere this does nothing. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      // Some browsers put the frame's document in place only now: what was written into it before would be lost.
      this.ready = new Promise((done) => this.frame.addEventListener("load", done, { once: true })).then(() => this.begin(url));
      document.documentElement.append(this.frame);
    }
    begin(url) {
      const inside = this.frame.contentWindow;
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
      return load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (typeof this.onmessage === "function") this.onmessage(event);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
