// Browsers refuse to start a Worker from a file:// page. Here its script runs in a hidden frame instead, so that the
// search works when the site is opened from a folder. Served over http(s), this file does nothing.
(function () {
  "use strict";
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.setAttribute("aria-hidden", "true");
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      // What the script posts goes to the page, as it would from a worker.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) =>
        Promise.all(urls.map((each) => this.add(each)));
      this.add(url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }

    add(url) {
      const script = this.frame.contentDocument.createElement("script");
      script.src = String(new URL(url, location.href));
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = () => reject(new Error("cannot load " + url));
        this.frame.contentDocument.head.append(script);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.Worker = FrameWorker;
})();
